package daemon

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
	"sync/atomic"
	"syscall"

	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy"
)

// capturing takes the connections that were going elsewhere.
type capturing struct {
	daemon   *Daemon
	captures []captureListener
}

// listeners are where sandboxes reach the proxy.
type listeners struct {
	daemon    *Daemon
	listening []boundListener
	own       atomic.Pointer[[]netip.AddrPort] // addresses it listens on
	overTLS   atomic.Pointer[proxy.TLSListener]
}

// listen opens every listener that the file names, or none.
func (ls *listeners) listen() error {
	if unset := ls.daemon.Config.File.Unset(); len(unset) > 0 && ls.daemon.tailor.Change == nil {
		return hint.Misused(unset, "set the variable, or write the value into "+ls.daemon.Path)
	}
	names := ls.daemon.Config.AllListeners()
	var own []netip.AddrPort
	for _, name := range names {
		l, err := ls.openListener(name)
		if err != nil {
			return hint.Failed(fmt.Errorf("listen on %s: %w%s", name, err, holderOf(name, err)), "free it, or change listen in "+ls.daemon.Path)
		}
		ls.listening = append(ls.listening, l)
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			own = append(own, tcp.AddrPort())
		}
	}
	if err := ls.daemon.names.listenForNames(&own); err != nil {
		return err
	}
	if err := ls.daemon.captures.listenForCaptured(&own); err != nil {
		return err
	}
	if err := ls.daemon.listenForNetworks(); err != nil {
		return err
	}
	if err := ls.daemon.admin.open(); err != nil {
		return err
	}
	if err := ls.daemon.notifying.open(); err != nil {
		return err
	}
	if err := ls.daemon.scraping.open(); err != nil {
		return err
	}
	if err := ls.daemon.tailor.handed.allTaken(ls.daemon.Path); err != nil {
		return err
	}
	if len(names)+len(ls.daemon.names.dnsAt)+len(ls.daemon.captures.captures)+len(ls.daemon.attachments.listeners) == 0 && ls.daemon.tailor.Change == nil {
		return hint.Misused(errors.New("the policy file names no listener"), `listen: {proxy: ["127.0.0.1:3128"]} in `+ls.daemon.Path)
	}
	ls.own.Store(&own)
	return ls.admitUsers(ls.daemon.Config)
}

// openListener opens a listener, or takes it from the service manager.
func (ls *listeners) openListener(name string) (l boundListener, err error) {
	if taken := ls.daemon.tailor.handed.stream(atProxy(name)); taken == nil {
		l, err = openListener(name)
	} else {
		l = boundListener{Listener: taken, name: name}
		if path, unix := strings.CutPrefix(name, file.UnixListener); unix {
			err = ls.checkHandedMode(name, path)
		}
	}
	if err == nil {
		err = ls.screen(&l)
	}
	if err != nil && l.Listener != nil {
		err = errors.Join(err, l.Close())
	}
	return l, err
}

func openListener(name string) (boundListener, error) {
	l := boundListener{name: name}
	path, unix := strings.CutPrefix(name, file.UnixListener)
	if !unix {
		how := net.ListenConfig{KeepAlive: -1} // package proxy sets it once for all connections
		how.SetMultipathTCP(false)
		tcp, err := how.Listen(context.Background(), "tcp", strings.TrimPrefix(name, file.TLSListener))
		l.Listener = tcp
		return l, err
	}
	return openSocket("unix", name, path, ofGroup)
}

// openSocket opens a Unix socket that has the mode from the start.
func openSocket(network, name, path string, mode fs.FileMode) (boundListener, error) {
	l := boundListener{name: name}
	if err := clearSocket(path); err != nil {
		return l, err
	}
	if err := MakeFolder(filepath.Dir(path)); err != nil {
		return l, err
	}
	var how net.ListenConfig
	if network == "unix" { // an attachment is sent as descriptors
		how.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { _, err = refuseDescriptors(fd) }), err)
		}
	}
	socket, err := how.Listen(context.Background(), network, path)
	if err != nil {
		return l, err
	}
	l.Listener = socket
	if l.file, err = holdSocket(path); err == nil {
		err = l.file.chmod(mode)
	}
	if err != nil {
		return boundListener{}, errors.Join(err, l.Close())
	}
	return l, nil
}

// MakeFolder makes a folder where there is none. Others may pass through it,
// whatever the umask is: sandboxes with a user of their own do.
func MakeFolder(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := MakeFolder(filepath.Dir(path)); err != nil {
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

func answers(path string) bool {
	fd, err := carry.Socket(syscall.AF_UNIX)
	if err != nil {
		return true
	}
	defer syscall.Close(fd)
	err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
	return err == nil || errors.Is(err, syscall.EPROTOTYPE) || errors.Is(err, syscall.EAGAIN) // it listens for another kind of connection, or its queue is full
}

func addressOf(l boundListener) string {
	switch {
	case strings.HasPrefix(l.name, file.UnixListener):
		return l.name
	case strings.HasPrefix(l.name, file.TLSListener):
		return file.TLSListener + l.Addr().String()
	}
	return l.Addr().String()
}
