package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// grantsAPI grants and revokes for operators: [admin.Granting].
type grantsAPI struct{ *granting }

// Grant implements [admin.Granting].
func (gs grantsAPI) Grant(ctx context.Context, who admin.Operator, q admin.GrantRequest) (done admin.Granted, err error) {
	a, err := parseGrantRequest(who, q)
	if err != nil {
		return done, err
	}
	err = gs.inTurn(ctx, func(ctx context.Context) (err error) {
		done, err = gs.grant(ctx, a)
		return err
	})
	return done, err
}

// Revoke implements [admin.Granting].
func (gs grantsAPI) Revoke(ctx context.Context, who admin.Operator, id string) (done admin.Revoked, err error) {
	err = gs.inTurn(ctx, func(ctx context.Context) (err error) {
		done, err = gs.revoke(ctx, who, id)
		return err
	})
	return done, err
}

// List implements [admin.Granting]: all that counts for a while.
func (gs grantsAPI) List() admin.GrantList {
	all := admin.GrantList{Grants: []admin.Grant{}}
	if now := gs.daemon.current.Load(); now != nil {
		all.Policy = now.policy.Digest()
	}
	for _, g := range gs.live() {
		all.Grants = append(all.Grants, gs.shown(g))
	}
	return all
}

// A grantRequest is a request of an operator that can be read.
type grantRequest struct {
	admin.GrantRequest
	who      admin.Operator
	effect   policy.Verdict
	openings []policy.Opening
	lasts    time.Duration
	bounded  bool // nobody asked for it, so it has to be within the boundary
	dry      bool // find out whether it is granted, and grant nothing
}

// refused is a request that is not granted, and what to type next.
func refused(next, format string, arguments ...any) error {
	return &admin.Unavailable{Status: http.StatusUnprocessableEntity, Why: fmt.Sprintf(format, arguments...), Hint: next}
}

func parseGrantRequest(who admin.Operator, q admin.GrantRequest) (*grantRequest, error) {
	a := &grantRequest{GrantRequest: q, who: who}
	switch q.Verdict {
	case "allow":
		a.effect = policy.Allow
	case "deny":
		a.effect = policy.Deny
	default:
		return nil, refused("egressd allow HOST, or egressd deny HOST", "the verdict is allow or deny")
	}
	if q.OverDeny && a.effect != policy.Allow {
		return nil, refused("egressd deny HOST", "over_deny is of an allow; a deny stands above every line anyway")
	}
	if q.Seconds < 1 || q.Seconds > int64(grantLongest/time.Second) {
		return nil, refused("--for 1h; what is for longer belongs into the policy: --save", "a grant is for 1 second to %s", quantity.Span(grantLongest))
	}
	if a.lasts = time.Duration(q.Seconds) * time.Second; len(q.Patterns) == 0 || len(q.Patterns) > patternsMost {
		return nil, refused("egressd allow example.com", "1 to %d hosts are granted at a time", patternsMost)
	}
	if _, ok := record.ParseID(q.From); q.From != "" && !ok {
		return nil, refused("egressd log", "what it answers is not the id of a request")
	}
	if q.Sandbox != "" && !sandbox.PlainName(q.Sandbox) {
		return nil, refused("egressd status --connections, which has their names", "what it is for is no name of a sandbox")
	}
	for _, text := range q.Patterns {
		o, err := a.opening(text)
		if err != nil && policy.InSpecialSpace(o.Pattern) && policy.CheckGrant(o.Pattern) == nil {
			return nil, refused("egressd allow "+shell.Pattern(o.Pattern.String())+" --save", "%v", err)
		}
		if err != nil {
			return nil, refused("egressd log verdict:deny, for the hosts that are needed", "%v", err)
		}
		if !slices.Contains(a.openings, o) {
			a.openings = append(a.openings, o)
		}
	}
	return a, nil
}

// opening is what the request says of one pattern. It returns an error if no grant may allow that. A private address needs
// an exception to the baseline, which only the policy file can make.
func (a *grantRequest) opening(text string) (o policy.Opening, err error) {
	o.Pattern, err = policy.ParsePattern(text)
	if err != nil || a.effect != policy.Allow {
		return o, err
	}
	o.Method, o.Path = a.Method, a.Path
	if err := o.Check(); err != nil {
		return o, err
	}
	if policy.InSpecialSpace(o.Pattern) {
		return o, fmt.Errorf("%s is a private address; only the policy file can allow it", o.Pattern)
	}
	return o, nil
}

