package policy

import (
	"context"
	"strings"
)

// Judge decides a request of a check as serve comes to it: an https URL as
// a tunnel, and with its method and path only where that is inspected. judged
// is what of r was decided last.
func (p *Policy) Judge(ctx context.Context, r Request) (d Decision, judged Request) {
	if r.HTTP != nil {
		r.HTTP = p.asWritten(&r)
	}
	if r.HTTP == nil || r.inClear() {
		return p.Decide(ctx, &r), r
	}
	judged = r
	judged.HTTP = nil
	if d = p.Decide(ctx, &judged); d.Verdict != Inspect {
		return d, judged
	}
	judged.HTTP, judged.Protocol = r.HTTP, ProtocolHTTP
	judged.TLS = &ClientHello{Inspected: true}
	if !r.Destination.Addr.IsValid() {
		judged.TLS.ServerName = r.Destination.Host
	}
	return p.Decide(ctx, &judged), judged
}

// AsWritten returns p as its rules are written: as if every tunnel could be inspected, and
// nothing were observed.
func (p *Policy) AsWritten() *Policy {
	written := *p.Enforced()
	written.inspection = true
	return &written
}

// A Reach is how much of an [Opening] a sandbox may reach, by [Pattern.Samples].
type Reach struct {
	Sandbox          string
	Allowed, Refused int      // how many
	Partly           int      // of Allowed, those of which only some requests are allowed
	Open, Shut       string   // the first of each
	By, Why          Decision // about that
	Asked            string   // the first that a person would be asked about
	Asks             Decision // about that; its zero value where there is none
}

// Reach asks for o, as requests or tunnels of who, until ctx is done.
func (p *Policy) Reach(ctx context.Context, o Opening, who Sandbox) Reach {
	return p.reach(ctx, o, who, func(*Reach) bool { return true })
}

// Opens reports whether who may reach something of o. If not, why is about all of it.
func (p *Policy) Opens(ctx context.Context, o Opening, who Sandbox) (opens bool, why Reach) {
	r := p.reach(ctx, o, who, func(r *Reach) bool { return r.Allowed == 0 })
	return r.Allowed > 0, r
}

// OpensAll reports whether who may reach all of o.
func (p *Policy) OpensAll(ctx context.Context, o Opening, who Sandbox) bool {
	r := p.reach(ctx, o, who, func(r *Reach) bool { return r.Refused+r.Partly == 0 })
	return r.Refused+r.Partly == 0 && r.Allowed > 0
}

// reach goes on as long as more says so.
func (p *Policy) reach(ctx context.Context, o Opening, who Sandbox, more func(*Reach) bool) Reach {
	r := Reach{Sandbox: who.Name}
	for dst := range o.Pattern.Samples() {
		if ctx.Err() != nil {
			break
		}
		d, _ := p.Judge(ctx, o.Sample(dst, who))
		if d.Verdict.Action() == "allow" {
			if r.Allowed++; r.Allowed == 1 {
				r.Open, r.By = dst.String(), d
			}
			if d.Verdict == Inspect && len(d.AllowedIf) > 0 {
				r.Partly++
			}
		} else if r.Refused++; r.Refused == 1 {
			r.Shut, r.Why = dst.String(), d
		}
		if d.Verdict == Ask && r.Asked == "" {
			r.Asked, r.Asks = dst.String(), d
		}
		if !more(&r) {
			break
		}
	}
	return r
}

// OverruledBy returns the first decision about a sample of o by which a ceiling keeps it shut. If above is set, so may the
// organisation's layer by any rule. at is the sample. The decision is to inspect if requests of some methods or paths
// remain. It looks at a few samples only.
func (p *Policy) OverruledBy(ctx context.Context, o Opening, who Sandbox, above bool) (at string, why Decision, overruled bool) {
	const most = 4
	n := 0
	for dst := range o.Pattern.Samples() {
		if n++; n > most {
			break
		}
		d, _ := p.AsWritten().Judge(ctx, o.Sample(dst, who))
		bound := strings.HasPrefix(d.Rule, "ceiling") || above && d.Layer == Organisation
		if bound && (d.Verdict == Deny || d.Verdict == Inspect && !o.Conditional() && len(d.AllowedIf) > 0) {
			return dst.String(), d, true
		}
	}
	return "", Decision{}, false
}
