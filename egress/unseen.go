package egress

import (
	"strconv"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// RefuseUnseen records that n connections of a peer were refused without a look at them,
// all in one record; where n is 0 it is not known how many. An error says that it could
// not be recorded.
func (g *Gate) RefuseUnseen(peer sandbox.Peer, via policy.Via, n int64, why string) error {
	f := g.newFlow(peer, policy.Request{Via: via})
	if who, err := g.config.Sandboxes.Identify(peer); err == nil {
		f.request.Sandbox = who
	}
	d := policy.Decision{Class: policy.TooManyFlows, Rule: "baseline", Layer: policy.Builtin, Reason: why, Policy: g.policy.Load().Digest()}
	f.decision = &d
	r := recordOf{kind: KindRefused}
	e := encoder{b: make([]byte, 0, 512), common: true}
	e.flow(f, r)
	g.mask(e.b)
	for range max(1, n) {
		f.note(r)
	}
	_, err := g.config.Log.Append(summed(e.b, e.idAt, f.id, n))
	return err
}

// summed is a record that stands for n, of what was encoded as common: with an id, and
// with n where it is known.
func summed[T []byte | string](common T, at int, id ID, n int64) []byte {
	b := make([]byte, 0, len(common)+64)
	b = append(b, common[:at]...)
	b = append(b, `,"flow":"`...)
	b = append(b, id.String()...)
	b = append(b, '"')
	if n > 0 {
		b = append(b, `,"count":`...)
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, common[at:]...)
}
