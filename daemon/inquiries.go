package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
)

// allowances answer sandboxes what they may reach, by the policy in force. They are safe for concurrent use.
type allowances struct {
	daemon *Daemon

	mu        sync.Mutex // guards what follows
	of        *inForce
	bySandbox map[string][]egress.Allowance
}

// Bounds of allowances.
const (
	allowancesKept   = 256 // sandboxes
	allowancesWithin = 200 * time.Millisecond
)

// to returns the rules by which a sandbox may reach something.
func (a *allowances) to(who *policy.Sandbox) []egress.Allowance {
	now := a.daemon.current.Load()
	if now == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of != now || len(a.bySandbox) >= allowancesKept {
		a.of, a.bySandbox = now, map[string][]egress.Allowance{}
	}
	all, known := a.bySandbox[who.Name]
	if !known {
		all = now.allowances(who)
		a.bySandbox[who.Name] = all
	}
	return all
}

// allowances leaves out lines that open nothing to who, as far as that can be told in time.
func (n *inForce) allowances(who *policy.Sandbox) (all []egress.Allowance) {
	c := n.config
	lines, err := c.Lines()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), allowancesWithin)
	defer cancel()
	counts := func(effect policy.Verdict, sandbox string, p policy.Pattern) bool {
		if effect != policy.Allow && effect != policy.Ask || sandbox != "" && sandbox != who.Name && sandbox != who.Template {
			return false
		}
		if !n.policy.AnswersAtOnce() {
			return true
		}
		opens, r := n.policy.Opens(ctx, policy.Opening{Pattern: p}, *who)
		return opens || r.Asked != "" || ctx.Err() != nil
	}
	for i := range lines {
		l := &lines[i]
		if !counts(l.Effect, l.Sandbox, l.Pattern) {
			continue
		}
		what := l.Pattern.String()
		if l.Words != "" {
			what += ", if " + l.Words
		}
		all = append(all, egress.Allowance{Effect: l.Effect.Action(), What: what, Rule: l.ID, Layer: l.Layer})
	}
	for _, g := range n.grants {
		if counts(g.rule.Effect, g.Sandbox, g.rule.Pattern) {
			all = append(all, egress.Allowance{Effect: "allow", What: g.Text() + ", until " + g.Until.Format(time.RFC3339), Rule: g.rule.ID, Layer: policy.User})
		}
	}
	for i := range c.HostLists {
		if l := &c.HostLists[i]; l.Effect == policy.Allow || l.Effect == policy.Ask {
			all = append(all, egress.Allowance{Effect: l.Effect.Action(), What: quantity.Plural(l.Hosts.Len(), "pattern") + " of a list", Rule: l.ID, Layer: policy.User})
		}
	}
	if len(c.Parts) > 0 {
		all = append(all, egress.Allowance{Effect: "allow", What: "what the policies in Rego allow; ask for one request to find out", Rule: "rego", Layer: c.Parts[0].Options.Layer})
	}
	const open = "every public host that no rule denies"
	if c.File.Default == policy.Allow {
		all = append(all, egress.Allowance{Effect: "allow", What: open, Rule: "default", Layer: policy.User})
	} else if n.policy.Observes(who) {
		all = append(all, egress.Allowance{Effect: "allow", What: open, Rule: policy.LearnRule, Layer: policy.User})
	}
	return all
}
