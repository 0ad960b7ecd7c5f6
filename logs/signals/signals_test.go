package signals

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// seeds is how many logs are made: EGRESSD_SEEDS by hand.
func seeds(t *testing.T, usual int) uint64 {
	t.Helper()
	text := os.Getenv("EGRESSD_SEEDS")
	if text == "" {
		return uint64(usual)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(n)
}

// table writes the first rows for a person.
func table(all []Suspect, n int) (text string) {
	for _, a := range all[:min(n, len(all))] {
		text += fmt.Sprintf("\n%3d %-10s %-20s", a.Score, a.Program, a.Destination)
		for _, s := range a.Signals {
			text += fmt.Sprintf(" | %s %d: %s", s.What, s.Score, s.Evidence)
		}
	}
	return text
}

// checkFirst wants the planted destinations in the first rows.
func checkFirst(t *testing.T, seed uint64, all []Suspect, planted []string) {
	t.Helper()
	var first []string
	for _, a := range all[:min(len(planted), len(all))] {
		first = append(first, a.Destination)
		if len(a.IDs) == 0 {
			t.Errorf("seed %d: nothing shows %s", seed, a.Destination)
		}
	}
	for _, p := range planted {
		if !slices.Contains(first, p) {
			t.Errorf("seed %d: %s is not among the first %d:%s", seed, p, len(planted), table(all, 8))
			return
		}
	}
}

// TestPlantedAmongOrdinary plants three attempts in a hundred thousand records of a day.
func TestPlantedAmongOrdinary(t *testing.T) {
	for seed := range seeds(t, 2) {
		w := &workshop{Rand: rand.New(rand.NewPCG(seed, 1))}
		planted := []string{w.tunnel(), w.drip(), w.gist()}
		w.ordinary(100_000)
		checkFirst(t, seed, found(w.sorted()), planted)
	}
}

// TestOrdinaryScoresLow has nothing planted.
func TestOrdinaryScoresLow(t *testing.T) {
	highest := 0
	for seed := range seeds(t, 2) {
		w := &workshop{Rand: rand.New(rand.NewPCG(seed, 2))}
		w.ordinary(100_000)
		all := found(w.sorted())
		if all[0].Score > ordinaryMost {
			t.Errorf("seed %d:%s", seed, table(all, 5))
		}
		highest = max(highest, all[0].Score)
	}
	t.Logf("the highest score of ordinary traffic is %d", highest)
}

// An office makes a log of several sandboxes of which only names and bytes are known:
// every flow is a tunnel, and what is popular follows a power law.
type office struct{ workshop }

var popular = []string{
	"api.openai.com", "registry.yarnpkg.com", "github.com", "deb.debian.org", "proxy.golang.org", "index.crates.io", "static.crates.io", "hub.docker.com",
	"production.cloudflare.docker.com", "login.corp.example", "jira.corp.example", "artifacts.corp.example", "browser-intake-datadoghq.com", "update.code.visualstudio.com",
	"az764295.vo.msecnd.net", "stackoverflow.com", "cdn.sstatic.net", "maven.google.com", "repo1.maven.org", "sum.golang.org",
}

func (o *office) ordinary(n int) {
	law := rand.NewZipf(o.Rand, 1.3, 2, uint64(len(popular)-1))
	for len(o.all) < n {
		at := time.Duration(o.ExpFloat64() * float64(5*day) / 4)
		host := popular[law.Uint64()]
		up, down := o.around(1800, 0.8), o.around(90_000, 2)
		switch host {
		case "api.openai.com":
			up, down = o.around(120_000, 1.1), o.around(15_000, 0.8)
		case "browser-intake-datadoghq.com":
			up, down = o.around(9000, 1), 900
		case "artifacts.corp.example":
			if o.IntN(8) == 0 { // what CI has built
				up, down = o.around(3e6, 1.5), 3000
			}
		}
		r := o.decision(at, "", host, up, down)
		r.Sandbox = []string{"ci", "alice", "bob", "nightly"}[o.IntN(4)]
		r.Duration = o.around(3000, 1.5)
		if o.IntN(6) == 0 {
			o.name(at, "", host).Sandbox = r.Sandbox
		}
		if o.IntN(300) == 0 {
			deny(r, "default-deny").Dst.Host = fmt.Sprintf("tracker%d.example.net", o.IntN(9))
		}
	}
}

// TestPlantedInAnOffice plants them where no program and no request is known: names of
// hosts in place of questions, one tunnel or many for the upload, and a paste.
func TestPlantedInAnOffice(t *testing.T) {
	for seed := range seeds(t, 2) {
		o := &office{workshop{Rand: rand.New(rand.NewPCG(seed, 3))}}
		at := time.Duration(o.Int64N(int64(2*day))) + day
		for i := range 150 + o.IntN(300) {
			r := o.decision(at+time.Duration(i)*o.jitter(40*time.Second, 0.9), "", fmt.Sprintf("%016x%08x.cdn-assets.net", o.Uint64(), o.Uint32()), 600, 900)
			r.Sandbox = "bob"
		}
		slow := pick(o.Rand, []string{"deb.debian.org", "repo1.maven.org", "proxy.golang.org"})
		if o.IntN(2) == 0 {
			r := o.decision(at, "", slow, o.around(40e6, 0.4), 200_000)
			r.Sandbox, r.Duration = "alice", (3 * time.Hour).Milliseconds()
		} else {
			for i := range 200 {
				o.decision(at+time.Duration(i)*time.Minute, "", slow, o.around(30_000, 0.1), 700).Sandbox = "alice"
			}
		}
		o.decision(at, "", "pastebin.com", o.around(50_000, 0.5), 4000).Sandbox = "ci"
		o.ordinary(60_000)
		domain := map[string]string{"deb.debian.org": "debian.org", "repo1.maven.org": "maven.org", "proxy.golang.org": "golang.org"}[slow]
		checkFirst(t, seed, found(o.sorted()), []string{"cdn-assets.net", domain, "pastebin.com"})
	}
}

// TestOrdinaryOfficeScoresLow lets one row in a week stand out, no more: sizes and durations of an office
// have nothing to do with each other, so an upload that is much slower than others happens there.
func TestOrdinaryOfficeScoresLow(t *testing.T) {
	highest := 0
	for seed := range seeds(t, 2) {
		o := &office{workshop{Rand: rand.New(rand.NewPCG(seed, 4))}}
		o.ordinary(60_000)
		all := found(o.sorted())
		if all[0].Score > 70 || all[1].Score > ordinaryMost {
			t.Errorf("seed %d:%s", seed, table(all, 5))
		}
		highest = max(highest, all[0].Score)
	}
	t.Logf("the highest score of ordinary traffic is %d", highest)
}

// TestWaysThatAreTriedOneAfterTheOther denies a program that falls back, and one that
// looks for open ports.
func TestWaysThatAreTriedOneAfterTheOther(t *testing.T) {
	w := &workshop{Rand: rand.New(rand.NewPCG(1, 5))}
	w.ordinary(30_000)
	at := 5 * time.Hour
	deny(w.decision(at, "node", "evil.test", 0, 0), "default-deny")
	deny(w.decision(at+2*time.Second, "node", "203.0.113.7", 0, 0), "default-deny")
	deny(w.decision(at+4*time.Second, "node", "dns.google", 0, 0), "default-deny")
	deny(w.decision(at+6*time.Second, "node", "evil.test", 0, 0), "default-deny").Dst.Port = 22
	for i := range 150 {
		deny(w.decision(at+time.Duration(i)*time.Second, "nmap", fmt.Sprintf("10.0.%d.%d", i%5, i), 0, 0), "address-denied")
	}
	w.all = append(w.all, &record.Record{Time: start.Add(at), Kind: record.KindSignal, Sandbox: "work", Flow: "CANARY0001",
		Dst: &record.Destination{Host: "evil.test", Port: 443}, Signal: &record.Signal{What: "canary", Name: "aws-key", Where: "body", Encoding: "base64"}})
	all := found(w.sorted())
	if all[0].Score != 100 || all[0].Signals[0].What != "canary" || all[0].IDs[0] != "CANARY0001" {
		t.Errorf("the canary is not first:%s", table(all, 5))
	}
	want := map[string]string{"nmap": "search", "node": "fallback"}
	for _, a := range all[1:3] {
		if want[a.Program] != a.Signals[0].What {
			t.Errorf("%s is shown for %s:%s", a.Program, a.Signals[0].What, table(all, 5))
		}
		delete(want, a.Program)
	}
	if len(want) > 0 {
		t.Errorf("%v are not among the first:%s", want, table(all, 5))
	}
}

// TestDenialsBeyondTheBudgetAreASignal has a sandbox be denied too fast for a record each.
func TestDenialsBeyondTheBudgetAreASignal(t *testing.T) {
	w := &workshop{Rand: rand.New(rand.NewPCG(1, 5))}
	w.ordinary(30_000)
	sum := deny(w.decision(5*time.Hour, "sh", "*", 0, 0), "default-deny")
	sum.Count, sum.Names = 5000, &record.Names{First: "a.test:443", Last: "b.test:443", Domains: 4096}
	for i, times := range []int64{5, 17, 3} { // of one domain each
		one := deny(w.decision(5*time.Hour+time.Duration(i)*time.Second, "sh", []string{"*.junk.test", "*.meant.test", "*.other.test"}[i], 443, 0), "default-deny")
		one.Count, one.Names = times, &record.Names{First: "a.test:443", Last: "b.test:443", Domains: 1}
	}
	for _, a := range found(w.sorted()) {
		if a.Program == "sh" && a.Signals[0].What == "flood" && a.Score > 50 {
			if !strings.Contains(a.Signals[0].Evidence, "17 of them of *.meant.test") {
				t.Errorf("the domain of the largest sum is not named: %s", a.Signals[0].Evidence)
			}
			return
		}
	}
	t.Error("no signal says that denials were summed")
}

// TestAFloodOfDestinationsHidesNothing asks for more destinations than are remembered
// before and after an attempt, and looks at what that costs.
func TestAFloodOfDestinationsHidesNothing(t *testing.T) {
	w := &workshop{Rand: rand.New(rand.NewPCG(9, 9))}
	var f Finder
	flood := func(n int) {
		for i := range n {
			w.all = w.all[:0]
			f.Add(w.decision(time.Duration(i)*time.Millisecond, fmt.Sprint("p", i%700), fmt.Sprintf("www.flood%d.com", w.IntN(1e9)), 500, 9000))
		}
	}
	flood(20_000)
	w.all = w.all[:0]
	planted := w.tunnel()
	for _, r := range w.all {
		f.Add(r)
	}
	var before, after runtime.MemStats
	flood(20_000)
	runtime.GC()
	runtime.ReadMemStats(&before)
	flood(40_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if all := f.Suspects(); all[0].Destination != planted {
		t.Errorf("the first is %s", table(all, 3))
	}
	if len(f.sites) > maxSites || len(f.programs) > maxPrograms+1 {
		t.Errorf("%d sites and %d programs are kept", len(f.sites), len(f.programs))
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}
