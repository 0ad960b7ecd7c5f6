package dns

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/sandbox"
)

// datagrams serves the questions of one socket in batches. The records of a batch are one write, and its
// responses one system call. A single question is a batch of one and waits for no other.
type datagrams struct {
	*packets
	server *FilteringServer
	name   string // of the socket
	batch  *egress.Batch
	flood  flood

	turns [together]turn
	from  [together]source
}

func newDatagrams(f *FilteringServer, p *packets, name string) *datagrams {
	return &datagrams{packets: p, server: f, name: name, batch: f.Gate.Names.NewBatch(), flood: flood{
		gate: f.Gate, socket: p, name: name, rate: f.limits.PerSecond, senders: map[sandbox.Holder]*sender{}, dropped: map[netip.Addr]int{},
	}}
}

// next serves the datagrams that come next, or ends the second of a flood.
func (d *datagrams) next() error {
	n, err := d.read()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		d.flood.tick(time.Now())
		return nil
	case err == nil:
		d.serve(n)
	}
	return err
}

// serve answers the n datagrams that were read, here or, where that takes time, beside.
func (d *datagrams) serve(n int) {
	now := time.Now()
	d.flood.tick(now)
	for i := range n {
		d.begin(i, now)
	}
	d.batch.Write()
	for i := range n {
		d.end(i)
	}
	d.flush()
	d.batch.Reset()
}

// begin reads a question and asks what can be said of it at once.
func (d *datagrams) begin(i int, now time.Time) {
	t := &d.turns[i]
	*t = turn{server: d.server}
	msg, from := d.message(i)
	d.from[i] = from
	if from.from.Port() == 0 { // nobody could get a response
		return
	}
	defer recovered.Log(toAnswer, t.fail)
	t.peer = peerAt(from.from, d.name)
	if d.flood.drops(t.peer, now) {
		return
	}
	t.sent = len(msg)
	t.begin(d.batch, msg)
	if t.stage == waits {
		d.prepare(t)
	}
}

// prepare has a question wait, unless too many do already.
func (d *datagrams) prepare(t *turn) {
	t.holder = d.server.Gate.Names.Holder(t.peer)
	if t.waits = d.server.waits.Acquire(t.holder); !t.waits {
		t.answer, t.stage = t.busy(), ready
		return
	}
	if err := t.inquiry.Prepare(); err != nil {
		t.answer, t.stage = refusedBy(err), ready
		t.done()
	}
}

// done makes room for another question to wait.
func (t *turn) done() {
	if t.waits {
		t.waits = false
		t.server.waits.Release(t.holder)
	}
}

// fail leaves a message unanswered: one must not end the service of all.
func (t *turn) fail() {
	t.stage = unanswered
	t.done()
}

// toAnswer is what egressd does where a message brings a panic about.
const toAnswer = "answering a message to the name server"

// end answers a question, or has it answered.
func (d *datagrams) end(i int) {
	t := &d.turns[i]
	defer recovered.Log(toAnswer, t.fail)
	switch t.stage {
	case unanswered:
	case waits:
		d.later(t, d.from[i])
	default:
		d.answer(i, t.settled())
	}
}

func (d *datagrams) answer(i int, a answer) {
	t := &d.turns[i]
	d.respond(i, d.from[i].way, a.appendTo(d.space(), &t.message, t.most()))
}

// later has a question answered when the answer is there, or by a goroutine that can
// wait.
func (d *datagrams) later(t *turn, from source) {
	own := *t
	t.waits = false // it is its own now
	own.question = append([]byte(nil), t.question...)
	f := d.server
	if own.inquiry.Resolve(func(told egress.Answer, err error) { d.tell(&own, from, told, err) }) {
		return
	}
	f.answers.Go(func() {
		defer own.done()
		d.write(own.patiently(f.life), from)
	})
}

// tell sends an answer that was waited for, unless the server was shut meanwhile.
func (d *datagrams) tell(t *turn, from source, told egress.Answer, err error) {
	defer t.done()
	if !d.server.enter() {
		return
	}
	defer d.server.answers.Done()
	defer recovered.Log(toAnswer, nil)
	d.write(t.answered(told, err).appendTo(make([]byte, 0, mostUDP), &t.message, t.size), from)
}

// most is the limit of a response over UDP, in bytes. A peer that is no known sandbox gets at most as many bytes as it
// sent, since its address may be forged.
func (t *turn) most() int {
	if t.stranger {
		return min(t.sent, t.size)
	}
	return t.size
}

// patiently makes a response that has to be waited for.
func (t *turn) patiently(ctx context.Context) (b []byte) {
	defer recovered.Log(toAnswer, func() {
		b = answer{rcode: dns.RcodeServerFailure}.appendTo(nil, &t.message, t.size)
	})
	return t.finish(ctx).appendTo(nil, &t.message, t.size)
}
