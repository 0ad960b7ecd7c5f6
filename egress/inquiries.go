package egress

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// Inquiries is what a sandbox may ask egressd itself, at [policy.InquiryURL]. It answers each sandbox about that sandbox
// alone, lets nothing pass, and is safe for concurrent use.
type Inquiries struct{ gate *Gate }

// Bounds of what one sandbox asks.
const (
	inquiriesPerSecond = 10
	inquiriesAtOnce    = 40
	accessPerSecond    = 1.0 / 60
	accessAtOnce       = 10
	denialsKept        = 64
)

// inquiring is what an account keeps for inquiries. The zero value is ready.
type inquiring struct {
	mu      sync.Mutex // guards what follows
	denials []Denial   // the newest last
	asked   *fair.Bucket
	access  *fair.Bucket
}

// take counts one more inquiry, or one more request for access.
func (k *inquiring) take(access bool) bool {
	k.mu.Lock()
	if k.asked == nil {
		k.asked = &fair.Bucket{Rate: inquiriesPerSecond, Most: inquiriesAtOnce}
		k.access = &fair.Bucket{Rate: accessPerSecond, Most: accessAtOnce}
	}
	of := k.asked
	if access {
		of = k.access
	}
	k.mu.Unlock()
	ok, _ := of.Take(1, time.Now())
	return ok
}

// A Denial is what a sandbox was told when it was denied something.
type Denial struct {
	ID          string       `json:"id"`
	Time        time.Time    `json:"time"` // of the last one
	Times       int64        `json:"times"`
	Destination string       `json:"destination"`
	Method      string       `json:"method,omitempty"`
	Path        string       `json:"path,omitempty"`
	Class       policy.Class `json:"class"`
	Rule        string       `json:"rule"`
	Layer       policy.Layer `json:"layer,omitempty"`
	Reason      string       `json:"reason,omitempty"`
	AllowedIf   []string     `json:"allowed_if,omitempty"`
	Message     string       `json:"deny_message,omitempty"` // [DenyMessages]
	DNS         bool         `json:"dns,omitempty"`          // a question for the name alone
	host        string       // of Destination
}

// denialPath is how many bytes of a path a Denial has at most.
const denialPath = 256

// keepDenial keeps a denial for the sandbox to ask about. Denials with one id, which a summed record has, are one entry.
func (f *Flow) keepDenial() {
	name := f.request.Sandbox.Name
	if name == "" || !f.gate.Inquiries.On() {
		return
	}
	r, d := f.request, f.decision
	if r.DNS != nil && d.Class == policy.AskRejected {
		return // the connection to that name is what a person is asked about
	}
	one := Denial{
		ID: f.id.String(), Time: time.Now().UTC(), Times: 1, Destination: r.Destination.String(), host: strings.Clone(r.Destination.Host),
		Class: d.Class, Rule: d.Rule, Layer: d.Layer, Reason: d.Reason, AllowedIf: d.AllowedIf, Message: f.gate.DenyMessages().beside(d), DNS: r.DNS != nil,
	}
	if r.DNS != nil || r.Destination.Port == 0 {
		one.Destination = one.host
	}
	if h := r.HTTP; h != nil {
		one.Method, one.Path = strings.Clone(h.Method), h.Path[:min(len(h.Path), denialPath)]
	}
	one.Destination = f.gate.canaries.without(one.Destination)
	path := []byte(one.Path)
	f.gate.canaries.mask(path)
	one.Path = string(path)
	k := &f.gate.accounts.of(name).inquiring
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.IndexFunc(k.denials, func(other Denial) bool { return other.ID == one.ID }); i >= 0 {
		one.Times = k.denials[i].Times + 1
		k.denials = slices.Delete(k.denials, i, i+1)
	} else if len(k.denials) >= denialsKept {
		k.denials = slices.Delete(k.denials, 0, 1)
	}
	k.denials = append(k.denials, one)
}

// An Inquirer is a sandbox that asks.
type Inquirer struct {
	gate *Gate
	peer sandbox.Peer
	via  policy.Via
	who  policy.Sandbox
}

// ErrInquiresTooOften is the error for a sandbox that asks too often.
var ErrInquiresTooOften = errors.New("this sandbox asks too often")

