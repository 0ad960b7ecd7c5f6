package egress

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// RefuseUnseen records that n connections or messages of a peer were refused without a look at them,
// all in one record; where n is 0 it is not known how many. An error says that it could
// not be recorded.
func (g *Gate) RefuseUnseen(peer sandbox.Peer, via policy.Via, class policy.Class, n int64, why string) error {
	f := g.newFlow(peer, policy.Request{Via: via})
	if who, err := g.config.Sandboxes.Identify(peer); err == nil {
		f.request.Sandbox = who
	}
	d := policy.Decision{Class: class, Rule: "baseline", Layer: policy.Builtin, Reason: why, Policy: g.policy.Load().Digest()}
	f.decision = &d
	r := recordOf{kind: record.KindRefused}
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 512)}, common: true}
	e.flow(f, r)
	g.canaries.mask(e.Line)
	for range max(1, n) {
		f.gate.Records.count(f, r)
	}
	_, err := g.config.Log.Append(summed(e.Line, e.idAt, f.id, n, nil))
	return err
}

// summed inserts an id, a number and names into common, which encodes what n denials have in common.
// It leaves out n if it is 0, and names if they are nil.
func summed[T []byte | string](common T, at int, id record.ID, n int64, names *summedNames) []byte {
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, len(common)+64)}}
	e.Line = append(e.Line, common[:at]...)
	e.Text("flow", id.String())
	if n > 0 {
		e.Number("count", n)
	}
	if names != nil {
		e.Open("names")
		e.Key("first")
		e.Quote(names.first, record.MaxRaw)
		e.Key("last")
		e.Quote(string(names.last), record.MaxRaw)
		e.Close()
	}
	e.Line = append(e.Line, common[at:]...)
	return e.Line
}
