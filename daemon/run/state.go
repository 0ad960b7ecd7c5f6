package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
)

// temporaryFolder is the folder of this user's runs that cannot write to the usual one. All share it, so that each hides
// the others' logs from its program.
func temporaryFolder() string {
	return filepath.Join(os.TempDir(), "egressd-"+strconv.Itoa(os.Geteuid()))
}

// makeTemporary makes temporaryFolder. It refuses one that other users can write to.
func makeTemporary() (string, error) {
	dir := temporaryFolder()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(owner.Uid) != os.Geteuid() || info.Mode().Perm() != 0o700 {
		return "", fmt.Errorf("%s is not a folder of this user alone", dir)
	}
	return dir, nil
}

// makeOwn makes a folder unless it is there and can be written.
func makeOwn(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return hostpaths.MayWrite(folder)
}

// runsFolder returns the folder of all runs. If the policy names no folder for the log or its keys, and the usual one
// cannot be written, temporaryFolder takes its place, which the run says: commands find the log by --dir.
func (r *runner) runsFolder(c *config.Config) (string, error) {
	runs, err := c.RunsDir()
	if err == nil {
		err = makeOwn(runs)
	}
	if err == nil {
		err = makeOwn(config.RunsIndexBeside(runs))
	}
	if err != nil {
		if c.File.Audit.Dir != "" {
			return "", hint.Failed(fmt.Errorf("the log of this run: %w", err), "set audit.dir in "+c.Path+" to a folder that egressd may write")
		}
		if err := r.useTemporary(err); err != nil {
			return "", err
		}
		runs = filepath.Join(r.temporary, "runs")
	}
	keys, err := c.KeyDir()
	if err == nil {
		err = makeOwn(keys)
	}
	if err != nil {
		if c.File.Audit.KeyDir != "" {
			return "", hint.Failed(fmt.Errorf("the keys of the log: %w", err), "set audit.key_dir in "+c.Path+" to a folder that egressd may write")
		}
		if err := r.useTemporary(err); err != nil {
			return "", err
		}
		c.File.Audit.KeyDir = filepath.Join(r.temporary, "log-keys")
	}
	r.moved = runs == filepath.Join(r.temporary, "runs")
	return runs, nil
}

// useTemporary has what cannot be written elsewhere go to temporaryFolder.
func (r *runner) useTemporary(why error) (err error) {
	if r.temporary != "" {
		return nil
	}
	if r.temporary, err = makeTemporary(); err != nil {
		return hint.Failed(fmt.Errorf("%w; and %w", why, err), "XDG_STATE_HOME=DIR egressd run -- COMMAND, with a folder that egressd may write")
	}
	fmt.Fprintf(r.talk, "egressd: warning: %s; the log of this run goes to %s, where it may not last\n", printable.Text(why.Error()), r.temporary)
	return nil
}
