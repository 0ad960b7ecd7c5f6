package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// sandboxName is the sandbox that a program is: one of those that the file lists, or
// any name where it lists none.
func sandboxName(c *config.Config, name string) (string, error) {
	if len(c.File.Sandboxes) > 0 {
		s, err := c.Sandbox(name)
		if err != nil {
			return "", hint.Misused(errors.New(err.Error()), "egressd run --name "+c.File.Sandboxes[0].Name+" -- COMMAND")
		}
		if policy.IsTemplate(c.EntryFor(s.Name).Name) {
			return "", hint.Misused(fmt.Errorf("%s is of a template, whose sandboxes are told by the proxy user; a program under run is not", s.Name), "egressd run --name NAME -- COMMAND, with a sandbox of its own in "+c.Path)
		}
		return s.Name, nil
	}
	if name == "" {
		if dir, err := os.Getwd(); err == nil && sandbox.PlainName(filepath.Base(dir)) {
			return filepath.Base(dir), nil
		}
		return sandbox.Default, nil
	}
	if !sandbox.PlainName(name) {
		return "", hint.Misused(fmt.Errorf("--name %s: a name has up to 64 letters, digits, dots, dashes and underscores", name), "egressd run --name build -- COMMAND")
	}
	return name, nil
}