// Of identifies who asks. The error is a [*Refusal] for a peer of no sandbox.
func (q *Inquiries) Of(ctx context.Context, peer sandbox.Peer, via policy.Via) (*Inquirer, error) {
	g := q.gate
	f := g.newFlow(peer, policy.Request{Via: via, Destination: policy.Destination{Host: policy.InquiryHost, Port: 80}})
	if g.shut.Load() {
		return nil, f.refuse(stopping)
	}
	who, err := g.accounts.identify(peer)
	if err != nil && g.config.Sandboxes.Awaits(peer) {
		g.config.Sandboxes.Await(ctx, peer)
		who, err = g.accounts.identify(peer)
	}
	if err != nil {
		f.request.Sandbox.Container, f.request.Sandbox.Name = who.Container, who.Name
		return nil, f.refuse(unidentified(err))
	}
	return &Inquirer{g, peer, via, who}, nil
}

// On reports whether sandboxes may ask.
func (q *Inquiries) On() bool { return q.gate.config.Inquiries != nil }

// An Allowance is a rule by which a sandbox may reach something.
type Allowance struct {
	Effect string       `json:"effect"` // allow, or ask: a person is asked
	What   string       `json:"what"`
	Rule   string       `json:"rule"`
	Layer  policy.Layer `json:"layer,omitempty"`
}

// Allowances returns the rules by which the sandbox may reach something. Others may narrow them.
func (q *Inquirer) Allowances() []Allowance { return q.gate.config.Inquiries(&q.who) }

// Sandbox is who asks.
func (q *Inquirer) Sandbox() *policy.Sandbox { return &q.who }

// Take counts one more inquiry of the sandbox. The error is [ErrInquiresTooOften].
func (q *Inquirer) Take() error {
	if !q.kept().take(false) {
		return ErrInquiresTooOften
	}
	return nil
}

func (q *Inquirer) kept() *inquiring { return &q.gate.accounts.of(q.who.Name).inquiring }

// Denials returns what was denied lately, the newest first. It leaves out a question for a name if a
// connection or a request to that name was denied as well.
func (q *Inquirer) Denials() []Denial {
	k := q.kept()
	k.mu.Lock()
	all := slices.Clone(k.denials)
	k.mu.Unlock()
	slices.Reverse(all)
	reached := map[string]bool{}
	for i := range all {
		if !all[i].DNS {
			reached[all[i].host] = true
		}
	}
	return slices.DeleteFunc(all, func(d Denial) bool { return d.DNS && reached[d.host] })
}

// Denial returns the denial with an id. It knows the last denials of this sandbox and no others.
func (q *Inquirer) Denial(id string) (Denial, bool) {
	k := q.kept()
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.denials, func(d Denial) bool { return d.ID == id })
	if i < 0 {
		return Denial{}, false
	}
	return k.denials[i], true
}

// An Access is the state of what a sandbox asks for.
type Access struct {
	ID     string     `json:"id,omitempty"` // of the question; empty: nobody is asked
	State  string     `json:"state"`        // allowed, pending, approved, rejected, refused, gone
	What   string     `json:"what,omitempty"`
	Reason string     `json:"reason,omitempty"` // why it is refused
	Until  *time.Time `json:"until,omitempty"`  // until when the answer counts
}

// The states of an [Access] that no question has.
const (
	AccessAllowed = "allowed" // the policy allows it already
	AccessRefused = "refused" // nobody is asked: the policy denies it whatever a person says, or nobody can be asked
)

// Ask asks a person for o, which is about one host and port, in the words of the sandbox. It asks nobody if the policy
// allows o already, or if a line denies it. A rule that asks about o gets its own question. The
// error is [ErrInquiresTooOften], or a [*Refusal] if the question could not be recorded.
func (q *Inquirer) Ask(ctx context.Context, o policy.Opening, words string) (Access, error) {
	g := q.gate
	if !q.kept().take(true) {
		return Access{}, ErrInquiresTooOften
	}
	p := g.policy.Load()
	reach := p.Reach(ctx, o, q.who)
	a := Access{What: o.String()}
	if text := []byte(a.What); g.canaries.masks(text) {
		return Access{What: string(text), State: AccessRefused, Reason: "it holds a secret that must not leave"}, nil
	}
	switch why := &reach.Why; {
	case reach.Allowed > 0 && reach.Refused+reach.Partly == 0:
		a.State = AccessAllowed
		return a, nil
	case !g.Approvals.TakesAccess(), reach.Asked != "" && !g.Approvals.IsOpen():
		a.State, a.Reason = AccessRefused, "nobody can be asked now"
		return a, nil
	case reach.Asked != "":
		return q.askRule(ctx, o, words)
	case reach.Refused > 0 && !mayGrant(why):
		a.State, a.Reason = AccessRefused, why.Reason
		return a, nil
	}
	return q.askAccess(o, words)
}

// mayGrant reports whether a line beside the others could open what is denied.
func mayGrant(d *policy.Decision) bool {
	switch d.Class {
	case policy.DefaultDeny, policy.MethodDenied, policy.PathDenied:
		return d.Layer != policy.Organisation
	}
	return false
}

