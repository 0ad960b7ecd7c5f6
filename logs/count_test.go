package logs

import (
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestANameAndItsConnectionAreOneLine has names that connections followed, and others, in an overview.
func TestANameAndItsConnectionAreOneLine(t *testing.T) {
	var o Overview
	decisions := DecisionJoiner{Emit: o.Add}
	at := time.Unix(1_800_000_000, 0)
	add := func(sandbox, host string, port uint16, question, action string) {
		at = at.Add(time.Second)
		r := &record.Record{Kind: record.KindRefused, Time: at, Sandbox: sandbox, Via: "transparent", Flow: question + host, Decision: &record.Decision{Action: action, Class: "default-deny"}}
		if r.Dst = (&record.Destination{Host: host, Port: port}); question != "" {
			r.Kind, r.Via, r.Dst, r.DNS = record.KindDNS, "dns", nil, &record.DNS{Name: host, Type: question}
		}
		decisions.Add(r)
	}
	for _, question := range []string{"A", "AAAA", "A", "AAAA", "TXT"} {
		add("one", "joined.test", 0, question, "deny")
	}
	add("one", "joined.test", 443, "", "deny")
	for _, question := range []string{"A", "AAAA", "HTTPS"} {
		add("one", "asked.test", 0, question, "deny")
	}
	add("two", "joined.test", 0, "A", "deny")
	add("one", "allowed.test", 0, "A", "deny")
	add("one", "allowed.test", 443, "", "allow")
	decisions.Flush(OutcomeOpen)
	got := map[string]int64{}
	for _, g := range o.Section("deny") {
		got[g.Who+" "+g.Destination+" "+g.What+" "+g.Flow] = g.Count
	}
	want := map[string]int64{
		"one joined.test:443 transparent joined.test": 1, "one joined.test dns TXT TXTjoined.test": 1,
		"one asked.test dns Aasked.test": 1, "two joined.test dns Ajoined.test": 1, "one allowed.test dns Aallowed.test": 1,
	}
	if len(got) != len(want) {
		t.Errorf("the lines are %v", got)
	}
	for line, count := range want {
		if got[line] != count {
			t.Errorf("%q counts %d, want %d: %v", line, got[line], count, got)
		}
	}
}
