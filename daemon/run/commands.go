package run

import (
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
)

// checkCommands refuses commands of credentials that would be started while the program runs,
// outside of the sandbox: the program could have replaced the command, or changed what it reads.
// beside is set where an egressd serve starts them.
func (r *runner) checkCommands(c *config.Config, beside bool) error {
	for _, i := range c.File.Injections() {
		command := i.Inject.Command
		switch {
		case len(command) == 0:
		case beside && r.apart == nil:
			return hint.Misused(fmt.Errorf("rule %s: the egressd at %s starts the command of inject again while the program runs, and the program could change what that command reads", i.Rule, r.beside.socket),
				"egressd run --fs -- COMMAND, or file in the place of command in "+c.Path)
		case !beside && i.Inject.Refresh > 0:
			return hint.Misused(fmt.Errorf("rule %s: refresh would start the command of inject while the program runs, and the program could change that command or what it reads", i.Rule),
				"leave refresh out of "+c.Path+", with a credential that lasts as long as the run; or start egressd serve with listen.enter, then egressd run --fs -- COMMAND")
		case !filepath.IsAbs(command[0]):
			return hint.Misused(fmt.Errorf("rule %s: the command of inject, %q, is looked up in PATH, where the program could put another one", i.Rule, command[0]),
				fmt.Sprintf("command: [%s, …] in %s", absolute(command[0]), c.Path))
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
