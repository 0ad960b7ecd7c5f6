package egress

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// A known zone has every name cached.
type knownZone struct{ *zone }

func (knownZone) Cached(string) ([]netip.Addr, []string, bool) {
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil, true
}

// TestARoundIsWrittenAtOnce looks into the log before and after.
func TestARoundIsWrittenAtOnce(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Host == "denied.test" {
			return deny(r)
		}
		return allow(r)
	})))
	w.Gate.config.Resolver = knownZone{w.zone}
	round := w.Names.NewBatch()
	for turn := range 3 { // in the same rooms
		var all []*Inquiry
		for _, name := range []string{"a.test", "denied.test", "b.test", "c.test"} {
			i, err := round.Inquire(peer, questionOf(name, "A"))
			if err != nil {
				t.Fatal(err)
			}
			a, wait, err := i.AnswerNow()
			switch {
			case wait:
				t.Fatalf("%s has to be waited for", name)
			case name == "denied.test":
				refusalOf(t, err, policy.RuleDeny)
			case err != nil || len(a.Addrs) != 1:
				t.Fatalf("%s: %v, %v", name, a, err)
			}
			all = append(all, i)
		}
		if n := len(w.records(t, record.KindDNS)); n != 4*turn+1 {
			t.Fatalf("%d records before the round is written, want that of the denial alone", n)
		}
		round.Write()
		for n, i := range all {
			if err := i.Written(); err != nil {
				t.Errorf("inquiry %d: %v", n, err)
			}
		}
		round.Reset()
	}
	var names string
	for _, r := range w.records(t, record.KindDNS) {
		names += r.DNS.Name[:1] + " "
		if want := map[bool]string{true: "allow", false: "deny"}[r.DNS.Name != "denied.test"]; r.Decision.Action != want {
			t.Errorf("%s: %s", r.DNS.Name, r.Decision.Action)
		}
	}
	if names != "d a b c d a b c d a b c " {
		t.Errorf("recorded are %s", names)
	}
}

// TestARoundThatCannotBeWrittenIsNotAnswered closes the log before it is.
func TestARoundThatCannotBeWrittenIsNotAnswered(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.Gate.config.Resolver = knownZone{w.zone}
	round := w.Names.NewBatch()
	var all []*Inquiry
	for range 2 {
		i, err := round.Inquire(peer, questionOf("a.test", "A"))
		if err != nil {
			t.Fatal(err)
		}
		if _, wait, err := i.AnswerNow(); wait || err != nil {
			t.Fatal(wait, err)
		}
		all = append(all, i)
	}
	w.Gate.config.Log.Close()
	round.Write()
	for _, i := range all {
		refusalOf(t, i.Written(), policy.AuditUnavailable)
	}
}

// TestAnInquiryThatLeavesItsRoundIsItsOwn has the round go on meanwhile.
func TestAnInquiryThatLeavesItsRoundIsItsOwn(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.zone.addrs["slow.test"] = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	round := w.Names.NewBatch()
	slow, err := round.Inquire(peer, questionOf("slow.test", "A"))
	if err != nil {
		t.Fatal(err)
	}
	if _, wait, err := slow.AnswerNow(); !wait || err != nil {
		t.Fatal(wait, err)
	}
	round.Write()
	slow.Leave()
	round.Reset()
	for range 3 {
		if _, err := round.Inquire(peer, questionOf("other.test", "A")); err != nil {
			t.Fatal(err)
		}
		round.Reset()
	}
	if a, err := slow.Answer(t.Context()); err != nil || len(a.Addrs) != 1 {
		t.Errorf("%v, %v", a, err)
	}
	if r := w.records(t, record.KindDNS); len(r) != 1 || r[0].DNS.Name != "slow.test" {
		t.Errorf("recorded: %+v", r)
	}
}

// TestARoundsRecordsHoldNoCanary has a program ask whose arguments hold one.
func TestARoundsRecordsHoldNoCanary(t *testing.T) {
	const canary = "AKIAQ3EGCANARY77xZ9kLm"
	c, err := secret.NewCanaries([]secret.Canary{{Name: "first", Text: []byte(canary)}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, policy.New(opinion(allow)))
	w.Gate.config.Resolver = knownZone{w.zone}
	w.SetCanaries(c)
	asks := peer
	asks.Process = &policy.Process{PID: 7, Exe: "/usr/bin/dig", Argv: []string{"dig", canary}}
	round := w.Names.NewBatch()
	i, err := round.Inquire(asks, questionOf("a.test", "A"))
	if err != nil {
		t.Fatal(err)
	}
	if _, wait, err := i.AnswerNow(); wait || err != nil {
		t.Fatal(wait, err)
	}
	round.Write()
	if err := i.Written(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "00000001.log"))
	if err != nil || strings.Contains(string(text), canary) || !strings.Contains(string(text), "/usr/bin/dig") {
		t.Errorf("the log says %s, %v", text, err)
	}
}
