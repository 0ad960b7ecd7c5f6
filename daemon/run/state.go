package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
)

// temporaryPrefix is how the folders of this user's runs begin that cannot write to the usual one. Each run has its own,
// which no earlier program can have made.
func temporaryPrefix() string { return "egressd-" + strconv.Itoa(os.Geteuid()) + "-" }

// temporaryFolders are those that there are by now. A symbolic link of an earlier program could lead to a folder that others need.
func temporaryFolders() []string {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix()+"*"))
	return slices.DeleteFunc(dirs, func(dir string) bool { return !isPlainFolder(dir) })
}

// makeOwn makes a folder unless it is there and can be written.
func makeOwn(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return hostpaths.MayWrite(folder)
}

// runsFolder returns the folder of all runs. If the policy names no folder for the log or its keys, and the usual one
// cannot be written, a temporary one takes its place, which the run says: commands find the log by --dir.
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

// useTemporary has what cannot be written elsewhere go to a temporary folder.
func (r *runner) useTemporary(why error) (err error) {
	if r.temporary != "" {
		return nil
	}
	if r.temporary, err = os.MkdirTemp("", temporaryPrefix()); err != nil {
		return hint.Failed(fmt.Errorf("%w; and %w", why, err), "XDG_STATE_HOME=DIR egressd run -- COMMAND, with a folder that egressd may write")
	}
	fmt.Fprintf(r.talk, "egressd: warning: %s; the log of this run goes to %s, where it may not last\n", printable.Text(why.Error()), r.temporary)
	return nil
}
