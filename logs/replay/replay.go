// Package replay decides recorded requests again under another policy. It sends nothing and resolves
// nothing: it judges a name with the addresses that the log has for it.
package replay

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A Replay decides records again.
type Replay struct {
	Decided, Changed, Skipped int64
	Words

	OrLog bool // with Beside: what was decided as the log has it is no difference either

	decider
	before *decider // nil: what the log has
	groups map[Difference]*Group
}

// Words are the requests of the log by what another policy would do with each.
type Words struct {
	Same       int64 `json:"same"`
	Denied     int64 `json:"denied"`
	Asked      int64 `json:"asked"` // a person would be
	LookedInto int64 `json:"looked_into"`
	Allowed    int64 `json:"allowed"`
}

// LookedInto stands in [Difference.Now] if the other policy would inspect a tunnel. That policy would decide each request in
// the tunnel, and the log does not have these requests.
const LookedInto = "inspect"

// A decider is a policy with its sandboxes.
type decider struct {
	policy    *policy.Policy
	sandboxes map[string]policy.Sandbox
}

// New returns a Replay that decides by p, which was compiled from c, and compares with the decisions of the log.
func New(c *config.Config, p *policy.Policy) *Replay {
	return &Replay{decider: decider{p, sandboxesByName(c)}, groups: map[Difference]*Group{}}
}

// Beside has r compare with the decisions of another policy, which was compiled from c. Grants and answers of people, which
// were decisive when the log was written, then make no difference.
func (r *Replay) Beside(c *config.Config, p *policy.Policy) {
	r.before = &decider{p, sandboxesByName(c)}
}

func sandboxesByName(c *config.Config) map[string]policy.Sandbox {
	all := map[string]policy.Sandbox{}
	for i := range c.File.Sandboxes {
		all[c.File.Sandboxes[i].Name] = config.EntryOf(&c.File.Sandboxes[i]).Sandbox()
	}
	return all
}

// A Difference holds two decisions about the same request. The first one is that of the log, or of the policy of [Replay.Beside].
type Difference struct {
	Destination string `json:"destination"`
	What        string `json:"what"`
	Sandbox     string `json:"sandbox,omitempty"`
	Was         string `json:"was"`
	WasRule     string `json:"was_rule"`
	Now         string `json:"now"` // allow, deny, ask, or [LookedInto]
	NowRule     string `json:"now_rule"`
	NowClass    string `json:"now_class,omitempty"`
}

// A Group is all requests with the same difference.
type Group struct {
	Difference
	Count int64  `json:"count"`
	Flow  string `json:"flow"` // of the last record
}

// Decide decides the request of one record again. It returns false if the record does not hold enough of it.
func (r *Replay) Decide(ctx context.Context, was *record.Record) (policy.Decision, bool) {
	return r.decider.decide(ctx, was)
}

func (j *decider) decide(ctx context.Context, was *record.Record) (policy.Decision, bool) {
	if was.Decision == nil || was.Kind == record.KindDNS {
		return policy.Decision{}, false
	}
	request, ok := j.request(was)
	if !ok {
		return policy.Decision{}, false
	}
	d := j.policy.Decide(ctx, &request)
	return d, !unrecorded[d.Class]
}

// ActionOf returns the action of a decision about the request of a record: allow, deny, ask, or [LookedInto].
func ActionOf(d policy.Decision, of *record.Record) string {
	if d.Verdict == policy.Inspect && of.HTTP == nil {
		return LookedInto
	}
	return d.Verdict.Action()
}

