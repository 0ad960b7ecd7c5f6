package fair

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

var (
	portsAt    = netip.MustParseAddrPort("93.184.216.34:443")
	portsOther = netip.MustParseAddrPort("93.184.216.34:80")
)

// takeAll begins as many connections as a sandbox may.
func (p *Recent) takeAll(sandbox string, to netip.AddrPort, at time.Duration) (n int) {
	for p.Take(sandbox, sandbox, to, at) {
		n++
	}
	return n
}

func TestNobodyTakesThePortsTowardsOnePlace(t *testing.T) {
	p := Recent{Most: 12}
	for _, row := range []struct {
		sandbox string
		to      netip.AddrPort
		gets    int
	}{{"a", portsAt, 6}, {"b", portsAt, 3}, {"c", portsAt, 2}, {"d", portsAt, 1}, {"e", portsAt, 0}, {"a", portsOther, 6}} {
		if got := p.takeAll(row.sandbox, row.to, 0); got != row.gets {
			t.Errorf("%s began %d of 12 connections to %s, want %d", row.sandbox, got, row.to, row.gets)
		}
	}
	if len(p.uses) != 5 {
		t.Errorf("%d counts are kept, want none of who got nothing", len(p.uses))
	}
	if p.Most = 0; !p.Take("e", "e", portsAt, 0) {
		t.Error("where any number may be begun, one may not")
	}
}

// TestPortsComeBack has them come back when no TIME-WAIT has them any more, and nothing be
// left of who had them.
func TestPortsComeBack(t *testing.T) {
	p := Recent{Most: 12}
	p.takeAll("a", portsAt, 0)
	for at := time.Duration(0); at <= time.Minute; at += time.Second {
		if p.Take("a", "a", portsAt, at) {
			t.Fatalf("after %v one may begin again", at)
		}
	}
	if got := p.takeAll("a", portsAt, 68*time.Second); got != 6 {
		t.Errorf("%d may begin after a minute, want 6", got)
	}
	p.Take("b", "b", portsOther, 80*time.Second) // at another time than the others
	p.Take("c", "c", portsOther, time.Hour)
	if len(p.uses) != 1 || len(p.toward) != 1 || len(p.perSandbox) != 1 {
		t.Errorf("%d counts of %d perSandbox and %d sandboxes are left, want 1", len(p.uses), len(p.toward), len(p.perSandbox))
	}
}

// TestManyPlacesAreCountedTogether has a sandbox begin connections to more perSandbox than
// are told apart.
func TestManyPlacesAreCountedTogether(t *testing.T) {
	p := Recent{Most: 12}
	began := 0
	for i := range 2 * perSandboxMost {
		to := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("93.184.%d.%d", i>>8, i&255)), 443)
		if p.Take("a", "a", to, 0) {
			began++
		}
	}
	if began != perSandboxMost+6 {
		t.Errorf("%d connections were begun, want %d and 6 to all others", began, perSandboxMost)
	}
	if len(p.uses) != perSandboxMost+1 {
		t.Errorf("%d counts are kept", len(p.uses))
	}
	if got := p.takeAll("b", portsAt, 0); got != 6 {
		t.Errorf("another sandbox may begin %d, want 6", got)
	}
	p.Take("b", "b", portsAt, time.Hour)
	if len(p.uses) != 1 || len(p.toward) != 1 || len(p.perSandbox) != 1 {
		t.Errorf("%d counts of %d perSandbox and %d sandboxes are left, want 1", len(p.uses), len(p.toward), len(p.perSandbox))
	}
}

// TestATemplateHasThePortsOfOneSandbox has sandboxes of a template connect until they may not, before another one does.
func TestATemplateHasThePortsOfOneSandbox(t *testing.T) {
	p := Recent{Most: 64}
	take := func(holder, sandbox string) (n int) {
		for p.Take(holder, sandbox, portsAt, 0) {
			n++
		}
		return n
	}
	first, second := take("t-{id}", "t-1"), take("t-{id}", "t-2")
	for i := range 100 {
		take("t-{id}", fmt.Sprint("t-more-", i))
	}
	if plain := take("plain", "plain"); first != 16 || second == 0 || plain < 15 {
		t.Errorf("an id got %d, another %d, a plain sandbox %d of 64", first, second, plain)
	}
	p.Take("x", "x", portsOther, time.Hour)
	p.advance(int64(2 * time.Hour / recentTick))
	if len(p.uses)+len(p.toward)+len(p.perSandbox) != 0 {
		t.Errorf("left behind: %v %v %v", p.uses, p.toward, p.perSandbox)
	}
}
