package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A boundListener is a listener that is open, and what the file calls it.
type boundListener struct {
	net.Listener
	name string
	file *socketFile // of a unix socket; else nil
}

// Close closes the listener and lets go of its file. It ends the connections of a [foreign.Screen].
func (l boundListener) Close() error {
	err := l.Listener.Close()
	if s, ok := l.Listener.(*foreign.Screen); ok {
		s.Cut(closePatience)
	}
	if l.file != nil {
		err = errors.Join(err, l.file.held.Close())
	}
	return err
}

// A socketFile holds the file of a Unix socket open, so that chmod(2) reaches this file. By name, chmod would follow a link
// that somebody with write access to the folder could put there.
type socketFile struct{ held *os.File }

// holdSocket opens the socket at path, and nothing else that may be there.
func holdSocket(path string) (*socketFile, error) {
	const oPath = 0x200000 // O_PATH, which package syscall does not have
	fd, err := syscall.Open(path, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := &socketFile{os.NewFile(uintptr(fd), path)}
	info, err := f.held.Stat()
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		err = fmt.Errorf("%s is not the socket that was opened", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.held.Close())
	}
	return f, nil
}

// chmod sets the mode of the socket, wherever it is by now.
func (f *socketFile) chmod(mode fs.FileMode) error {
	if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.held.Fd()), mode); err != nil {
		return fmt.Errorf("set the mode of %s: %w", f.held.Name(), errors.Unwrap(err))
	}
	return nil
}

// ofOwner is the mode of a socket for egressd's own user.
const ofOwner = fs.FileMode(0o600)

// The modes of sockets: the group may connect while reaching the socket is the proof of identity; everybody may connect if the
// kernel's peer credentials are the proof.
const (
	ofGroup    = fs.FileMode(0o660)
	ofEveryone = fs.FileMode(0o666)
)

// admitUsers lets everybody connect to the sockets at which the kernel says who
// they are, and is asked.
func (ls *listeners) admitUsers(c *config.Config) error {
	for _, l := range ls.listening {
		if l.file == nil {
			continue
		}
		mode := ofGroup
		if c.AsksForUsers(l.name) {
			mode = ofEveryone
		}
		if err := l.file.chmod(mode); err != nil {
			return hint.Failed(err, "let egressd own "+l.file.held.Name())
		}
	}
	return ls.daemon.attachments.setModes(c)
}
