package run

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/sandbox/jail"
)

const (
	leftLooks = 10 * time.Millisecond  // between two looks at what the program has left behind
	leftAlone = 100 * time.Millisecond // in which it may end by itself
	leftGrace = 5 * time.Second        // from SIGTERM to SIGKILL
	leftNames = 5                      // that are printed
)

// endLeft waits for what the program has left behind with Options.Wait, and else ends it: by SIGTERM, and after leftGrace
// by SIGKILL. A signal to egressd ends the wait. Nothing of it runs when endLeft returns, so that it changes no file
// that egressd looks at afterwards.
func (r *runner) endLeft(s *signals) {
	defer r.jail.KillLeft() // also where a process is not seen, because each lives too shortly
	if r.awaitLeft(s, time.After(leftAlone)) {
		return
	}
	left := r.jail.Left()
	if r.options.Wait {
		r.talk.Say(fmt.Sprintf("egressd: waiting for what the program left behind: %s (Ctrl-C ends it)\n", namesOf(left)))
		if r.awaitLeft(s, nil) {
			return
		}
		left = r.jail.Left()
	}
	for _, p := range left {
		_ = syscall.Kill(p.PID, syscall.SIGTERM)
		_ = syscall.Kill(p.PID, syscall.SIGCONT) // one that is stopped would not see it
	}
	how := "ended"
	if !r.awaitLeft(s, time.After(leftGrace)) {
		how = "killed"
	}
	next := ""
	if !r.options.Wait {
		next = "; --wait keeps the sandbox until they end"
	}
	fmt.Fprintf(r.talk, "egressd: %s what the program left behind: %s%s\n", how, namesOf(left), next)
}

// awaitLeft reports whether all that the program has left behind ends before over, and before a signal arrives.
func (r *runner) awaitLeft(s *signals, over <-chan time.Time) bool {
	for len(r.jail.Left()) > 0 {
		select {
		case <-over:
			return false
		case got := <-s.arrived:
			if got != syscall.SIGWINCH {
				return false
			}
		case <-time.After(leftLooks):
		}
	}
	return true
}

// namesOf names processes, those of one name together.
func namesOf(all []jail.Remnant) string {
	count := map[string]int{}
	var names []string
	for _, p := range all {
		if count[p.Name]++; count[p.Name] == 1 {
			names = append(names, p.Name)
		}
	}
	var words []string
	for _, name := range names[:min(len(names), leftNames)] {
		word := printable.Text(name)
		if n := count[name]; n > 1 {
			word += fmt.Sprintf(" ×%d", n)
		} else if i := slices.IndexFunc(all, func(p jail.Remnant) bool { return p.Name == name }); i >= 0 {
			word += fmt.Sprintf(" (pid %d)", all[i].PID)
		}
		words = append(words, word)
	}
	if more := len(names) - leftNames; more > 0 {
		words = append(words, quantity.Plural(more, "other"))
	}
	return strings.Join(words, ", ")
}
