package run

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/printable"
)

// checkPolicyInTree refuses a policy that an earlier program could have written. If the policy lies in the working tree, it is left
// alone while this program runs, so that git can replace it: policyEnd is set. The policy stays fixed if a daemon reads it again, or
// if the program has no PID namespace, so that what it leaves behind goes on.
func (r *runner) checkPolicyInTree(c *config.Config) error {
	r.policyEnd = nil
	if c.NoFile {
		return nil
	}
	if err := config.CheckTreePolicy(c.Path, c.Text); err != nil {
		return err
	}
	notes, err := config.OpenTreePolicies()
	if err != nil {
		return nil // so there is none, and the policy stays fixed
	}
	r.hidden = append(r.hidden, string(notes))
	if socket := c.AdminSocket(); socket != "" {
		if _, err := os.Lstat(socket); err == nil {
			return nil
		}
	}
	if !isInWorkingTree(c.Path) || !r.jail.OwnProcesses() { // else what the program leaves behind could change it later
		return nil
	}
	r.policyEnd, _ = notes.Begin(c.Path, c.Text)
	return nil
}

// isInWorkingTree reports whether a file lies in the working tree that holds the working directory.
func isInWorkingTree(path string) bool {
	work, err := os.Getwd()
	if err != nil {
		return false
	}
	top := workingTree(filepath.Dir(hostpaths.Real(path)))
	return top != "" && top == workingTree(hostpaths.Real(work))
}

// sayPolicyInTree says what git cannot do where the policy lies in the working tree and is fixed.
func (r *runner) sayPolicyInTree() {
	if r.policyEnd != nil || r.Config.NoFile || !isInWorkingTree(r.Path) {
		return
	}
	why := "egressd serve reads it"
	if !r.jail.OwnProcesses() {
		why = "what the program leaves behind could change it later"
	}
	fmt.Fprintf(r.talk, "egressd: warning: %s lies in the working tree, and %s: until the program ends, git checkout and git stash cannot replace it\n", printable.Text(r.Path), why)
}

// sayPolicyChanged says that the policy in the working tree is another one now.
func (r *runner) sayPolicyChanged() {
	if r.policyEnd != nil && !r.policyEnd() {
		fmt.Fprintf(r.talk, "egressd: warning: %s was changed while the program ran: look at it; the next run asks for egressd policy trust --yes %s\n", printable.Text(r.Path), printable.Text(r.Path))
	}
}
