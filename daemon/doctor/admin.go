package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
)

// adminFindings are about the operator's listener: who else could come to it.
func adminFindings(c *config.Config) []Finding {
	const check = "admin"
	socket := c.AdminSocket()
	switch {
	case c.AdminName() == "":
		return nil
	case socket == "":
		return []Finding{tokenFinding(check, c)}
	}
	folder := filepath.Dir(socket)
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return []Finding{{Check: check, Says: folder + " is made by the next egressd serve"}}
	}
	user := userOf(socket, folder)
	if err := daemon.OwnFolder(folder, user); err != nil {
		return []Finding{{check, "the socket of listen.admin could be replaced: " + err.Error(), "chmod 700 " + folder + ", as the user of egressd serve"}}
	}
	info, err := os.Lstat(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{{Check: check, Says: socket + " is made by egressd serve, which does not run"}}
	case err != nil:
		return []Finding{{check, err.Error(), "egressd doctor as the user of egressd serve"}}
	case info.Mode()&fs.ModeSocket == 0 || info.Mode().Perm()&0o077 != 0:
		return []Finding{{check, fmt.Sprintf("%s is not a socket of its owner alone (%s)", socket, info.Mode()), "restart egressd serve, which makes it anew"}}
	}
	return []Finding{{Check: check, Says: fmt.Sprintf("%s is its owner's alone (uid %d)", socket, user)}}
}

// userOf is the user that egressd serve seems to be: this one, but where that is root whoever
// has the first of some files.
func userOf(paths ...string) int {
	if os.Geteuid() == 0 {
		for _, path := range paths {
			if info, err := os.Lstat(path); err == nil {
				return ownerOf(info)
			}
		}
	}
	return os.Geteuid()
}

func ownerOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// tokenFinding is about the token of a listener over TCP.
func tokenFinding(check string, c *config.Config) Finding {
	path, err := c.AdminToken()
	if err != nil {
		return Finding{check, err.Error(), "set HOME"}
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Finding{Check: check, Says: path + ", the token, is made by the next egressd serve"}
	case err != nil:
		return Finding{check, err.Error(), "egressd doctor as the user of egressd serve"}
	case ownerOf(info) != 0 && ownerOf(info) != userOf(filepath.Dir(path)):
		return Finding{check, fmt.Sprintf("another user has the token of listen.admin: %s belongs to uid %d", path, ownerOf(info)), "rm " + path + ", and restart egressd serve, which makes another"}
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0:
		return Finding{check, fmt.Sprintf("others may have the token of listen.admin: %s has mode %s", path, info.Mode()), "rm " + path + ", and restart egressd serve, which makes another"}
	}
	return Finding{Check: check, Says: c.File.Listen.Admin + " takes the token in " + path + "; whoever shares this loopback can try it (a Unix socket cannot be tried)"}
}
