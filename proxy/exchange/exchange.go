package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
)

// Why an exchange ends early.
var (
	// ErrStale is the error of a request that a kept connection no longer took, and that may be sent once more.
	ErrStale = errors.New("the kept connection was closed by the upstream")
	// ErrIdle is the cause of a context that ended because no byte has moved for too long.
	ErrIdle = errors.New("nothing has moved for too long")
	// ErrCut is the cause of one that a later policy has ended.
	ErrCut = errors.New("the policy refuses what it had allowed")
)

// An Exchange is one request and its response, in clear or inside TLS, over HTTP/1 or HTTP/2. [Exchange.Do] takes it from the
// decision to the record of its end. The exported fields are set before that, by the code that has read the request.
type Exchange struct {
	Client *Client
	Tunnel InspectedTunnel // inside which the request came, or nil in clear
	Ends   Ends

	Method         string
	Target         http1.Target
	Fields         http1.Fields // end to end, without Host
	Hops           http1.Fields // that go up behind Fields and concern the connection, such as Expect
	Body           io.Reader    // as the client sends it, or nil
	Length         int64        // of the body; -1: not known
	Destination    policy.Destination
	Authority      string // the server that the request names, if the policy has to compare it with Destination
	Recipient      answer.Recipient
	Upgrade        bool // the request asks for another protocol
	WebSocket      bool // and for no other than a WebSocket
	ReplacesMethod bool // a field that was dropped asks for another method

	// Context ends when the client has left, or nobody wants the response any more. Its cause says why.
	Context context.Context
	// Leave ends Context, for a cause.
	Leave context.CancelCauseFunc
	// Stream ends when the client has ended the stream, or left; nil in HTTP/1, which has none.
	Stream context.Context
	// OnCut is called when a later policy refuses the request. It may be nil.
	OnCut func()
	// BeforeBody is called before each read of the body while the request is decided.
	BeforeBody func()

	Flow *egress.Flow // once the request is allowed

	redaction    *secret.Redaction // of the response, or nil
	searched     bool              // all of the response has to be in a form that can be searched
	lfs          *lfsAnswer        // of a batch of Git LFS, as it comes down; nil for every other response
	held         *heldBody         // what a rule has read of the request's body, or nil
	going        *PassingBody      // the request's body as it goes up, or nil
	bodyMemory   *fair.Reservation // of the request's body, or nil
	headMemory   *fair.Reservation // of a long head of a response, or nil
	answerMemory *fair.Reservation // of the answer to a batch of Git LFS, or nil
	hints        int               // interim responses
	payload      atomic.Int64      // that was let up, beside heads
	up, down     atomic.Int64      // bytes
	end          egress.End
}

// Ends are the client and the upstream of one exchange, in the version of HTTP that they speak. One goroutine calls the
// methods, in this order.
type Ends interface {
	// Reach connects to the upstream. reuse: it may be with a connection that has served another exchange.
	Reach(reuse bool) error
	// Send sends the request, and passes interim responses on. If a kept connection took
	// nothing of the request, and the request may be repeated, the error is [ErrStale].
	Send() (*http1.Response, error)
	// Answer passes the response on. After an error it is too late for an answer of egressd.
	Answer(*http1.Response) error
	// Settle ends what is under way and returns what the exchange comes to, err and the upload taken together. It is called
	// in any case once the request was allowed.
	Settle(err error) error
	// Reply answers in the place of the upstream.
	Reply(answer.Reply)
	// Abort breaks the response off, so that the client cannot take what it has for the whole.
	Abort()
}

