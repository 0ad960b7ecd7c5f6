package egress

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// Deny records that r is refused for a reason that the way in knows, whatever
// the policy says, and returns the refusal to render.
func (g *Gate) Deny(peer sandbox.Peer, r policy.Request, class policy.Class, why string) *Refusal {
	f := g.newFlow(peer, r)
	if who, err := g.accounts.identify(peer); err == nil {
		f.request.Sandbox = who
	}
	return f.refuse(policy.Decision{Class: class, Rule: "baseline", Layer: policy.Builtin, Reason: why})
}

// Refuse records what could not even be put to the policy and returns the
// refusal to render. raw is what was sent, as far as it was read: its first
// 256 bytes are recorded.
func (g *Gate) Refuse(peer sandbox.Peer, via policy.Via, raw []byte, class policy.Class, why string) *Refusal {
	f := g.newFlow(peer, policy.Request{Via: via})
	who, err := g.accounts.identify(peer)
	if err == nil {
		f.request.Sandbox = who
	}
	f.noteDenial()
	r := recordOf{kind: record.KindRefused, raw: raw}
	if c := g.canaries.Load(); c != nil {
		if found, ok := c.Find(string(raw)); ok {
			r.canary = &sighting{found, "what cannot be read"}
		}
	}
	d := policy.Decision{Class: class, Rule: "parser", Layer: policy.Builtin, Reason: why, Policy: g.policy.Load().Digest()}
	f.decision = &d
	if refusal := f.refused(r); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// RefuseUnseen records that n connections or messages of a peer were refused without a look at them,
// all in one record; where n is 0 it is not known how many. An error says that it could
// not be recorded.
func (g *Gate) RefuseUnseen(peer sandbox.Peer, via policy.Via, class policy.Class, n int64, why string) error {
	f := g.newFlow(peer, policy.Request{Via: via})
	if who, err := g.accounts.identify(peer); err == nil {
		f.request.Sandbox = who
	}
	d := policy.Decision{Class: class, Rule: "baseline", Layer: policy.Builtin, Reason: why, Policy: g.policy.Load().Digest()}
	f.decision = &d
	r := recordOf{kind: record.KindRefused}
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 512)}, common: true}
	e.flow(&f.attempt, r)
	g.canaries.mask(e.Line)
	for range max(1, n) {
		f.gate.Records.count(&f.attempt, r)
	}
	_, err := g.config.Log.Append(summed(e.Line, e.idAt, f.id, n, nil))
	return err
}
