package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/hint"
)

// Find returns path, or the first policy file that exists. The working
// directory is not looked at: a sandbox may be able to write there.
func Find(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	places := Places()
	for _, p := range places {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			return p, nil // also one that cannot be read: what follows says so
		}
	}
	return "", hint.Misused(&NotFoundError{places}, "egressd init")
}

// Places are the paths of the policy file in the order in which they
// are looked for.
func Places() []string {
	return append(userPlaces("XDG_CONFIG_HOME", ".config", FileName), filepath.Join("/etc/egressd", FileName))
}

// userPlaces are the paths of name in egressd's own folder below one of the
// XDG base directories. A relative base is ignored, as the XDG specification
// has it.
func userPlaces(variable, fallback, name string) []string {
	var places []string
	if base := os.Getenv(variable); filepath.IsAbs(base) {
		places = append(places, filepath.Join(base, "egressd", name))
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		places = append(places, filepath.Join(home, fallback, "egressd", name))
	}
	return slices.Compact(places)
}

// AuditDir is where the audit log of this configuration is.
func (c *Config) AuditDir() (string, error) {
	if dir := c.File.Audit.Dir; dir != "" {
		return c.Relative(dir), nil
	}
	return DefaultAuditDir()
}

// KeyDir is where the keys are that sign the audit logs of this configuration.
func (c *Config) KeyDir() (string, error) {
	if dir := c.File.Audit.KeyDir; dir != "" {
		return c.Relative(dir), nil
	}
	return DefaultKeyDir(c.AuditDir)
}

// DefaultKeyDir is beside the place where the audit log is by default, even where
// the log is elsewhere, which a sandbox may be able to see. Where no folder for
// state is known it is beside the log.
func DefaultKeyDir(log func() (string, error)) (string, error) {
	beside, err := DefaultAuditDir()
	if err != nil {
		beside, err = log()
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(beside), "log-keys"), nil
}

// DefaultAuditDir is where the audit log is when no policy says otherwise:
// in the user's state folder, or in the system's for root.
func DefaultAuditDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return "/var/lib/egressd/audit", nil
	}
	places := userPlaces("XDG_STATE_HOME", ".local/state", "audit")
	if len(places) == 0 {
		return "", hint.Misused(errors.New("neither XDG_STATE_HOME nor HOME is set"), "egressd log --dir DIR, or set audit.dir in the policy")
	}
	return places[0], nil
}

// Relative reads a path that is relative to the folder of the configuration.
func (c *Config) Relative(path string) string { return beside(c.Path, path) }

// beside reads a path that is relative to the folder of a file.
func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// CADir is where the certificate authority of this configuration is.
func (c *Config) CADir() (string, error) {
	if dir := c.File.TLS.CADir; dir != "" {
		return c.Relative(dir), nil
	}
	return DefaultCADir()
}

// DefaultCADir is beside the audit log where no policy says otherwise.
func DefaultCADir() (string, error) {
	log, err := DefaultAuditDir()
	if err != nil {
		return "", hint.Misused(err, "set tls.ca_dir in the policy, or HOME")
	}
	return filepath.Join(filepath.Dir(log), "ca"), nil
}

// OperatorToken is the file of the token of the operator's listener, where that is over TCP.
// Each address has its own, so that one daemon does not replace another's.
func (c *Config) OperatorToken() (string, error) {
	at, err := netip.ParseAddrPort(c.File.Listen.Admin)
	if err != nil {
		return "", err
	}
	dir, err := OperatorTokens()
	return filepath.Join(dir, fmt.Sprintf("%s-%d.token", at.Addr(), at.Port())), err
}

// OperatorTokens is the folder of such files, with nothing else in it: beside the place where
// the audit log is by default, even where the log is elsewhere, which a sandbox may be
// able to see.
func OperatorTokens() (string, error) {
	log, err := DefaultAuditDir()
	if err != nil {
		return "", hint.Misused(errors.New("neither XDG_STATE_HOME nor HOME is set, so there is no folder for the token of listen.admin"), "set HOME, or listen.admin to a Unix socket, which needs none")
	}
	return filepath.Join(filepath.Dir(log), "admin"), nil
}

// OperatorsNow are where the operator's listeners of this user are, of any daemon: each that is
// over TCP has its token in the folder of tokens for as long as it is there.
func OperatorsNow() (all []netip.AddrPort) {
	dir, err := OperatorTokens()
	if err != nil {
		return nil
	}
	files, _ := os.ReadDir(dir) // most often there is none
	for _, f := range files {
		if at, ok := operatorOf(f.Name()); ok {
			all = append(all, at)
		}
	}
	return all
}

// operatorOf is the address that the token in a file of that name is for.
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

// RunsDir is where the folders of runs are: beside the log of the daemon, which
// may be writing it.
func (c *Config) RunsDir() (string, error) {
	dir, err := c.AuditDir()
	if err != nil {
		return "", err
	}
	return RunsBeside(dir), nil
}

// RunsBeside is the folder of runs beside the folder of a log.
func RunsBeside(dir string) string { return filepath.Join(filepath.Dir(dir), "runs") }

// RunTime is how the name of a run begins: when it began, in UTC.
const RunTime = "20060102-150405.000"

// RunDir finds the folder of a run: "last", or its id.
func RunDir(runs, id string) (string, error) {
	entries, err := os.ReadDir(runs)
	if err != nil || len(entries) == 0 {
		return "", hint.Failed(fmt.Errorf("there is no run in %s", runs), "egressd run -- COMMAND")
	}
	if id == "last" {
		return filepath.Join(runs, entries[len(entries)-1].Name()), nil
	}
	for _, e := range entries {
		if e.Name() == id {
			return filepath.Join(runs, id), nil
		}
	}
	return "", hint.Failed(fmt.Errorf("there is no run %s in %s", id, runs), "egressd log --run last")
}

// RunsIndexBeside is the folder of the index, beside that of the runs.
func RunsIndexBeside(runs string) string { return filepath.Join(filepath.Dir(runs), "runs-index") }

// BundlesDir is where the last good bundles are kept.
func BundlesDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return "/var/lib/egressd/bundles", nil
	}
	places := userPlaces("XDG_STATE_HOME", ".local/state", "bundles")
	if len(places) == 0 {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is set, so there is no folder to keep bundles in")
	}
	return places[0], nil
}
