package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"
)

// withinMost is how many grants one sandbox may have by itself at a time.
const withinMost = 16

// ApproveWithin answers what sandboxes ask for themselves, if the boundary of approve_within allows it, until ctx is done. Everything
// else waits for a person, or is rejected where no person can answer. A question is tried again when another policy or boundary is in force.
func (d *Daemon) ApproveWithin(ctx context.Context) {
	tried := map[string]string{} // the policy and the boundary by which a question was tried
	for version := ^uint64(0); ctx.Err() == nil; {
		all := d.Gate.Approvals.Questions(ctx, version)
		version = all.Version
		now := make(map[string]string, len(all.Questions))
		for i := range all.Questions {
			q := &all.Questions[i]
			if q.Pattern == "" || q.State != string(approvals.Pending) {
				continue
			}
			if now[q.ID] = d.Gate.Digest() + " " + d.reloads.boundary.Load().Digest(); tried[q.ID] != now[q.ID] {
				d.answerWithin(ctx, q)
			}
		}
		tried = now
	}
}

// answerWithin grants what a question asks for, if that is within the boundary.
func (d *Daemon) answerWithin(ctx context.Context, q *egress.Question) {
	bounded := boundedGranting{grantsAPI{&d.grants}}
	who := admin.Operator{Rule: "approve_within"}
	ctx, cancel := context.WithTimeout(ctx, withinPatience)
	defer cancel()
	said := approvals.Answer{Yes: true, Lasts: approvals.ApprovedFor, First: true}
	if bounded.prove(ctx, who, admin.AccessGrant(q, approvals.ApprovedFor)) != nil {
		if d.Gate.Approvals.IsOpen() || ctx.Err() != nil {
			return
		}
		said = approvals.Answer{Lasts: approvals.RejectedFor, First: true}
	}
	asked := &admin.Asked{Gate: d.Gate, Grants: bounded, Complain: d.Complain}
	if _, err := asked.Answer(ctx, who, q, said); err != nil && ctx.Err() == nil { // it is recorded, and a person may answer
		d.Complain(fmt.Errorf("approve_within: question %s: %w", q.ID, err))
	}
}

// withinPatience bounds how long a question may take. A reload may be under way.
const withinPatience = 30 * time.Second

// proveWithin bounds for how long a comparison with the boundary holds up everything else that changes the policy.
const proveWithin = time.Second

// boundedGranting is [grantsAPI] for what the boundary allows alone. The goroutine that reloads compares and grants in one
// turn, so no other policy or boundary can come in between.
type boundedGranting struct{ grantsAPI }

// Grant implements [admin.Granting].
func (gs boundedGranting) Grant(ctx context.Context, who admin.Operator, q admin.GrantRequest) (done admin.Granted, err error) {
	a, err := parseGrantRequest(who, q)
	if err != nil {
		return done, err
	}
	a.bounded = true
	err = gs.inTurn(ctx, func(ctx context.Context) (err error) {
		done, err = gs.grant(ctx, a)
		return err
	})
	return done, err
}

// prove returns an error if Grant would, and grants nothing.
func (gs boundedGranting) prove(ctx context.Context, who admin.Operator, q admin.GrantRequest) error {
	a, err := parseGrantRequest(who, q)
	if err != nil {
		return err
	}
	a.bounded, a.dry = true, true
	return gs.inTurn(ctx, func(ctx context.Context) error {
		_, err := gs.grant(ctx, a)
		return err
	})
}

// proof shows that the grants open something, and nothing beyond the boundary, to the one sandbox that they are for. It is the
// sentence that the record has.
func (gs *granting) proof(ctx context.Context, j *grantJudgement, before, after *policy.Policy) (string, error) {
	boundary := gs.daemon.reloads.made.boundary
	no := func(format string, arguments ...any) (string, error) {
		return "", refused("egressd answer, for a person", format, arguments...)
	}
	switch {
	case boundary == nil:
		return no("the policy has no approve_within")
	case j.effect != policy.Allow || j.OverDeny || j.Sandbox == "" || len(j.who) != 1 || len(j.made) != 1 || !j.made[0].rule.Pattern.OneHost():
		return no("only what one sandbox asks for is approved by itself")
	case gs.ownGrants(j.Sandbox) >= withinMost:
		return no("sandbox %s has %d grants, and no more than that by itself", j.Sandbox, withinMost)
	}
	ctx, cancel := context.WithTimeout(ctx, proveWithin)
	defer cancel()
	c := policy.Sides{Old: before, New: after, Within: boundary, Sandboxes: j.who, About: []policy.Pattern{j.made[0].rule.Pattern}}.Compare(ctx)
	if len(c.Unsure) > 0 {
		return no("it cannot be proved: %s", c.Unsure[0])
	}
	if len(c.Differences) == 0 {
		return no("it opens nothing")
	}
	var example *policy.Difference
	for i := range c.Differences {
		d := &c.Differences[i]
		if d.Change == policy.Asks && d.Through != "" {
			continue // a name that leads there asks a person
		}
		if d.Change != policy.Opens || d.Beyond {
			leads := ""
			if d.Through != "" {
				leads = " where that leads to " + d.Through
			}
			return no("it %s %s%s, which the boundary does not allow", d.Change, d.Request.Destination, leads)
		}
		if example == nil && d.Through == "" {
			example = d
		}
	}
	if example == nil {
		return no("it opens only what the host leads to")
	}
	by := boundary.Decide(ctx, &example.Request)
	return fmt.Sprintf("proof: of %d kinds of requests that it opens, none is beyond approve_within (%.19s…), whose rule %s allows such a request to %s", len(c.Differences), boundary.Digest(), by.Rule, example.Request.Destination), nil
}

// ownGrants counts the grants that a sandbox has by itself.
func (gs *granting) ownGrants(sandbox string) (n int) {
	return len(slices.DeleteFunc(gs.live(), func(g *grant) bool { return !g.bounded || g.Sandbox != sandbox }))
}