// An InspectedTunnel is the tunnel in which exchanges run. Its errors are of type [*egress.Refusal].
type InspectedTunnel interface {
	// Broken returns the refusal of every request if the upstream could not be reached, or nil.
	Broken() *egress.Refusal
	Destination() policy.Destination
	// Request has a request decided within the tunnel's flow.
	Request(context.Context, *policy.HTTPRequest, egress.RequestReader) (*egress.Flow, error)
	// WhyBroken returns the likely reason for which an upstream broke a connection off, or "".
	WhyBroken() string
	// Outcome returns the outcome with which the tunnel was cut, or else byItself.
	Outcome(byItself record.Outcome) record.Outcome
	// Cut breaks the tunnel off for a policy that refuses what is in it.
	Cut()
	// Redial connects to the upstream again, for a request.
	Redial(ctx context.Context, request *egress.Flow) (net.Conn, error)
	// DialBeside makes another connection to the upstream, over HTTP/1.1, for a request of egressd's own. The connection is
	// the request's.
	DialBeside(ctx context.Context, request *egress.Flow) (net.Conn, error)
}

// Do has the request decided, sent and answered, and records how it ended. It reports whether all of the response has
// reached the client.
func (x *Exchange) Do() (whole bool) {
	defer x.release()
	if x.Tunnel != nil {
		if broken := x.Tunnel.Broken(); broken != nil {
			x.refuse(broken)
			return false
		}
	}
	if err := x.decide(); err != nil {
		x.refuse(AsRefusal(err))
		return false
	}
	return x.conclude(x.Ends.Settle(x.carry()))
}

// release lets go of bodies, and gives memory back. It closes the flow, which only a panic leaves open.
func (x *Exchange) release() {
	if x.Flow != nil {
		x.close(record.OutcomeReset)
	}
	x.going.Drop()
	x.held.release()
	x.bodyMemory.Release()
	x.headMemory.Release()
	x.answerMemory.Release()
}

// decide opens the flow of the request: the policy allows it, and that is recorded. The error is a [*egress.Refusal].
func (x *Exchange) decide() (err error) {
	ctx := x.Context
	if x.Stream == nil {
		present := x.Client.Context()
		defer present.Release()
		ctx = present
	}
	set := x.setFields()
	r := x.request()
	if x.Tunnel != nil {
		x.Flow, err = x.Tunnel.Request(ctx, r.HTTP, x)
	} else {
		x.Flow, err = x.Client.Forwarder.Gate.OpenRequest(ctx, x.Client.Peer, r, x)
	}
	if err != nil {
		return err
	}
	if !slices.Equal(set, x.Flow.SetFields()) {
		refusal := x.Flow.Failed(policy.CredentialUnavailable, "another policy came into force while the request was decided; send it again")
		x.Flow.Close(egress.End{Outcome: record.Outcome(refusal.Decision.Class)})
		return refusal
	}
	if x.Tunnel == nil {
		if refusal := x.Client.Assign(x.Flow.Holder(), x.Flow.Sandbox()); refusal != nil {
			x.Flow.Close(egress.End{Outcome: record.Outcome(policy.TooManyFlows)})
			return refusal
		}
	}
	x.Flow.OnChange(x.changed)
	return nil
}

// changed ends an exchange that a later policy refuses, or whose body has more bytes than that policy lets go up.
func (x *Exchange) changed() {
	switch most := x.Flow.Budget(); {
	case x.Flow.WasCut():
		if x.OnCut != nil {
			x.OnCut()
		}
	case most > 0 && x.payload.Load() > most:
		x.Leave(x.Flow.Exceeded())
	}
}

// request is what the policy is asked about: the request as it will be written.
func (x *Exchange) request() policy.Request {
	return policy.Request{Via: x.Client.Via, Destination: x.Destination, Protocol: policy.ProtocolHTTP, HTTP: &policy.HTTPRequest{
		Method: x.Method, Path: x.Target.Path, Query: x.Target.Query, Header: headerOf(x.AppendFields(nil)), BodySize: x.Length,
		Authority: x.Authority, Upgrade: x.Upgrade, OtherProtocol: x.Upgrade && !x.WebSocket, ReplacesMethod: x.ReplacesMethod,
	}}
}

