package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/internal/hint"
)

// Find returns path, or the first existing policy file of the search path. It never looks in the working
// directory, which a sandbox may be able to write.
func Find(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	paths := SearchPath()
	for _, p := range paths {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			return p, nil // an unreadable file counts; Read reports the error
		}
	}
	return "", hint.Misused(&NotFoundError{paths}, "egressd init")
}

// SearchPath returns the paths of the policy file in search order.
func SearchPath() []string {
	return append(userPaths("XDG_CONFIG_HOME", ".config", FileName), filepath.Join("/etc/egressd", FileName))
}

// userPaths returns the paths of name in egressd's folder below an XDG base directory. Relative base
// directories are ignored, as the XDG specification demands.
func userPaths(variable, fallback, name string) []string {
	var paths []string
	if base := os.Getenv(variable); filepath.IsAbs(base) {
		paths = append(paths, filepath.Join(base, "egressd", name))
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		paths = append(paths, filepath.Join(home, fallback, "egressd", name))
	}
	return slices.Compact(paths)
}

// AuditDir returns the folder of the audit log.
func (c *Config) AuditDir() (string, error) {
	if dir := c.File.Audit.Dir; dir != "" {
		return c.Relative(dir), nil
	}
	return DefaultAuditDir()
}

// KeyDir returns the folder of the keys that sign the audit log.
func (c *Config) KeyDir() (string, error) {
	if dir := c.File.Audit.KeyDir; dir != "" {
		return c.Relative(dir), nil
	}
	return DefaultKeyDir(c.AuditDir)
}

// DefaultKeyDir returns a folder beside the default audit log, even if the log is elsewhere, because a
// sandbox may be able to read there. Without a state folder it is beside the log.
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

// DefaultAuditDir returns the default folder of the audit log: in the user's state folder, or in the
// system's for root.
func DefaultAuditDir() (string, error) {
	dir, err := stateFolder("audit")
	if err != nil {
		return "", hint.Misused(err, "egressd log --dir DIR, or set audit.dir in the policy")
	}
	return dir, nil
}

// stateFolder returns a folder of the user's state, or of the system's for root.
func stateFolder(name string) (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return filepath.Join(systemState, name), nil
	}
	if paths := userPaths("XDG_STATE_HOME", ".local/state", name); len(paths) > 0 {
		return paths[0], nil
	}
	return "", errors.New("neither XDG_STATE_HOME nor HOME is set")
}

// StateFolders returns the folders of the user's state: the one that counts, and the one without XDG_STATE_HOME.
func StateFolders() []string { return userPaths("XDG_STATE_HOME", ".local/state", "") }

const systemState = "/var/lib/egressd"

// Relative resolves a path against the folder of the configuration.
func (c *Config) Relative(path string) string { return beside(c.Path, path) }

// beside resolves a path against the folder of a file.
func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// CADir returns the folder of the certificate authority.
func (c *Config) CADir() (string, error) {
	if dir := c.File.TLS.CADir; dir != "" {
		return c.Relative(dir), nil
	}
	return DefaultCADir()
}

// DefaultCADir returns the default folder of the CA, beside the audit log.
func DefaultCADir() (string, error) {
	log, err := DefaultAuditDir()
	if err != nil {
		return "", hint.Misused(err, "set tls.ca_dir in the policy, or HOME")
	}
	return filepath.Join(filepath.Dir(log), "ca"), nil
}

// runtimeVariable names the folder of a user's sockets. [lookupVariable] knows it without the environment, too.
const runtimeVariable = "XDG_RUNTIME_DIR"

// lookupVariable returns the value of a variable in the policy file. XDG_RUNTIME_DIR is missing under cron, sudo and
// in containers, so lookupVariable returns [runtimeFolder] for it, which the daemon and its user's commands share.
func lookupVariable(name string) (string, bool) {
	value, ok := os.LookupEnv(name)
	if name == runtimeVariable && value == "" {
		value = runtimeFolder()
		ok = value != ""
	}
	return value, ok
}

// runtimeFolder returns the user's folder below /run/user, if there is one, and else one beside the default log. It
// is /run for root. It returns "" without a home.
func runtimeFolder() string {
	if os.Geteuid() == 0 {
		return "/run"
	}
	usual := fmt.Sprintf("/run/user/%d", os.Geteuid())
	if info, err := os.Stat(usual); err == nil && info.IsDir() {
		return usual
	}
	log, err := DefaultAuditDir()
	if err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(log), "sockets")
}

// RunsDir returns the folder of all runs. It is beside the daemon's log, since the daemon may be writing
// that.
func (c *Config) RunsDir() (string, error) {
	dir, err := c.AuditDir()
	if err != nil {
		return "", err
	}
	return RunsBeside(dir), nil
}

// RunsBeside returns the folder of runs beside the folder of a log.
func RunsBeside(dir string) string { return filepath.Join(filepath.Dir(dir), "runs") }

// RunTime is the layout of the start time, in UTC, at the beginning of a run's name.
const RunTime = "20060102-150405.000"

// RunDir returns the folder of a run, by its id or "last".
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
	return "", hint.Failed(fmt.Errorf("there is no run %s in %s", id, runs), "egressd log --runs")
}

// RunsIndexBeside returns the folder of the index beside that of the runs.
func RunsIndexBeside(runs string) string { return filepath.Join(filepath.Dir(runs), "runs-index") }

// BundlesDir returns the folder of the last good bundles.
func BundlesDir() (string, error) {
	dir, err := stateFolder("bundles")
	if err != nil {
		return "", fmt.Errorf("%w, so there is no folder to keep bundles in", err)
	}
	return dir, nil
}