// sandboxesOf are those for whom a line is judged.
func sandboxesOf(c *config.Config, name string) (all []policy.Sandbox) {
	listed := c.File.Sandboxes
	switch {
	case len(listed) == 0:
		return []policy.Sandbox{{Name: cmp.Or(name, sandbox.Default), Attachment: 1}} // as one with an attached network, which may have any name
	case name != "":
		return []policy.Sandbox{{Name: name}}
	}
	for _, s := range listed {
		all = append(all, policy.Sandbox{Name: s.Name})
	}
	return all
}

// checkSandbox says why a policy has no sandbox of that name, or nil. Where none are listed,
// those who attach a network have any.
func checkSandbox(c *config.Config, name string) error {
	if len(c.File.Sandboxes) == 0 && len(c.EnterNames()) > 0 {
		return nil
	}
	_, err := c.Sandbox(name)
	return err
}

// grant judges what is asked for beside the configuration in force, and puts it in force.
func (gs grantsAPI) grant(ctx context.Context, a *grantRequest) (done admin.Granted, err error) {
	now := gs.daemon.current.Load()
	if now == nil {
		return done, refused("egressd status", "no policy is in force")
	}
	if a.Sandbox != "" {
		if err := checkSandbox(gs.daemon.Config, a.Sandbox); err != nil {
			return done, refused("egressd "+a.Verdict+" HOST --sandbox NAME, with one of those", "%v", err)
		}
	}
	gs.expire(ctx)
	live := gs.live()
	judging, cancel := context.WithTimeout(ctx, judgeWithin)
	defer cancel()
	j, err := gs.judging(judging, a, live)
	if err != nil {
		return done, err
	}
	next := append(j.others, j.made...)
	switch {
	case len(j.made) == 0 && a.bounded:
		return done, refused("egressd status", "the policy allows it already")
	case len(j.made) == 0:
		return j.told(gs.daemon, now.policy), nil
	case len(next) > grantsMost:
		return done, refused("egressd allow --undo ID, or egressd allow HOST --save", "there are %d grants, and no more than %d", len(live), grantsMost)
	}
	after, err := gs.daemon.Config.Granting(rulesOf(next))
	if err != nil {
		return done, refused("where it is a test that no longer holds, change it in "+gs.daemon.Path+" first", "with that, the policy would be refused, so nothing was granted\n%v", err)
	}
	if err := j.judge(judging, gs.daemon, after.Enforced()); err != nil {
		return done, err
	}
	proof := ""
	if a.bounded {
		if proof, err = gs.proof(judging, j, now.policy.Enforced(), after.Enforced()); err != nil || a.dry {
			return done, err
		}
		proof = "; " + proof
	}
	j.opens = j.compare(judging, now.policy.Enforced(), after.Enforced())
	if a.DryRun {
		return j.told(gs.daemon, now.policy), nil
	}
	for _, g := range j.made {
		if err := gs.daemon.Gate.Records.NoteOperator(a.who.Note(a.note(g) + "; that " + j.opens + proof)); err != nil {
			return done, unrecorded(err)
		}
	}
	if err := gs.regrant(ctx, next, idsOf(j.made)+", asked for by "+a.who.String()); err != nil {
		return done, err
	}
	gs.daemon.current.countGranted(len(j.made))
	for _, g := range j.made {
		fmt.Fprintf(gs.daemon.Talk, "egressd: grant %s for %s: %s\n", g.ID, quantity.Span(a.lasts), g.text())
	}
	fmt.Fprintf(gs.daemon.Talk, "egressd: that %s\n", printable.Text(j.opens))
	return j.told(gs.daemon, gs.daemon.policy), nil
}

// note is what the log says of a grant.
func (a *grantRequest) note(g *grant) string {
	text := fmt.Sprintf("grant %s for %s, until %s: %s", g.ID, quantity.Span(a.lasts), g.Until.Format(time.RFC3339), g.text())
	if a.ThisRun {
		text += ", or until the run ends"
	}
	if a.From != "" {
		text += ", in answer to " + a.From
	}
	return text
}

// A grantJudgement is what comes of a request for grants.
type grantJudgement struct {
	*grantRequest
	before   *policy.Policy // with what is denied for a while, and nothing that is allowed
	who      []policy.Sandbox
	others   []*grant // that stay as they are
	made     []*grant
	already  []string
	warnings []string
	opens    string // what made opens and closes, in words
}