// carry sends the request that was allowed, and passes the response on.
func (x *Exchange) carry() error {
	if err := x.addCredential(); err != nil {
		return err
	}
	if err := x.Ends.Reach(true); err != nil {
		return err
	}
	if err := x.Flow.Wait(x.Context); err != nil { // no byte leaves before its record is durable
		return err
	}
	resp, err := x.Ends.Send()
	if errors.Is(err, ErrStale) && x.Context.Err() == nil {
		if err := x.Ends.Reach(false); err != nil {
			return err
		}
		resp, err = x.Ends.Send()
	}
	if err != nil {
		return err
	}
	if err := x.checkResponse(resp); err != nil {
		return err
	}
	if err := x.Ends.Answer(resp); err != nil {
		return unanswerable{x.unreadableBody(err)}
	}
	return nil
}

// addCredential has the credentials of the destination change the request.
func (x *Exchange) addCredential() error {
	h := head{method: x.Method, wanted: x.Context, target: x.Target, fields: x.Fields, named: x.Flow.LFSAction() != nil, given: x.givenByLFS(), body: x.wholeBody}
	if err := x.Client.Forwarder.Secrets.Load().add(x.Flow, x.Destination, x.Tunnel == nil, &h, &x.end); err != nil {
		return err
	}
	x.Target, x.Fields, x.redaction, x.searched = h.target, h.fields, h.redaction, h.whole
	x.expectLFS()
	if x.WebSocket && x.Flow.HasCanaries() {
		x.Fields = x.Fields.Delete("Sec-WebSocket-Extensions") // what is compressed cannot be searched
	}
	return nil
}

// checkResponse refuses a response that must not pass, and takes out of its fields what must not.
func (x *Exchange) checkResponse(resp *http1.Response) error {
	x.end.Status = resp.Status
	if x.searched && resp.Status >= 200 && !inOnePiece(resp.Status, resp.Fields) {
		return x.Flow.Failed(policy.ResponseRefused, "")
	}
	resp.Fields = x.Passing(http1.StripResponseHops(resp.Fields))
	return nil
}

// InterimMost is how many interim responses one request may have.
const InterimMost = 32

// Interim returns the fields of an interim response that pass (RFC 9110 section 15.2). The error is a [*egress.Refusal].
func (x *Exchange) Interim(fields http1.Fields) (http1.Fields, error) {
	if x.hints++; x.hints > InterimMost {
		return nil, x.Malformed(fmt.Sprintf("more than %d interim responses", InterimMost))
	}
	return x.Passing(http1.StripResponseHops(fields)), nil
}

// AppendFields appends the request's fields as they go up, which are those that a policy is shown.
func (x *Exchange) AppendFields(out http1.Fields) http1.Fields {
	for _, f := range x.Fields {
		if !dropped(f.Name) {
			out = append(out, f)
		}
	}
	return append(out, x.Hops...)
}

// dropped names the request fields that are written anew or not at all.
func dropped(name string) bool {
	return strings.EqualFold(name, "Host") || strings.EqualFold(name, "Expect")
}

// Upload returns the body of the request as it goes up: searched for canaries, and within the byte budget. moved is called
// when bytes have come. wanted ends the wait for a turn to search it.
func (x *Exchange) Upload(wanted context.Context, moved func()) *PassingBody {
	x.bodyMemory = x.Client.Forwarder.BodyMemory.Reserve(x.Flow.Holder(), x.Flow.Sandbox())
	from := x.Body
	if x.held != nil {
		from = x.held.fromStart()
	}
	wanted, forget := context.WithCancel(wanted)
	turns := x.Client.Forwarder.ScanTurn(wanted, x.Flow)
	x.going = newBody(from, newBodyScanner(x.Flow, x.Fields.Values("Content-Encoding"), x.bodyMemory, turns), x.allowUp, moved)
	x.going.closer, _ = x.Body.(io.Closer)
	x.going.forget = forget
	return x.going
}

// Download returns the body of the response as it goes down: without the credentials of the host.
func (x *Exchange) Download(from io.Reader, moved func()) *PassingBody {
	return newBody(from, x.responseFilter(), allPass, moved)
}

