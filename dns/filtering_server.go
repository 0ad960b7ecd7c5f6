package dns

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// FilteringLimits bound what sandboxes can make a [FilteringServer] hold. Zero fields have
// the stated defaults. Of questions and connections no sandbox has more than are
// free for others. How much each may ask is the gate's to bound: of what comes over UDP beyond twice that, nothing is read.
type FilteringLimits struct {
	InFlight    int           // questions that wait for an answer, over UDP; 512
	Connections int           // over TCP, of all listeners; 256
	PerSource   int           // of those, from one address; 32
	PerSecond   int           // questions of one sandbox, as the gate bounds them; 200
	Idle        time.Duration // for a whole message to come, and a response to go; 10 s
}

// A FilteringServer is the name server of sandboxes that are pointed at egressd: it tells
// the addresses of names that the sandbox may reach, asks for them in words of
// its own, and refuses the rest without asking anyone.
//
// It accepts one question a message (RFC 1035, opcode QUERY), and answers with A or AAAA records of the name in the
// question, or with SRV or TXT records if the gate's resolver has them asked for. It follows aliases without showing them,
// and makes each message anew. HTTPS and SVCB records
// (RFC 9460) do not exist for any name: their addresses, ports and keys would lead
// around what was decided. Other types are refused.
//
// Fields may not be changed once it serves.
type FilteringServer struct {
	Gate   *egress.Gate
	Limits FilteringLimits

	// Life returns how long the resolver's answer for a name is still valid. It may be nil. Answers have a TTL between
	// one second and five minutes.
	Life func(name string) time.Duration

	listening
}

const (
	leastTTL = time.Second
	mostTTL  = 300 * time.Second
)

// Extended errors of RFC 8914 for what is no refusal.
const (
	edeNoReachableAuthority = 22
	edeNetworkError         = 23
)

// A turn is one message on its way to an answer.
type turn struct {
	server *FilteringServer
	peer   sandbox.Peer
	message
	inquiry  *egress.Inquiry
	stranger bool // nobody knows who asked
	sent     int  // bytes, over UDP
	waits    bool // it has a place among those that wait, as one of holder's
	holder   sandbox.Holder

	stage  stage
	answer answer        // where it is known
	told   egress.Answer // and err: what the gate says, where it is not
	err    error
}

// A stage is how far a turn has come.
type stage uint8

const (
	unanswered stage = iota // there is no answer
	ready                   // nobody else is needed for it
	said                    // the gate has said what it may be
	waits                   // the gate has yet to be asked, by who can wait
)

// inquirer is the [egress.Names] of a gate, or a batch of inquiries.
type inquirer interface {
	Inquire(sandbox.Peer, policy.DNSQuery) (*egress.Inquiry, error)
}

// begin reads msg and asks what can be said at once. In a batch, that is to be written
// before the answer is taken from settled.
func (t *turn) begin(ask inquirer, msg []byte) {
	m, bad := readMessage(msg)
	t.message = m
	q := policy.DNSQuery{}
	if bad == (flaw{}) {
		q = policy.DNSQuery{Name: m.name, Type: m.typeText()}
	}
	inquiry, err := ask.Inquire(t.peer, q)
	switch {
	case err != nil:
		t.stranger = classOf(err) == policy.UnknownSandbox
		t.answer, t.stage = refusedBy(err), ready
	case bad != (flaw{}):
		t.answer, t.stage = bad.refused(inquiry.Refuse(msg, bad.class, bad.why)), ready
	default:
		t.inquiry = inquiry
		t.put()
	}
	if bad.silent {
		t.stage = unanswered
	}
}

// put puts the question to the gate, where that is needed.
func (t *turn) put() {
	if a, same := t.known(); same {
		t.answer, t.stage = a, ready
		return
	}
	told, wait, err := t.inquiry.AnswerNow()
	if wait {
		t.stage = waits
		return
	}
	t.told, t.err, t.stage = told, err, said
}

// settled is the answer to what does not wait.
func (t *turn) settled() answer {
	if t.inquiry != nil {
		if err := t.inquiry.Written(); err != nil {
			return refusedBy(err)
		}
	}
	if t.stage == said {
		return t.answered(t.told, t.err)
	}
	return t.answer
}

// finish answers what has to be waited for.
func (t *turn) finish(ctx context.Context) answer {
	return t.answered(t.inquiry.Answer(ctx))
}

// busy answers where too many wait already.
func (t *turn) busy() answer {
	return refusedBy(t.inquiry.Refuse(nil, policy.DNSBudget, "too many questions wait for an answer"))
}

// known answers for names whose answer is the same everywhere.
func (t *turn) known() (answer, bool) {
	a, same := t.sameEverywhere(mostTTL)
	if !same {
		return answer{}, false
	}
	if err := t.inquiry.Local(); err != nil {
		return refusedBy(err), true
	}
	return a, true
}

// answered makes an answer of what the gate says.
func (t *turn) answered(told egress.Answer, err error) answer {
	if err != nil {
		return refusedBy(err)
	}
	if len(told.RRs.Data) > 0 {
		return recordsOf(told)
	}
	a := answer{ttl: leastTTL, addrs: t.ofFamily(told.Addrs)}
	if len(a.addrs) > 0 && t.server.Life != nil {
		a.ttl = min(max(t.server.Life(t.name), leastTTL), mostTTL)
	}
	t.inquiry.Bind(a.addrs, a.ttl)
	return a
}

// recordsOf answers with records that are no addresses.
func recordsOf(told egress.Answer) answer {
	return answer{data: told.RRs.Data, ttl: min(max(told.RRs.TTL, leastTTL), mostTTL)}
}

func classOf(err error) policy.Class {
	if r, ok := errors.AsType[*egress.Refusal](err); ok {
		return r.Decision.Class
	}
	return policy.PolicyError
}

// refusedBy renders what the gate refuses, and what the network did not bring.
func refusedBy(err error) answer {
	var r *egress.Refusal
	var failed *Error
	switch {
	case errors.As(err, &failed) && failed.Kind == NotFound:
		a := answer{}
		if !failed.Exists {
			a.rcode = dns.RcodeNameError
		}
		return a
	case !errors.As(err, &r):
		return answer{rcode: dns.RcodeServerFailure}
	}
	h := howOf(r.Decision.Class)
	switch {
	case r.Decision.Class == policy.NetworkDNS && errors.Is(err, Timeout):
		h.ede = edeNoReachableAuthority
	case r.Decision.Layer == policy.Organisation && h.ede == dns.ExtendedErrorCodeBlocked:
		h.ede = dns.ExtendedErrorCodeProhibited
	}
	return answer{rcode: h.rcode, ede: h.ede, text: strings.TrimSpace(string(r.Decision.Class) + " " + r.ID.String())}
}
