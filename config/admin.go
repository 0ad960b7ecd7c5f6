package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
)

// AdminAt returns the TCP addresses at which only operators may connect, as the file has them: listen.admin, notify.answers and
// metrics.listen.
func (c *Config) AdminAt() (all []netip.AddrPort) {
	for _, text := range []string{c.File.Listen.Admin, c.File.Notify.Answers, c.File.Metrics.Listen} {
		if a, err := netip.ParseAddrPort(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// AdminName returns the operator's listener as listen.admin names it, and "" if there is none. Without listen.admin it is
// the first of [Config.DefaultAdminSockets].
func (c *Config) AdminName() string {
	switch name := c.File.Listen.Admin; name {
	case file.NoAdmin:
		return ""
	case "":
		if all := c.DefaultAdminSockets(); len(all) > 0 {
			return file.UnixListener + all[0]
		}
		return ""
	default:
		return name
	}
}

// AdminSocket returns the path of the operator's Unix socket, or "".
func (c *Config) AdminSocket() string {
	path, unix := strings.CutPrefix(c.AdminName(), file.UnixListener)
	if !unix {
		return ""
	}
	return path
}

// DefaultAdminSockets returns the paths of the operator's socket of a policy file without listen.admin. The daemon listens
// at the first path. Commands try the other paths, too: the system's, and root tries that of the file's owner.
func (c *Config) DefaultAdminSockets() (all []string) {
	name := adminSocketName(c.Path)
	dirs := userPaths("XDG_STATE_HOME", ".local/state", adminFolder)
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		dirs = slices.Insert(dirs, 0, systemAdminSockets)
	}
	for _, dir := range append(append(dirs, systemAdminSockets), adminSocketsOfOwner(c.Path)...) {
		if path := filepath.Join(dir, name); !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all
}

// MayAskAdmin reports whether listen.admin names a listener, or a default socket exists.
func (c *Config) MayAskAdmin() bool {
	if c.File.Listen.Admin != "" {
		return c.AdminName() != ""
	}
	return slices.ContainsFunc(c.DefaultAdminSockets(), func(path string) bool { _, err := os.Lstat(path); return err == nil })
}

const (
	adminFolder        = "admin" // in egressd's folder of state
	systemAdminSockets = systemState + "/" + adminFolder
)

// adminSocketsOfOwner returns, for root, the folder of default sockets of the user that owns a policy file.
func adminSocketsOfOwner(path string) []string {
	info, err := os.Stat(path)
	if os.Geteuid() != 0 || err != nil {
		return nil
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || s.Uid == 0 {
		return nil
	}
	owner, err := user.LookupId(fmt.Sprint(s.Uid))
	if err != nil || !filepath.IsAbs(owner.HomeDir) {
		return nil
	}
	return []string{filepath.Join(owner.HomeDir, ".local/state/egressd", adminFolder)}
}

// adminSocketName returns the file name of the default socket for a policy file. The last element of the path may be a
// symbolic link that changes, as in a ConfigMap of Kubernetes, so only the folder is resolved.
func adminSocketName(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:6]) + ".sock"
}

// AdminToken returns the token file of the operator's TCP listener. Each address has its own file, so
// that daemons do not overwrite each other's tokens.
func (c *Config) AdminToken() (string, error) {
	at, err := netip.ParseAddrPort(c.File.Listen.Admin)
	if err != nil {
		return "", err
	}
	dir, err := AdminTokens()
	return filepath.Join(dir, fmt.Sprintf("%s-%d.token", at.Addr(), at.Port())), err
}

// AdminTokens returns the folder that holds only token files and default sockets. It is beside the default audit log, even
// if the log is elsewhere, because a sandbox may be able to read there.
func AdminTokens() (string, error) {
	log, err := DefaultAuditDir()
	if err != nil {
		return "", hint.Misused(errors.New("neither XDG_STATE_HOME nor HOME is set, so there is no folder for the token of listen.admin"), "set HOME, or listen.admin to a Unix socket, which needs none")
	}
	return filepath.Join(filepath.Dir(log), adminFolder), nil
}

// AdminListenersNow returns the TCP addresses of the operator's listeners of all daemons of this user. A
// listener has a token file while it exists.
func AdminListenersNow() (all []netip.AddrPort) {
	dir, err := AdminTokens()
	if err != nil {
		return nil
	}
	files, _ := os.ReadDir(dir) // the folder rarely exists
	for _, f := range files {
		if at, ok := operatorOf(f.Name()); ok {
			all = append(all, at)
		}
	}
	return all
}

// operatorOf returns the address in the name of a token file.
func operatorOf(name string) (netip.AddrPort, bool) {
	name, ok := strings.CutSuffix(name, ".token")
	dash := strings.LastIndexByte(name, '-')
	if !ok || dash < 0 {
		return netip.AddrPort{}, false
	}
	addr, err := netip.ParseAddr(name[:dash])
	port, bad := strconv.ParseUint(name[dash+1:], 10, 16)
	return netip.AddrPortFrom(addr, uint16(port)), err == nil && bad == nil
}