// judging decides which parts of a request are granted. An equal grant that exists already gets the new duration.
func (gs grantsAPI) judging(ctx context.Context, a *grantRequest, live []*grant) (j *grantJudgement, err error) {
	j = &grantJudgement{grantRequest: a, who: sandboxesOf(gs.daemon.Config, a.Sandbox), others: slices.Clone(live), already: []string{}}
	if j.before, err = gs.daemon.Config.Granting(rulesOf(only(policy.Deny, live))); err != nil {
		return nil, refused("egressd status", "%v", err)
	}
	j.before = j.before.Enforced() // what passes only because it is observed lacks a grant
	for _, o := range a.openings {
		if a.effect == policy.Allow && j.isAllowed(ctx, o) && ctx.Err() == nil {
			j.already = append(j.already, o.String())
			continue
		}
		id := ""
		j.others = slices.DeleteFunc(j.others, func(g *grant) bool {
			same := g.rule.Effect == a.effect && g.rule.Opening == o && g.Sandbox == a.Sandbox
			if same {
				id = g.ID
			}
			return same
		})
		j.made = append(j.made, gs.newGrant(a, o, cmp.Or(id, newGrantID(slices.Concat(live, j.made)))))
	}
	return j, nil
}

// compare says what the grants open and close beside the policy in force.
func (j *grantJudgement) compare(ctx context.Context, before, after *policy.Policy) string {
	s := policy.Sides{Old: before, New: after, Sandboxes: j.who}
	if j.effect == policy.Allow && !j.OverDeny {
		for _, g := range j.made {
			s.About = append(s.About, g.rule.Pattern)
		}
	}
	return explain.Told(ctx, s)
}

// isAllowed reports whether o is allowed without grants, to whomever it is for.
func (j *grantJudgement) isAllowed(ctx context.Context, o policy.Opening) bool {
	return !slices.ContainsFunc(j.who, func(who policy.Sandbox) bool { return !j.before.OpensAll(ctx, o, who) })
}

// newGrant makes a grant: what the API shows of it, and the rule that decides.
func (gs grantsAPI) newGrant(a *grantRequest, o policy.Opening, id string) *grant {
	began := time.Now()
	g := &grant{end: gs.now() + a.lasts, Grant: admin.Grant{
		ID: id, Verdict: a.Verdict, Pattern: o.Pattern.String(), Method: o.Method, Path: o.Path, Sandbox: a.Sandbox, From: a.From, OverDeny: a.OverDeny, By: a.who.String(),
		Since: began.UTC().Truncate(time.Second), Until: began.Add(a.lasts).UTC().Truncate(time.Second),
	}}
	g.bounded, g.Grant.ThisRun = a.bounded, a.ThisRun
	if a.ThisRun {
		g.counts = gs.questionCounts(a.From)
	}
	if !a.who.Addr.IsValid() && !a.bounded {
		g.UID = &a.who.UID
	}
	g.rule = policy.Grant{ID: "grant:" + id, Effect: a.effect, Opening: o, Sandbox: a.Sandbox, OverDeny: a.OverDeny, Over: func() bool { return g.over(gs.now()) }}
	return g
}

// questionCounts returns a func that reports whether a question is listed and not rejected.
func (gs *granting) questionCounts(text string) func() bool {
	id, _ := record.ParseID(text)
	return func() bool {
		q, _, found := gs.daemon.Gate.Approvals.Find(id)
		return found && q.State != approvals.Rejected
	}
}

// newGrantID is one that no other grant has, and that no flow can have.
func newGrantID(others []*grant) string {
	for {
		id := "G" + rand.Text()[:6]
		if !slices.ContainsFunc(others, func(g *grant) bool { return g.ID == id }) {
			return id
		}
	}
}

// judgeWithin bounds for how long requests for grants hold up everything else that changes the
// policy: a pattern may have 65,535 ports, a policy many sandboxes and Rego.
const judgeWithin = 5 * time.Second

// judge refuses a line that changes nothing, and warns of what it does not change.
func (j *grantJudgement) judge(ctx context.Context, d *Daemon, after *policy.Policy) error {
	if j.effect == policy.Allow { // what denies comes before everything
		for _, g := range j.made {
			if err := j.judgeAllow(ctx, d, g, after); err != nil {
				return err
			}
		}
	}
	if j.Sandbox != "" && j.Sandbox != sandbox.Default && len(d.Config.File.Sandboxes) == 0 && !d.attachments.has(j.Sandbox) {
		j.warn("no sandbox named %s is connected now; the rule applies to the next one", j.Sandbox)
	}
	if r := d.current.Load().rejected; r != nil && r.Current {
		j.warn("%s is not in force as it is now, and this counts beside what is: egressd status", d.Path)
	}
	return nil
}

func (j *grantJudgement) warn(format string, arguments ...any) {
	j.warnings = append(j.warnings, fmt.Sprintf(format, arguments...))
}

