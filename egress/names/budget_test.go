package names

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// TestOrdinaryNamesAreWithinTheBudget looks up what programs look up.
func TestOrdinaryNamesAreWithinTheBudget(t *testing.T) {
	l := Limits{}.WithDefaults()
	b := new(Budget)
	take := func(name string, at time.Duration) {
		t.Helper()
		if !b.TakeName(l, name, noon.Add(at)) {
			t.Fatalf("%s was refused after %v", name, at)
		}
	}
	for turn := range 24 * 180 { // names that live for 20 seconds, a day long
		for _, name := range []string{"registry", "api", "codeload", "objects", "uploads", "avatars", "raw", "collector"} {
			take(name+".example.org", time.Duration(turn)*20*time.Second)
		}
	}
	for i := range 200 { // a browser at a site with many hosts, within a minute
		take(fmt.Sprintf("rr%d---sn-4g5ed%dz.googlevideo.com", i%7, i), 24*time.Hour+time.Duration(i)*300*time.Millisecond)
	}
	for i := range 2000 { // and at many sites
		take(fmt.Sprintf("www.site%d.com", i), 25*time.Hour)
	}
}

// TestNamesThatCarryDataAreNot sends a file out in names, as fast as it may, in
// labels of 63 random bytes, in short ones, and in two names that take turns.
func TestNamesThatCarryDataAreNot(t *testing.T) {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	random := rand.New(rand.NewPCG(1, 2))
	label := func(n int) string {
		text := make([]byte, n)
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(text)
	}
	for says, row := range map[string]struct {
		name func() string
		most int // names that may pass in an hour and a day of trying
	}{
		"long labels":  {func() string { return label(63) + "." + label(63) + "." + label(63) + ".attacker.test" }, 2 * 40},
		"short labels": {func() string { return label(8) + ".attacker.test" }, 2 * 1200},
		"two names":    {func() string { return label(1) + ".attacker.test" }, 2 * 17000},
	} {
		l := Limits{}.WithDefaults()
		b, passed := new(Budget), 0
		for i := range 60_000 {
			if b.TakeName(l, row.name(), noon.Add(time.Duration(i)*60*time.Millisecond)) {
				passed++
			}
		}
		if passed > row.most || passed == 0 {
			t.Errorf("%s: %d names passed in an hour, want at most %d", says, passed, row.most)
		}
	}
}

// TestDomainsBeyondCountingShareABudget asks below more domains than are counted
// apart.
func TestDomainsBeyondCountingShareABudget(t *testing.T) {
	l := Limits{NameBytes: 64}.WithDefaults()
	b, passed := new(Budget), 0
	for i := range maxDomains + 1000 {
		if b.TakeName(l, fmt.Sprintf("%s.d%d.test", strings.Repeat("ab", 20), i), noon) {
			passed++
		}
	}
	if passed < maxDomains || passed > maxDomains+20 {
		t.Errorf("%d of %d passed", passed, maxDomains+1000)
	}
	if len(b.domains) != maxDomains {
		t.Errorf("%d domains are kept", len(b.domains))
	}
}

// TestWaitingQuestionsAreBounded asks for names that nobody answers for.
func TestWaitingQuestionsAreBounded(t *testing.T) {
	b := new(Budget)
	for i := range maxWaiting + 1 {
		if ok := b.StartWaiting(); ok != (i < maxWaiting) {
			t.Fatalf("question %d: %v", i, ok)
		}
	}
	b.EndWaiting()
	b.EndWaiting()
	if !b.StartWaiting() {
		t.Error("no question may wait after two ended")
	}
}

// TestNamesOfDomainsAreForgotten has a sandbox ask for names below more domains than are
// told apart, and for more names than are remembered.
func TestNamesOfDomainsAreForgotten(t *testing.T) {
	b, l, now := new(Budget), Limits{}.WithDefaults(), time.Now()
	for i := range maxDomains {
		for j := range 20 {
			b.TakeName(l, fmt.Sprintf("a%d.d%d.test", j, i), now)
		}
	}
	if b.names > maxNames || b.names < maxNames/2 || len(b.domains) != maxDomains {
		t.Errorf("%d names of %d domains are remembered", b.names, len(b.domains))
	}
	now = now.Add(30 * time.Second) // so soon nothing is as good as new
	if b.TakeName(l, "a.another.test", now); b.rest == nil {
		t.Error("one more domain has a budget of its own")
	}
	now = now.Add(2 * time.Hour)
	b.TakeName(l, "b.another.test", now)
	if len(b.domains) != 1 || b.names != 1 {
		t.Errorf("%d names of %d domains are remembered after two hours, want 1", b.names, len(b.domains))
	}
}

// TestNamesOfOneDomainAreBounded has a sandbox ask for more of them than are remembered.
func TestNamesOfOneDomainAreBounded(t *testing.T) {
	b, l := new(Budget), Limits{NameBytes: 1 << 30}.WithDefaults()
	for i := range 2 * maxKnown {
		if !b.TakeName(l, fmt.Sprintf("a%d.one.test", i), time.Now()) {
			t.Fatalf("name %d is beyond the budget", i)
		}
	}
	if known := len(b.domains["one.test"].known); known != maxKnown || b.names != maxKnown {
		t.Errorf("%d names are remembered, %d are counted, want %d", known, b.names, maxKnown)
	}
}
