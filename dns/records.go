package dns

import (
	"context"
	"fmt"
	"slices"

	miekg "github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
)

// A sandbox gets at most this much of the resource records of one name. LookupRRs leaves the others out.
const (
	maxData      = 32
	maxDataBytes = 4096
)

// MayAsk implements [egress.RRResolver].
func (f *Forwarder) MayAsk(kind string) bool { return slices.Contains(f.RecordTypes, kind) }

// LookupRRs implements [egress.RRResolver]. name must be canonical. Nothing is kept: each call asks the upstreams.
// The end of ctx ends it. The error is an [*Error], or wraps that of ctx.
func (f *Forwarder) LookupRRs(ctx context.Context, name, kind string) (egress.RRs, []string, error) {
	rtype, known := miekg.StringToType[kind]
	if !canonical(name) || !known || !f.MayAsk(kind) {
		return egress.RRs{}, nil, &Error{Name: name, Kind: Malformed}
	}
	f.mu.Lock()
	problem := f.takeOff()
	f.mu.Unlock()
	if problem != 0 {
		return egress.RRs{}, nil, &Error{Name: name, Kind: problem}
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.touchDown()
	}()
	replies := []reply{{rtype: rtype, kind: ServerFailure}}
	f.askAll(ctx, name, replies)
	r := &replies[0]
	switch {
	case r.kind != 0 && ctx.Err() != nil:
		return egress.RRs{}, nil, fmt.Errorf("lookup %q: %w", name, ctx.Err())
	case r.kind != 0:
		return egress.RRs{}, nil, &Error{Name: name, Kind: r.kind, Exists: r.exists}
	}
	return egress.RRs{Data: atMost(r.data), TTL: r.ttl}, r.aliases, nil
}

// atMost returns the first of all that are within the bounds.
func atMost(all [][]byte) [][]byte {
	size := 0
	for i, data := range all {
		if size += len(data); i == maxData || size > maxDataBytes {
			return all[:i]
		}
	}
	return all
}

// dataOf returns the data of an SRV or TXT record without compression, and whether it is well-formed.
func dataOf(msg []byte, rr resource) ([]byte, bool) {
	data := msg[rr.start:rr.end]
	switch rr.rtype {
	case miekg.TypeTXT:
		return slices.Clone(data), isText(data)
	case miekg.TypeSRV:
		return service(msg, rr)
	}
	return nil, false
}

// isText reports whether data is one or more strings, each after its length (RFC 1035 section 3.3.14).
func isText(data []byte) bool {
	if len(data) == 0 {
		return false
	}
	for len(data) > 0 {
		size := 1 + int(data[0])
		if size > len(data) {
			return false
		}
		data = data[size:]
	}
	return true
}

// service returns the data of an SRV record (RFC 2782): priority, weight, port, and the target, which is "." where there
// is no such service.
func service(msg []byte, rr resource) ([]byte, bool) {
	const numbers = 6
	if rr.end-rr.start <= numbers {
		return nil, false
	}
	target, off, err := miekg.UnpackDomainName(msg[:rr.end], rr.start+numbers)
	if err != nil || off != rr.end || target != "." && !canonical(plain(target)) {
		return nil, false
	}
	data := make([]byte, numbers+maxOwner)
	copy(data, msg[rr.start:rr.start+numbers])
	end, err := miekg.PackDomainName(miekg.Fqdn(plain(target)), data, numbers, nil, false)
	return data[:max(end, 0)], err == nil
}