func (j *grantJudgement) judgeAllow(ctx context.Context, d *Daemon, g *grant, after *policy.Policy) error {
	changes := false
	var shut policy.Reach
	for _, who := range j.who {
		before, r := j.before.Reach(ctx, g.rule.Opening, who), after.Reach(ctx, g.rule.Opening, who)
		changes = changes || r.Allowed > before.Allowed || r.Partly < before.Partly
		if before.Asked != "" && r.Asked != before.Asked {
			j.warn("rule %s asks a person about %s%s, and does not until the grant ends", before.Asks.Rule, before.Asked, j.to(d, who))
		}
		if g.OverDeny && r.Allowed > before.Allowed && before.Why.Class == policy.RuleDeny {
			j.warn("rule %s denies %s%s, and does not until the grant ends", before.Why.Rule, before.Shut, j.to(d, who))
		}
		if r.Refused > 0 {
			j.warn("%s stays refused%s: %s", r.Shut, j.to(d, who), r.Why.Text())
			shut = r
		}
	}
	if ctx.Err() != nil { // of the rest, nothing is known
		return refused("egressd allow HOST:PORT, with the ports that are needed", "it takes longer than %s to find out what that would open", judgeWithin)
	}
	if !changes {
		return refused(wayOut(d, &shut, j.OverDeny), "%s would stay refused%s, so nothing was granted: %s", shut.Shut, j.to(d, policy.Sandbox{Name: shut.Sandbox}), shut.Why.Text())
	}
	if g.rule.Conditional() && d.With == nil {
		j.warn("%s opens requests in plain HTTP alone: no rule of %s has egressd look into TLS, so it cannot tell requests there apart", g.Text(), d.Path)
	}
	if sharing := g.rule.Pattern.Sharing(); sharing != "" {
		j.warn("%s %s", g.Pattern, sharing)
	}
	return nil
}

// to names a sandbox where there are several.
func (j *grantJudgement) to(d *Daemon, who policy.Sandbox) string {
	if len(d.Config.File.Sandboxes) == 0 && j.Sandbox == "" {
		return ""
	}
	return toSandbox(who.Name)
}

// wayOut is what to type where a grant does not open what it names.
func wayOut(d *Daemon, r *policy.Reach, over bool) string {
	id, granted := strings.CutPrefix(r.Why.Rule, "grant:")
	switch {
	case granted:
		return "egressd allow --undo " + id
	case r.Why.Verdict == policy.Ask:
		return "egressd answer, which lists what rule " + r.Why.Rule + " asks, and egressd answer ID yes"
	case r.Why.Class == policy.RuleDeny && r.Why.Layer == policy.User && !over:
		return "egressd allow " + shell.Pattern(r.Shut) + " --over-deny, if it is meant to pass until the grant ends"
	case r.Why.Layer == policy.PerSandbox && r.Why.Class == policy.DefaultDeny:
		return "--sandbox " + r.Sandbox + ", for a grant to that one, whose own list does not have it"
	case r.Why.Layer == policy.Organisation && d.Config.Organisation != nil:
		return "ask who keeps " + d.Config.Organisation.Path + ", which decides this"
	case r.Why.Rule == "ceiling":
		return "write it under ceiling in " + d.Path + ", if it is meant to pass"
	case r.Why.Class == policy.AddressDenied:
		return "egressd check " + shell.Pattern(r.Shut)
	}
	return "change rule " + r.Why.Rule + " in " + d.Path + ", if it is meant to pass"
}

func (j *grantJudgement) told(d *Daemon, p *policy.Policy) admin.Granted {
	done := admin.Granted{Grants: []admin.Grant{}, Already: j.already, Warnings: j.warnings, Opens: j.opens, Policy: p.Digest()}
	for _, g := range j.made {
		done.Grants = append(done.Grants, d.grants.shown(g))
	}
	return done
}

// revoke takes a grant back.
func (gs grantsAPI) revoke(ctx context.Context, who admin.Operator, id string) (done admin.Revoked, err error) {
	gs.expire(ctx)
	live := gs.live()
	i := slices.IndexFunc(live, func(g *grant) bool { return g.ID == id })
	if i < 0 {
		return done, &admin.Unavailable{Status: http.StatusNotFound, Why: "there is no grant with that id", Hint: "egressd allow --list"}
	}
	g := live[i]
	if err := gs.daemon.Gate.Records.NoteOperator(who.Note("revoke grant " + g.ID + ": " + g.text())); err != nil {
		return done, unrecorded(err)
	}
	if err := gs.regrant(ctx, slices.Delete(live, i, i+1), "revoked "+g.ID+", asked for by "+who.String()); err != nil {
		return done, err
	}
	fmt.Fprintf(gs.daemon.Talk, "egressd: grant %s was revoked: %s\n", g.ID, g.text())
	return admin.Revoked{Revoked: gs.shown(g), Policy: gs.daemon.policy.Digest()}, nil
}
