package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/sandbox"
)

// tellsNetworksApart is replaced by tests.
var tellsNetworksApart = sandbox.TellsNetworksApart

// socketPathMost is how long the path of a Unix socket may be, see unix(7).
const socketPathMost = 107

// openAdminSocket opens the socket of the operator's listener, which only its owner may
// connect to, in a folder in which nobody else can put another in its place.
func (ls *listeners) openAdminSocket(path string) (net.Listener, error) {
	if !filepath.IsAbs(path) { // a name without a file, as @NAME is, has no owner
		return nil, fmt.Errorf("%q is no absolute path", path)
	}
	if err := tellsNetworksApart(); err != nil {
		return nil, fmt.Errorf("this kernel does not tell networks apart, as Linux 5.14 does, so that sandboxes of this user could ask there (%w); 127.0.0.1:9464 has a token", err)
	}
	if len(path) > socketPathMost {
		return nil, fmt.Errorf("the path has more than %d bytes; write a shorter one at listen.admin", socketPathMost)
	}
	path = filepath.Clean(path)
	var l boundListener
	var err error
	if taken := ls.daemon.tailor.handed.stream(func(a net.Addr) bool { u, ok := a.(*net.UnixAddr); return ok && u.Name == path }); taken != nil {
		l = boundListener{Listener: taken, name: path}
		if err = OwnFolder(filepath.Dir(path), os.Geteuid()); err == nil {
			err = onlyOwners(path)
		}
	} else {
		if err = makeOwnFolder(filepath.Dir(path)); err == nil {
			err = OwnFolder(filepath.Dir(path), os.Geteuid())
		}
		if err == nil {
			l, err = openSocket("unix", path, path, ofOwner)
		}
	}
	if err == nil {
		err = ls.screen(&l)
	}
	if err != nil { // and no listener that is nil inside
		if l.Listener != nil {
			l.Close()
		}
		return nil, err
	}
	return l, nil
}

// onlyOwners refuses a socket file to which others may connect.
func onlyOwners(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 || info.Mode().Perm()&^ofOwner != 0 || !isOf(info, os.Geteuid()) {
		return fmt.Errorf("others may connect to it (%s); SocketMode=0600 and SocketUser= in the socket unit", info.Mode())
	}
	return nil
}

// makeOwnFolder makes a folder, and those above it, where there are none. Others may pass
// through those above: proxy sockets may lie beside.
func makeOwnFolder(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return MakeFolder(path)
}

// linksMost is how many links may lead to a folder, as in Linux.
const linksMost = 40

// OwnFolder refuses a folder that others than root and the user can write. It refuses a path with a link of another user,
// too.
func OwnFolder(path string, user int) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is no absolute path", path)
	}
	at, rest := "/", strings.Split(path, "/")
	for links := 0; ; rest = rest[1:] {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		if err := onlyOfUser(at, info, user, len(rest) > 0); err != nil {
			return err
		}
		for len(rest) > 0 && (rest[0] == "" || rest[0] == ".") {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return onlyOfUser(at, info, user, false)
		}
		next := filepath.Join(at, rest[0]) // also of "..": at is no link
		if info, err = os.Lstat(next); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if !isOf(info, user) {
			return fmt.Errorf("%s is a link of another user", next)
		}
		to, err := os.Readlink(next)
		if links++; err != nil || links > linksMost {
			return errors.Join(fmt.Errorf("too many links lead to %s", path), err)
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = slices.Concat(rest[:1], strings.Split(to, "/"), rest[1:])
	}
}

// onlyOfUser refuses a folder that is another user's, or in which others can put anything. Of
// those above what is looked for, others may write in sticky ones: they cannot replace
// what is the user's there.
func onlyOfUser(path string, info fs.FileInfo, user int, above bool) error {
	switch {
	case !isOf(info, user):
		return fmt.Errorf("%s belongs to another user", path)
	case info.Mode().Perm()&0o022 != 0 && !(above && info.Mode()&fs.ModeSticky != 0):
		return fmt.Errorf("others may write in %s; give it a folder of its own, with mode 0700", path)
	}
	return nil
}

// isOf reports whether a file belongs to root or a user.
func isOf(info fs.FileInfo, user int) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && (owner.Uid == 0 || int64(owner.Uid) == int64(user))
}

// tokenStart tells those who look for secrets what a token is. 260 bits follow.
const tokenStart = "egressd-admin-"

// makeToken makes a token in place of the one of an earlier process: whoever had the port
// since may have been shown that one.
func makeToken(path string) (string, error) {
	token := tokenStart + rand.Text() + rand.Text()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return token, durable.Replace(path, []byte(token+"\n"), 0o600)
}
