package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
)

// findConfig returns path, or the first policy file that exists. The working
// directory is not looked at: a sandbox may be able to write there.
func findConfig(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	places := configPlaces()
	for _, p := range places {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			return p, nil // also one that cannot be read: what follows says so
		}
	}
	return "", cli.Misused(&noConfigError{places}, "egressd init")
}

// configPlaces are the paths of the policy file in the order in which they
// are looked for.
func configPlaces() []string {
	return append(userPlaces("XDG_CONFIG_HOME", ".config", configName), filepath.Join("/etc/egressd", configName))
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

// auditDir is where the audit log of this configuration is.
func (c *config) auditDir() (string, error) {
	if dir := c.file.Audit.Dir; dir != "" {
		return c.relative(dir), nil
	}
	return defaultAuditDir()
}

// keyDir is where the keys are that sign the audit logs of this configuration.
func (c *config) keyDir() (string, error) {
	if dir := c.file.Audit.KeyDir; dir != "" {
		return c.relative(dir), nil
	}
	return defaultKeyDir(c.auditDir)
}

// defaultKeyDir is beside the place where the audit log is by default, even where
// the log is elsewhere, which a sandbox may be able to see. Where no folder for
// state is known it is beside the log.
func defaultKeyDir(log func() (string, error)) (string, error) {
	beside, err := defaultAuditDir()
	if err != nil {
		beside, err = log()
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(beside), "log-keys"), nil
}

// defaultAuditDir is where the audit log is when no policy says otherwise:
// in the user's state folder, or in the system's for root.
func defaultAuditDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return "/var/lib/egressd/audit", nil
	}
	places := userPlaces("XDG_STATE_HOME", ".local/state", "audit")
	if len(places) == 0 {
		return "", cli.Misused(errors.New("neither XDG_STATE_HOME nor HOME is set"), "egressd log --dir DIR, or set audit.dir in the policy")
	}
	return places[0], nil
}

// relative reads a path that is relative to the folder of the configuration.
func (c *config) relative(path string) string { return beside(c.path, path) }

// beside reads a path that is relative to the folder of a file.
func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// caDir is where the certificate authority of this configuration is.
func (c *config) caDir() (string, error) {
	if dir := c.file.TLS.CADir; dir != "" {
		return c.relative(dir), nil
	}
	return defaultCADir()
}

// defaultCADir is beside the audit log where no policy says otherwise.
func defaultCADir() (string, error) {
	log, err := defaultAuditDir()
	if err != nil {
		return "", cli.Misused(err, "set tls.ca_dir in the policy, or HOME")
	}
	return filepath.Join(filepath.Dir(log), "ca"), nil
}

// runsDir is where the folders of runs are: beside the log of the daemon, which
// may be writing it.
func (c *config) runsDir() (string, error) {
	dir, err := c.auditDir()
	if err != nil {
		return "", err
	}
	return runsBeside(dir), nil
}

func runsBeside(dir string) string { return filepath.Join(filepath.Dir(dir), "runs") }

// runTime is how the name of a run begins: when it began, in UTC.
const runTime = "20060102-150405.000"

// runDir finds the folder of a run: "last", or its id.
func runDir(runs, id string) (string, error) {
	entries, err := os.ReadDir(runs)
	if err != nil || len(entries) == 0 {
		return "", cli.Failed(fmt.Errorf("there is no run in %s", runs), "egressd run -- COMMAND")
	}
	if id == "last" {
		return filepath.Join(runs, entries[len(entries)-1].Name()), nil
	}
	for _, e := range entries {
		if e.Name() == id {
			return filepath.Join(runs, id), nil
		}
	}
	return "", cli.Failed(fmt.Errorf("there is no run %s in %s", id, runs), "egressd log --run last")
}

// runsIndexBeside is the folder of the index, beside that of the runs.
func runsIndexBeside(runs string) string { return filepath.Join(filepath.Dir(runs), "runs-index") }

// bundlesDir is where the last good bundles are kept.
func bundlesDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return "/var/lib/egressd/bundles", nil
	}
	places := userPlaces("XDG_STATE_HOME", ".local/state", "bundles")
	if len(places) == 0 {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is set, so there is no folder to keep bundles in")
	}
	return places[0], nil
}
