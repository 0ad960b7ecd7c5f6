package run

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
)

// A secretCommand is a program of the policy that brings egressd a secret.
type secretCommand struct {
	where, key string // of the policy, for messages
	command    []string
	refreshed  bool // it is started again and again
}

func secretCommands(c *config.Config) (all []secretCommand) {
	for _, i := range c.File.Injections() {
		all = append(all, secretCommand{"rule " + i.Rule, "the command of inject", i.Inject.Command, i.Inject.Refresh > 0})
	}
	for i := range c.File.Credentials {
		spec := &c.File.Credentials[i].Spec
		for _, part := range spec.From.Parts() {
			all = append(all, secretCommand{"credential " + spec.Name, "the command of from", part.Command, spec.From.Refresh > 0})
		}
	}
	if p := c.File.Upstream.Proxy; p != nil {
		all = append(all, secretCommand{"upstream.proxy", "password_command", p.PasswordCommand, false})
	}
	return slices.DeleteFunc(all, func(s secretCommand) bool { return len(s.command) == 0 })
}

// checkCommands refuses commands of credentials that would be started while the program runs,
// outside of the sandbox: the program could have replaced the command, or changed what it reads.
// beside is set where an egressd serve starts them.
func (r *runner) checkCommands(c *config.Config, beside bool) error {
	for _, s := range secretCommands(c) {
		switch {
		case beside && r.apart == nil:
			return hint.Misused(fmt.Errorf("%s: the egressd at %s starts %s again while the program runs, and the program could change what that command reads", s.where, r.beside.socket, s.key),
				"egressd run --fs -- COMMAND, or a file in the place of the command in "+c.Path)
		case !beside && s.refreshed:
			return hint.Misused(fmt.Errorf("%s: refresh would start %s while the program runs, and the program could change that command or what it reads", s.where, s.key),
				"leave refresh out of "+c.Path+", with a credential that lasts as long as the run; or start egressd serve with listen.enter, then egressd run --fs -- COMMAND")
		case !filepath.IsAbs(s.command[0]):
			return hint.Misused(fmt.Errorf("%s: %s, %q, is looked up in PATH, where the program could put another one", s.where, s.key, s.command[0]),
				fmt.Sprintf("%s in place of %s in %s", absolute(s.command[0]), s.command[0], c.Path))
		}
	}
	return nil
}

// absolute is the path of a command that PATH has, or a likely path.
func absolute(command string) string {
	if path, err := exec.LookPath(command); err == nil && filepath.IsAbs(path) {
		return path
	}
	return filepath.Join("/usr/bin", filepath.Base(command))
}

// filesOf are the program of a command, and the files among its arguments, such as a script.
func filesOf(command []string) (files []string) {
	for _, word := range command {
		if filepath.IsAbs(word) && isFile(word) {
			files = append(files, word)
		}
	}
	return files
}
