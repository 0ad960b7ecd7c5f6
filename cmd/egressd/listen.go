package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// listen opens every listener that the file names, or none.
func (d *daemon) listen() error {
	names := append([]string(nil), d.config.file.Listen.Proxy...)
	for _, s := range d.config.file.Sandboxes {
		if s.Listen != "" {
			names = append(names, s.Listen)
		}
	}
	var own []netip.AddrPort
	for _, name := range names {
		l, err := openListener(name)
		if err != nil {
			return failed(fmt.Errorf("listen on %s: %w", name, err), "free it, or change listen in "+d.path)
		}
		d.listening = append(d.listening, boundListener{l, name})
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			own = append(own, tcp.AddrPort())
		}
	}
	if len(names) == 0 {
		return misused(errors.New("the policy file names no listener"), `listen: {proxy: ["127.0.0.1:3128"]} in `+d.path)
	}
	d.own.Store(&own)
	return nil
}

func openListener(name string) (net.Listener, error) {
	path, unix := strings.CutPrefix(name, "unix:")
	if !unix {
		return net.Listen("tcp", name)
	}
	if err := clearSocket(path); err != nil {
		return nil, err
	}
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o660)
}

// makeFolder makes a folder where there is none. Others may pass through it,
// whatever the umask is: sandboxes with a user of their own do.
func makeFolder(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// clearSocket removes a socket that a process left behind. Anything else at
// path is somebody's, and an error.
func clearSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeSocket == 0 || !ok || int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s exists and is not a socket of this user", path)
	}
	if answers(path) {
		return fmt.Errorf("%s is in use by another process", path)
	}
	return os.Remove(path)
}

// answers reports whether a process listens on the socket at path.
func answers(path string) bool {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer syscall.Close(fd)
	return syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}) == nil
}

func addressOf(l boundListener) string {
	if path, unix := strings.CutPrefix(l.name, "unix:"); unix {
		return "unix:" + path
	}
	return l.Addr().String()
}

// changes tells of changes of the policy file. Its folder is watched, since
// editors replace files; a burst of events counts once.
func (d *daemon) changes(ctx context.Context) <-chan struct{} {
	told := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err == nil {
		err = w.Add(filepath.Dir(d.path))
	}
	if err != nil {
		fmt.Fprintf(d.talk, "egressd: warning: changes of %s are not seen (%v); send SIGHUP after an edit\n", d.path, err)
		return told
	}
	d.serving.Go(func() {
		defer w.Close()
		tellChanges(ctx, w, filepath.Base(d.path), told)
	})
	return told
}

// quiet is how long a folder has to be still before a change counts.
const quiet = 50 * time.Millisecond

// mounted is the link by which Kubernetes replaces a mounted folder's files.
const mounted = "..data"

func tellChanges(ctx context.Context, w *fsnotify.Watcher, name string, told chan<- struct{}) {
	still := time.NewTimer(0)
	defer still.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.Events:
			if !open {
				return
			}
			if base := filepath.Base(e.Name); base == name || base == mounted {
				still.Reset(quiet)
			}
		case <-w.Errors: // an overflow is a change too
			still.Reset(quiet)
		case <-still.C:
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}
}
