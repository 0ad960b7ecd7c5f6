package world

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// Settling is how long it may take until everything that a case began is over.
const Settling = 12 * time.Second

// within is how long something may take: a leaky proxy has its test wait in vain for
// what always comes of egressd.
func (d *Daemon) within(usual time.Duration) time.Duration {
	if d.Foreign {
		return usual / 4
	}
	return usual
}

// Try carries out one case through one way in and judges it.
func (d *Daemon) Try(t *testing.T, v *Vector, way, to string) {
	t.Helper()
	s := d.Observe(t, v, way, to)
	problems := Judge(&v.Expect, s)
	if len(problems) > 0 && v.Or != nil {
		if others := Judge(v.Or, s); len(others) < len(problems) {
			problems = others
		}
	}
	for _, p := range problems {
		t.Errorf("%s %s, %s %q: %s", v.ID, v.Says, way, Shorten(to), p)
	}
}

// Shorten returns at most 80 bytes of a text, for a message of a test.
func Shorten(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// Observe carries out one case, waits until it is over on all sides, and
// returns what was seen.
func (d *Daemon) Observe(t *testing.T, v *Vector, way, to string) *Observation {
	t.Helper()
	d.Pacing.Pace(fmt.Sprint(way, to, v.ID), Singles)
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked, arrivals, heard := d.World.Zone.Mark(), d.World.Sink.Mark(), d.World.Origin.Heard.Mark()
	written, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	s := &Observation{to: to, claims: v.Claims != "" || isCaptured(way), Sandbox: "default", Digest: d.Digest(t)}
	if at, err := netip.ParseAddrPort(cmp.Or(to, v.Inside)); err == nil {
		s.asked = at.Addr().Unmap().String()
	} else if at, _, ok := v.CapturedTo(to); ok && isCaptured(way) {
		s.asked = at.Addr().String()
	}
	var src string
	open := d.Descriptors()
	s.Exchange, src = d.Send(t, v, way, to)
	s.Held = d.settle(open, func() bool {
		return d.Recorded(src, written) && d.allEnded(arrivals) && d.World.Sink.Mark()-arrivals >= d.dialled(t, wire)
	})
	if s.Records, err = d.Log.Of(src, written); err != nil {
		t.Error(err)
	}
	if s.Packets, err = d.World.Wire.Since(wire); err != nil {
		t.Fatal(err)
	}
	s.Queries = Distinct(d.World.Zone.Since(asked))
	s.Arrived, s.Heard = d.Arrived(arrivals), d.World.Origin.Heard.Since(heard)
	s.Alive = d.Alive()
	if v.Policy == "P-auth" {
		s.Sandbox = whoAsked(s.Records, "ci")
	}
	return s
}

// whoAsked is the sandbox that records have to name if each request proves it: none where the
// caller could not, or where egressd could not read the request.
func whoAsked(records []record.Record, sandbox string) string {
	for _, r := range records {
		if r.Decision != nil && r.Decision.Class != "unknown-sandbox" && r.Kind != record.KindRefused {
			return sandbox
		}
	}
	return ""
}

// settle waits until the case's flows are over and recorded, and egressd has
// no more descriptors than before; where it has, it returns how many are TCP
// sockets. The kernel's table of them takes milliseconds to read.
func (d *Daemon) settle(before int, over func() bool) (held int) {
	const usual = 200 * time.Millisecond
	if Eventually(usual, func() bool { return d.Descriptors() <= before && over() }) {
		return 0
	}
	Eventually(d.within(Settling), func() bool {
		held = d.Connections()
		return held == 0 && over()
	})
	return held
}

// dialled counts the connections to hosts that accept one: the sink may be
// about to.
func (d *Daemon) dialled(t *testing.T, wire int) int {
	t.Helper()
	packets, err := d.World.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	from := map[netip.AddrPort]bool{}
	for _, p := range packets {
		outward := p.From.Addr() == netip.MustParseAddr("10.98.0.1") || p.From.Addr() == netip.MustParseAddr("fd98::1")
		if p.Protocol == lab.ProtocolTCP && outward && p.To.String() != Resolver && !lab.Unanswering(p.To.Addr()) {
			from[p.From] = true
		}
	}
	return len(from)
}

func (d *Daemon) allEnded(arrivals int) bool {
	for _, a := range d.World.Sink.Since(arrivals) {
		select {
		case <-a.Ended():
		default:
			return false
		}
	}
	return true
}

// Recorded reports whether the log says how a connection ended: every tunnel
// that it opened has a close record, and there is a decision.
func (d *Daemon) Recorded(src string, written int) bool {
	records, err := d.Log.Of(src, written)
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

// Arrived returns the connections that reached the internet after a mark of the sink.
func (d *Daemon) Arrived(mark int) (seen []Arrival) {
	for _, a := range d.World.Sink.Since(mark) {
		received, _ := a.Received()
		seen = append(seen, Arrival{to: a.To, Received: string(received)})
	}
	return seen
}

// Digest returns the digest of the policy that the log says was put in force.
func (d *Daemon) Digest(t *testing.T) string {
	t.Helper()
	records, err := d.Log.Since(0)
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

// Distinct sorts names, and returns each once.
func Distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// Healthy checks, at the end of many cases, what shows only then: the log as a
// whole, and descriptors that were not given back.
func (d *Daemon) Healthy(t *testing.T, before int) {
	t.Helper()
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
	const pools = 8 // sockets to the name server that may be kept
	after := 0
	if !Eventually(Settling, func() bool { after = d.Descriptors(); return after <= before+pools }) {
		t.Errorf("egressd had %d descriptors and has %d", before, after)
	}
	d.oncePerFlow(t)
	for _, secret := range []string{"hunter2", "Y2k6", "open-sesame", "another-secret", "stolen", RealSecret} {
		if d.Log.Holds(secret) {
			t.Errorf("the secret %q stands in the audit log", secret)
		}
	}
}

// oncePerFlow looks for records that came after their case was judged.
func (d *Daemon) oncePerFlow(t *testing.T) {
	t.Helper()
	records, err := d.Log.Since(0)
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

// Name makes a test's name of a vector.
func (v *Vector) Name() string { return fmt.Sprintf("%s %s", v.ID, v.Says) }
