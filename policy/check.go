package policy

import (
	"context"
)

// Judge decides a request of [ParseCheck] as serve comes to it: an https URL as
// a tunnel, and with its method and path only where that is inspected. judged
// is what of r was decided last.
func (p *Policy) Judge(ctx context.Context, r Request) (d Decision, judged Request) {
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
// nothing were learned.
func (p *Policy) AsWritten() *Policy {
	written := *p
	written.inspection, written.learning = true, false
	return &written
}

// A Reach is how much of what a pattern holds a sandbox may reach, by [Pattern.Samples].
type Reach struct {
	Sandbox          string
	Allowed, Refused int      // how many
	Open, Shut       string   // the first of each
	By, Why          Decision // about that
	Asked            string   // the first that a person would be asked about
	Asks             Decision // about that; its zero value where there is none
}

// Reach asks for what pattern holds, as a tunnel of who, until ctx is done.
func (p *Policy) Reach(ctx context.Context, pattern Pattern, who Sandbox) Reach {
	return p.reach(ctx, pattern, who, func(*Reach) bool { return true })
}

// Opens reports whether who may reach something of what pattern holds. If not, why is
// about all of it.
func (p *Policy) Opens(ctx context.Context, pattern Pattern, who Sandbox) (opens bool, why Reach) {
	r := p.reach(ctx, pattern, who, func(r *Reach) bool { return r.Allowed == 0 })
	return r.Allowed > 0, r
}

// OpensAll reports whether who may reach all of what pattern holds.
func (p *Policy) OpensAll(ctx context.Context, pattern Pattern, who Sandbox) bool {
	r := p.reach(ctx, pattern, who, func(r *Reach) bool { return r.Refused == 0 })
	return r.Refused == 0 && r.Allowed > 0
}

// reach goes on as long as more says so.
func (p *Policy) reach(ctx context.Context, pattern Pattern, who Sandbox, more func(*Reach) bool) Reach {
	r := Reach{Sandbox: who.Name}
	for dst := range pattern.Samples() {
		if ctx.Err() != nil {
			break
		}
		d := p.Decide(ctx, &Request{Sandbox: who, Via: ViaConnect, Destination: dst, Usage: new(Usage)})
		if d.Verdict.Action() == "allow" {
			if r.Allowed++; r.Allowed == 1 {
				r.Open, r.By = dst.String(), d
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