// Add decides one record again, and counts it. It keeps no reference to it.
func (r *Replay) Add(ctx context.Context, was *record.Record) {
	if was.Decision == nil || was.Kind == record.KindDNS {
		return
	}
	was = was.Clone() // a policy may keep strings of a request, as a cache of verdicts does
	d, ok := r.Decide(ctx, was)
	before, beforeRule := was.Decision.Action, was.Decision.Rule
	if was.TLS != nil && was.TLS.Inspected && was.HTTP == nil && before == "allow" {
		before = LookedInto
	}
	logged := before
	if r.before != nil && ok {
		var b policy.Decision
		b, ok = r.before.decide(ctx, was)
		before, beforeRule = ActionOf(b, was), b.Rule
	}
	if !ok {
		r.Skipped += was.Times()
		return
	}
	r.Decided += was.Times()
	now := ActionOf(d, was)
	if now == before || now == "allow" && before == LookedInto || r.OrLog && now == logged {
		r.Same += was.Times()
		return
	}
	r.Changed += was.Times()
	switch now {
	case LookedInto:
		r.Words.LookedInto += was.Times()
	case "ask":
		r.Asked += was.Times()
	case "allow":
		r.Allowed += was.Times()
	default:
		r.Denied += was.Times()
	}
	r.count(Difference{
		Destination: logs.Destination(was), What: logs.What(was), Sandbox: was.Sandbox,
		Was: before, WasRule: beforeRule, Now: now, NowRule: d.Rule, NowClass: string(d.Class),
	}, was)
}

func (r *Replay) count(d Difference, was *record.Record) {
	known := r.groups[d]
	if known == nil {
		if len(r.groups) >= logs.MaxGroups {
			d = Difference{Destination: logs.Beyond, Was: d.Was, Now: d.Now}
			known = r.groups[d]
		}
		if known == nil {
			known = &Group{Difference: d}
			r.groups[d] = known
		}
	}
	known.Count += was.Times()
	known.Flow = was.Flow
}

// replayable are the classes of decisions that depend only on what the log records. The empty class stands
// for allowed requests.
var replayable = map[policy.Class]bool{
	"": true, policy.DefaultDeny: true, policy.RuleDeny: true, policy.MethodDenied: true, policy.PathDenied: true,
	policy.AddressDenied: true, policy.ECHRefused: true, policy.PolicyError: true, policy.PolicyNotLoaded: true,
}

// unrecorded are the classes of decisions on what no record holds: header fields, queries and bodies.
var unrecorded = map[policy.Class]bool{policy.HeaderDenied: true, policy.QueryDenied: true, policy.GitDenied: true, policy.BodyDenied: true, policy.MCPDenied: true, policy.ModelDenied: true, policy.GraphQLDenied: true}

// request rebuilds a request from its record. It returns false if the record does not hold enough of it.
func (j *decider) request(was *record.Record) (policy.Request, bool) {
	if was.Dst == nil || was.Kind == record.KindRefused || !replayable[policy.Class(was.Decision.Class)] {
		return policy.Request{}, false
	}
	dst, err := policy.ParseDestination(logs.Destination(was))
	if err != nil {
		return policy.Request{}, false
	}
	for _, text := range was.Dst.Addrs {
		if a, err := netip.ParseAddr(text); err == nil {
			dst.Addrs = append(dst.Addrs, a)
		}
	}
	q := policy.Request{
		Sandbox: j.who(was.Sandbox), Via: policy.Via(was.Via), Destination: dst,
		Usage: new(policy.Usage), Time: was.Time,
	}
	if t := was.TLS; t != nil && (t.SNI != "" || t.Inspected) {
		q.TLS = &policy.ClientHello{ServerName: t.SNI, ALPN: t.ALPN, ECH: t.ECH, JA4: t.JA4, Inspected: t.Inspected}
		q.Protocol = policy.ProtocolTLS
	}
	if h := was.HTTP; h != nil {
		if h.PathCut {
			return policy.Request{}, false
		}
		q.HTTP = &policy.HTTPRequest{Method: h.Method, Path: h.Path}
		q.Protocol = policy.ProtocolHTTP
	}
	if p := was.Process; p != nil {
		q.Process = &policy.Process{PID: p.PID, Exe: p.Exe, Argv: p.Argv}
	}
	return q, true
}

// who returns the sandbox of that name. A policy without a list of sandboxes has one, with the default name.
func (j *decider) who(name string) policy.Sandbox {
	if len(j.sandboxes) == 0 {
		name = sandbox.Default
	}
	if known, ok := j.sandboxes[name]; ok {
		return known
	}
	return policy.Sandbox{Name: name}
}

// Groups returns the differences, the most frequent first.
func (r *Replay) Groups() []*Group {
	return slices.SortedFunc(maps.Values(r.groups), func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.What, b.What), cmp.Compare(a.NowRule, b.NowRule))
	})
}