// SpendHead counts the head of the request before it is sent, which is no part of what max_bytes_up is for. The error is a
// [*egress.Refusal].
func (x *Exchange) SpendHead(n int) error {
	if over := x.Flow.Spend(int64(n)); over != nil {
		return over
	}
	x.countUp(n)
	return nil
}

func (x *Exchange) countUp(n int) {
	x.up.Add(int64(n))
	x.Flow.Meter().Up.Add(int64(n))
}

// allowUp counts n more bytes of the request's body, or of the protocol that it changed to, before they are sent. Beyond
// the budget the error is a [*egress.Refusal], and none of them may go.
func (x *Exchange) allowUp(n int) error {
	sum := x.payload.Add(int64(n)) // before the budget is looked at: a policy that changes it looks at the sum afterwards
	if a := x.Flow.LFSAction(); a != nil && sum > a.MaxBytesUp() {
		return x.Flow.Failed(policy.GitDenied, "the upload of a large file has more bytes than the object")
	}
	if most := x.Flow.Budget(); most > 0 && sum > most {
		return x.Flow.Exceeded()
	}
	if over := x.Flow.Spend(int64(n)); over != nil {
		return over
	}
	x.countUp(n)
	return nil
}

// CountDown counts what went to the client.
func (x *Exchange) CountDown(n int) {
	x.down.Add(int64(n))
	x.Flow.Meter().Down.Add(int64(n))
}

// ended returns why a later policy or an operator has ended the exchange: a [*egress.Refusal], ErrCut or nil.
func (x *Exchange) ended() error {
	if over := refusalIn(context.Cause(x.Context)); over != nil {
		return over
	}
	if x.Tunnel != nil || !x.Flow.WasCut() { // a tunnel is cut as a whole
		return nil
	}
	if over := x.Flow.Refusal(); over != nil {
		return over
	}
	return ErrCut
}

// conclude answers an exchange that failed, and records how it ended.
func (x *Exchange) conclude(err error) (whole bool) {
	if over := x.ended(); over != nil && err != nil {
		err = errors.Join(over, err)
	}
	late := errors.As(err, new(unanswerable))
	switch {
	case err == nil:
		x.close(cmp.Or(x.end.Outcome, record.OutcomeClosed))
		return true
	case x.clientLeft(err, late):
		x.close(x.outcome(record.OutcomeClientLeft))
		x.Ends.Abort()
		return false
	case late || errors.Is(context.Cause(x.Context), ErrCut) || errors.Is(err, ErrCut):
		x.close(x.brokenOff(err))
		x.Ends.Abort()
		return false
	}
	refusal := x.refusalFor(err)
	x.end.Note = cmp.Or(refusal.Note, x.end.Note)
	x.close(record.Outcome(refusal.Decision.Class))
	x.reply(refusal, err)
	return false
}

// close records the end of the flow.
func (x *Exchange) close(outcome record.Outcome) {
	x.end.Outcome, x.end.Up, x.end.Down = outcome, x.up.Load(), x.down.Load()
	x.Flow.Close(x.end)
}

func (x *Exchange) outcome(byItself record.Outcome) record.Outcome {
	if x.Tunnel != nil {
		return x.Tunnel.Outcome(byItself)
	}
	return byItself
}

// clientLeft reports whether an exchange failed because its client went away: it has reset its connection or its stream, or
// left in the middle of its request.
func (x *Exchange) clientLeft(err error, late bool) bool {
	var cut incompleteUpload
	switch {
	case errors.As(err, &cut), errors.Is(context.Cause(x.Context), errClientLeft):
		return true
	case refusalIn(err) != nil && x.Flow.Refusal() != nil: // what the client sent was refused
		return false
	case errors.Is(context.Cause(x.Context), ErrIdle): // which ends the stream as well
		return false
	case x.Stream != nil && x.Stream.Err() != nil:
		return true
	}
	_, gone := carry.State(x.Client.Raw)
	return late && gone && refusalIn(err) == nil
}

