package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// settling is how long it may take until everything that a case began is over.
const settling = 12 * time.Second

// within is how long something may take: a leaky proxy has its test wait in vain for
// what always comes of egressd.
func (d *daemon) within(usual time.Duration) time.Duration {
	if d.foreign {
		return usual / 4
	}
	return usual
}

// try carries out one case through one way in and judges it.
func (d *daemon) try(t *testing.T, v *vector, way, to string) {
	t.Helper()
	s := d.observe(t, v, way, to)
	problems := judge(&v.Expect, s)
	if len(problems) > 0 && v.Or != nil {
		if others := judge(v.Or, s); len(others) < len(problems) {
			problems = others
		}
	}
	for _, p := range problems {
		t.Errorf("%s %s, %s %q: %s", v.ID, v.Says, way, shorten(to), p)
	}
}

func shorten(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// observe carries out one case, waits until it is over on all sides, and
// returns what was seen.
func (d *daemon) observe(t *testing.T, v *vector, way, to string) *sight {
	t.Helper()
	d.pacing.pace(fmt.Sprint(way, to, v.ID), singles)
	wire, err := d.world.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked, arrivals, heard := d.world.zone.mark(), d.world.Sink.Mark(), d.world.origin.heard.mark()
	written, err := d.log.mark()
	if err != nil {
		t.Fatal(err)
	}
	s := &sight{to: to, sandbox: "default", digest: d.digest(t)}
	var src string
	open := d.descriptors()
	s.exchange, src = d.put(t, v, way, to)
	s.held = d.settle(open, func() bool {
		return d.recorded(src, written) && d.allEnded(arrivals) && d.world.Sink.Mark()-arrivals >= d.dialled(t, wire)
	})
	if s.records, err = d.log.of(src, written); err != nil {
		t.Error(err)
	}
	if s.packets, err = d.world.Wire.Since(wire); err != nil {
		t.Fatal(err)
	}
	s.queries = distinct(d.world.zone.since(asked))
	s.arrived, s.heard = d.arrived(arrivals), d.world.origin.heard.since(heard)
	s.alive = d.alive()
	if v.Policy == "P-auth" {
		s.sandbox = d.whoAsked(s.records)
	}
	return s
}

// whoAsked is the sandbox that a record of P-auth has to name: none where the
// caller could not prove to be one.
func (d *daemon) whoAsked(records []record.Record) string {
	for _, r := range records {
		if r.Decision != nil && r.Decision.Class != "unknown-sandbox" && r.Kind != record.KindRefused {
			return "ci"
		}
	}
	return ""
}

// settle waits until the case's flows are over and recorded, and egressd has
// no more descriptors than before; where it has, it returns how many are TCP
// sockets. The kernel's table of them takes milliseconds to read.
func (d *daemon) settle(before int, over func() bool) (held int) {
	const usual = 200 * time.Millisecond
	if eventually(usual, func() bool { return d.descriptors() <= before && over() }) {
		return 0
	}
	eventually(d.within(settling), func() bool {
		held = d.connections()
		return held == 0 && over()
	})
	return held
}

// dialled counts the connections to hosts that accept one: the sink may be
// about to.
func (d *daemon) dialled(t *testing.T, wire int) int {
	t.Helper()
	packets, err := d.world.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	from := map[netip.AddrPort]bool{}
	for _, p := range packets {
		outward := p.From.Addr() == netip.MustParseAddr("10.98.0.1") || p.From.Addr() == netip.MustParseAddr("fd98::1")
		if p.Protocol == lab.ProtocolTCP && outward && p.To.String() != resolver && !lab.Unanswering(p.To.Addr()) {
			from[p.From] = true
		}
	}
	return len(from)
}

func (d *daemon) allEnded(arrivals int) bool {
	for _, a := range d.world.Sink.Since(arrivals) {
		select {
		case <-a.Ended():
		default:
			return false
		}
	}
	return true
}

// recorded reports whether the log says how a connection ended: every tunnel
// that it opened has a close record, and there is a decision.
func (d *daemon) recorded(src string, written int) bool {
	records, err := d.log.of(src, written)
	if err != nil {
		return false
	}
	open := map[string]bool{}
	decided := false
	for _, r := range records {
		switch r.Kind {
		case record.KindOpen, record.KindRequest:
			decided = true
			open[r.Flow] = r.Decision != nil && r.Decision.Action == "allow"
		case record.KindRefused:
			decided = true
		case record.KindDNS:
			decided = decided || r.Via == "dns"
		case record.KindClose:
			open[r.Flow] = false
		}
	}
	for _, still := range open {
		if still {
			return false
		}
	}
	return decided
}

func (d *daemon) arrived(mark int) (seen []arrived) {
	for _, a := range d.world.Sink.Since(mark) {
		received, _ := a.Received()
		seen = append(seen, arrived{to: a.To, received: string(received)})
	}
	return seen
}

// digest returns the digest of the policy that the log says was put in force.
func (d *daemon) digest(t *testing.T) string {
	t.Helper()
	records, err := d.log.since(0)
	if err != nil {
		t.Error(err)
	}
	for _, r := range slices.Backward(records) {
		if r.Kind == record.KindPolicy && r.Decision != nil {
			return r.Decision.Policy
		}
	}
	return ""
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// healthy checks, at the end of many cases, what shows only then: the log as a
// whole, and descriptors that were not given back.
func (d *daemon) healthy(t *testing.T, before int) {
	t.Helper()
	for _, p := range d.log.flawed() {
		t.Errorf("the audit log: %s", p)
	}
	const pools = 8 // sockets to the name server that may be kept
	after := 0
	if !eventually(settling, func() bool { after = d.descriptors(); return after <= before+pools }) {
		t.Errorf("egressd had %d descriptors and has %d", before, after)
	}
	d.oncePerFlow(t)
	for _, secret := range []string{"hunter2", "Y2k6", "open-sesame", "another-secret", "stolen", realSecret} {
		if d.log.holds(secret) {
			t.Errorf("the secret %q stands in the audit log", secret)
		}
	}
}

// oncePerFlow looks for records that came after their case was judged.
func (d *daemon) oncePerFlow(t *testing.T) {
	t.Helper()
	records, err := d.log.since(0)
	if err != nil {
		t.Error(err)
	}
	flows := map[string]int{}
	for _, r := range records {
		sum := r.Count > 0 // of denials that came after the one whose id it has
		if !sum && (r.Kind == record.KindOpen || r.Kind == record.KindRequest || r.Kind == record.KindRefused) {
			flows[r.Flow]++
		}
	}
	for flow, n := range flows {
		if n != 1 {
			t.Errorf("flow %s was decided %d times", flow, n)
		}
	}
}

// name makes a test's name of a vector.
func (v *vector) name() string { return fmt.Sprintf("%s %s", v.ID, v.Says) }