// flow is a flow that was never open, of one request that o allows.
func (q *Inquirer) flow(o policy.Opening) *Flow {
	var r policy.Request
	for dst := range o.Pattern.Samples() {
		r = o.Sample(dst, q.who)
		break
	}
	r.Via = q.via
	return q.gate.newFlow(q.peer, r)
}

// askAccess has a person asked for o, of which no rule speaks.
func (q *Inquirer) askAccess(o policy.Opening, words string) (Access, error) {
	g := q.gate
	f := q.flow(o)
	if f.request.HTTP != nil {
		f.request.HTTP.Path = o.Path // as it is asked for
	}
	dst := &f.request.Destination
	about := approvals.Subject{Sandbox: q.who.Name, Layer: policy.PerSandbox, Source: "access", Rule: AccessRule, Host: dst.Host, Port: dst.Port, Method: o.Method, Path: o.Path}
	one, fresh, ok := g.Approvals.AskAccess(about, g.ids.next(time.Now()), f.request, o, accessReason, words)
	if !ok {
		return Access{}, ErrInquiresTooOften
	}
	if fresh {
		f.decision = &policy.Decision{Verdict: policy.Ask, Class: policy.AskPending, Rule: AccessRule, Layer: policy.PerSandbox, Reason: accessReason, Policy: g.Digest()}
		if f.recordQuestion(one.ID, f.request, one.Words) != nil {
			g.Approvals.Remove(one.ID)
			return Access{}, f.refusal(unavailable)
		}
	}
	if g.Attachments.left(&q.who) { // the end of its run may have missed the question
		g.Approvals.RunEnded(&q.who)
	}
	return accessOf(&one), nil
}

// AccessRule is the rule of a question that a sandbox asks of itself.
const AccessRule = "access-request"

const accessReason = "the sandbox asks for what no rule speaks of"

// askRule lists the question of the rule that asks about o, with the words of the sandbox.
func (q *Inquirer) askRule(ctx context.Context, o policy.Opening, words string) (Access, error) {
	g := q.gate
	if o.Conditional() && !policy.NamesOne(o.Method, o.Path) {
		return Access{What: o.String(), State: AccessRefused, Reason: "a rule asks a person about each request there: name one method and one path"}, nil
	}
	f := q.flow(o)
	if f.decide(ctx, f.request) == nil {
		return Access{What: o.String(), State: AccessAllowed}, nil
	}
	if !f.mayAsk() {
		return Access{What: o.String(), State: AccessRefused, Reason: f.decision.Reason}, nil
	}
	w, d := f.join(ctx, f.request, nil, words, time.Time{})
	if d != nil {
		return Access{What: o.String(), State: AccessRefused, Reason: d.Reason}, nil
	}
	one, _, found := g.Approvals.Find(w.ID)
	if !found {
		return Access{What: o.String(), State: string(approvals.Gone)}, nil
	}
	return accessOf(&one), nil
}

// accessOf is what the sandbox is told of its question.
func accessOf(q *approvals.Question) Access {
	a := Access{ID: q.ID.String(), State: string(q.State), What: whatOf(q)}
	if q.State != approvals.Pending {
		until := q.Until.UTC().Truncate(time.Second)
		a.Until = &until
	}
	return a
}

// Access returns the state of a question of this sandbox. It waits until the question is answered, or ctx is done. found
// is false for the questions of others and for what is no longer listed.
func (q *Inquirer) Access(ctx context.Context, id record.ID) (a Access, found bool) {
	for {
		one, changed, found := q.gate.Approvals.Find(id)
		if !found || one.Subject.Sandbox != q.who.Name {
			return Access{}, false
		}
		if a = accessOf(&one); one.State != approvals.Pending {
			return a, true
		}
		// An answer opens the policy before it counts, and holds Granting until it does.
		if one.Access != nil && q.gate.policy.Load().OpensAll(context.WithoutCancel(ctx), *one.Access, q.who) && !q.gate.Approvals.isGranting() {
			if now, _, there := q.gate.Approvals.Find(id); there && now.State == approvals.Pending {
				a.State = AccessAllowed
				return a, true
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return a, true
		case <-q.gate.life.Done():
			return a, true
		}
	}
}

// Accesses returns the questions of this sandbox, the oldest first.
func (q *Inquirer) Accesses() (all []Access) {
	listed, _, _, _ := q.gate.Approvals.All()
	for _, one := range listed {
		if one.Subject.Sandbox == q.who.Name {
			all = append(all, accessOf(one))
		}
	}
	return all
}