// brokenOff returns the outcome of an exchange that cannot be answered any more. It is too late to answer what was
// malformed, not to record that.
func (x *Exchange) brokenOff(err error) record.Outcome {
	var bad *http1.MalformedError
	if errors.As(err, &bad) {
		x.recordMalformed(nil, bad)
	}
	switch over := refusalIn(err); {
	case over != nil:
		x.end.Note = cmp.Or(over.Note, x.end.Note)
		return record.Outcome(over.Decision.Class)
	case errors.Is(context.Cause(x.Context), ErrIdle), errors.Is(err, os.ErrDeadlineExceeded):
		return record.OutcomeIdle
	}
	return record.OutcomeReset
}

// refusalFor returns what is answered to a request that was allowed, and failed.
func (x *Exchange) refusalFor(err error) *egress.Refusal {
	var bad *http1.MalformedError
	if refusal := refusalIn(err); refusal != nil {
		return refusal
	}
	switch {
	case errors.As(err, &bad) && bad.Status != 0:
		return x.recordMalformed(nil, bad)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(context.Cause(x.Context), ErrIdle):
		return x.Flow.Failed(policy.NetworkTimeout, "")
	case x.Tunnel != nil && x.Tunnel.WhyBroken() != "":
		return x.Flow.Failed(policy.NetworkTLS, x.Tunnel.WhyBroken())
	}
	return x.Flow.Failed(policy.NetworkReset, "")
}

// unreadableBody tells a response whose body is malformed from one that ended too early, or whose client left.
func (x *Exchange) unreadableBody(err error) error {
	var cut incompleteBody
	var bad *http1.MalformedError
	if errors.As(err, &cut) && errors.As(cut.error, &bad) {
		return x.Malformed(bad.Problem)
	}
	return err
}

// Malformed returns the refusal for a response that is none, or too large.
func (x *Exchange) Malformed(problem string) *egress.Refusal {
	r := x.Flow.Failed(policy.MalformedResponse, "the response cannot be passed on: "+problem)
	r.Note = r.Decision.Reason
	return r
}

// refuse answers a refusal; one for wrong credentials has to wait.
func (x *Exchange) refuse(r *egress.Refusal) {
	f := x.Client.Forwarder
	f.Pause(f.Penalty(x.Client.Peer, r))
	if report, ok := x.pushReport(r); ok {
		x.Ends.Reply(report)
		return
	}
	x.reply(r, nil)
}

// Misread answers a request that could not be understood, and records it. raw is as much of it as a record may need.
func (x *Exchange) Misread(raw []byte, err error) {
	refusal := *x.recordMalformed(raw, err)
	refusal.Hint = hintFor(err)
	x.reply(&refusal, err)
}

func (x *Exchange) recordMalformed(raw []byte, err error) *egress.Refusal {
	return RefuseMalformed(x.Client.Forwarder.Gate, x.Client.Peer, x.Client.Via, raw, err)
}

// reply answers with a refusal. err may say more of what was malformed.
func (x *Exchange) reply(r *egress.Refusal, err error) {
	a := answer.ToMalformed(r, err)
	if inside := x.Tunnel != nil || x.Client.TunnelTo != nil || x.Client.CapturedTo != nil; inside && r.Decision.Class == policy.NameMismatch {
		a = answer.Answer{Status: 421} // misdirected (RFC 9110 §15.5.20)
	}
	x.Ends.Reply(answer.ReplyTo(r, a, x.Recipient))
}

// Idempotent reports whether a request with the method may be sent again (RFC 9110 section 9.2.2).
func Idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return true
	}
	return false
}

// HostField returns the Host field, or the :authority, for a destination.
func HostField(d policy.Destination, defaultPort uint16) string {
	if d.Port == defaultPort {
		if d.Addr.Is6() {
			return "[" + d.Host + "]"
		}
		return d.Host
	}
	return d.String()
}
