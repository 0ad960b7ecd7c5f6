package signals

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A grounded is something that is done, by which its row is judged, and the least and the most that it scores.
type grounded struct {
	name                 string
	do                   func(*workshop)
	program, destination string
	least, most          int
	say                  []string
}

// TestGroundsOfAnUpload does one thing at a time, and wants what it is judged by to be said, for and against.
func TestGroundsOfAnUpload(t *testing.T) {
	checkGrounds(t, []grounded{
		{"a program that only fetches, at a new place", func(w *workshop) {
			w.decision(30*time.Hour, "pip", "cdn.quiet-updates.net", 3e6, 4500)
		}, "pip", "quiet-updates.net", 30, 95, []string{"the program mostly fetches elsewhere", "the destination was not used before"}},
		{"a program that nobody knows", func(w *workshop) {
			w.decision(30*time.Hour, "perl", "acme.s3.amazonaws.com", 3e6, 4500)
		}, "perl", "acme.s3.amazonaws.com", 25, 95, []string{"the program does little else", "a store where many keep their own"}},
		{"a name that anybody can have", func(w *workshop) {
			w.decision(30*time.Hour, "pip", "x.workers.dev", 3e6, 4500)
		}, "pip", "x.workers.dev", 30, 95, []string{"a name that anybody can have"}},
		{"another program than the one that is there", func(w *workshop) {
			w.decision(30*time.Hour, "perl", "pypi.org", 3e6, 4500)
		}, "perl", "pypi.org", 80, 95, []string{"others with this destination mostly fetch", "other programs are used with it"}},
		{"another sandbox than the one that is there", func(w *workshop) {
			for range 20 {
				w.decision(30*time.Hour, "", "api.anthropic.com", w.around(90_000, 0.8), 4500).Sandbox = "other"
			}
		}, "", "anthropic.com", 15, 95, []string{"it is mostly used by other sandboxes"}},
		{"pieces of one size, by the clock", func(w *workshop) {
			for i := range 300 {
				w.decision(30*time.Hour+time.Duration(i)*20*time.Second, "curl", "pypi.org", 9000, 4500)
			}
		}, "curl", "pypi.org", 70, 95, []string{"in pieces of one size", "about every 20s"}},
		{"slower than a line, to where much is sent", func(w *workshop) {
			w.decision(30*time.Hour, "claude", "api.anthropic.com", 3e6, 4500).Duration = (40 * time.Minute).Milliseconds()
		}, "claude", "anthropic.com", 35, 95, []string{"in 1 flows that took 40m0s", "slower than a line is"}},
		{"slower than a line, to a new place", func(w *workshop) {
			w.decision(30*time.Hour, "perl", "cdn.quiet-updates.net", 3e6, 4500).Duration = (40 * time.Minute).Milliseconds()
		}, "perl", "quiet-updates.net", 40, 95, []string{"of it in flows of minutes"}},
		{"larger than all others", func(w *workshop) {
			w.decision(30*time.Hour, "claude", "api.anthropic.com", 2e9, 45_000)
		}, "claude", "anthropic.com", 40, 95, []string{"in the 1 largest of", "more than the others let expect"}},
		{"more in one quarter of a day than in others", func(w *workshop) {
			nowAndThen(w, 150)
			for i := range 2500 {
				w.decision(49*time.Hour+time.Duration(i)*3*time.Second, "git", "git.example.org", w.around(12_000, 0.8), 900)
			}
		}, "git", "example.org", 40, 95, []string{"quarters of a day", "more than the others let expect"}},
		{"larger than what the host of an interface takes", func(w *workshop) {
			nowAndThen(w, 100)
			for i := range 40 {
				w.decision(time.Duration(i)*2*time.Hour, "git", "api.example.org", w.around(2500, 0.5), 900)
			}
			w.decision(50*time.Hour, "git", "api.example.org", 700_000, 4500)
		}, "git", "example.org", 40, 95, []string{"in the 1 largest of 34 flows", "more than the others let expect (mostly about 2"}},
		{"larger than what other sandboxes send", func(w *workshop) {
			others(w, 60)
			for i := range 12 {
				w.decision(50*time.Hour+time.Duration(i)*time.Minute, "git", "git.example.org", w.around(700_000, 0.2), 900)
			}
		}, "git", "example.org", 40, 95, []string{"in the 12 largest of 12 flows", "more than the others let expect (mostly about 1"}},
		{"larger than what other sandboxes send, as ever", func(w *workshop) {
			others(w, 60)
			for i := range 60 {
				w.decision(time.Duration(i)*100*time.Minute, "git", "git.example.org", w.around(700_000, 0.2), 900)
			}
		}, "git", "example.org", 0, 20, nil},
		{"stores that are numbered", func(w *workshop) {
			for i := range 6 {
				w.decision(30*time.Hour, "upload", fmt.Sprintf("productionresultssa%d.blob.core.windows.net", i), 1e6, 2000)
			}
		}, "upload", "productionresultssa#.blob.core.windows.net", 20, 60, []string{"in 6 flows that mostly send"}},
		{"a little, however odd", func(w *workshop) {
			w.decision(30*time.Hour, "perl", "pypi.org", 20_000, 4500)
		}, "perl", "pypi.org", 5, 30, []string{"others with this destination mostly fetch"}},
		{"a habit", func(w *workshop) { nowAndThen(w, 60) },
			"git", "example.org", 1, 10, []string{"but now and then, all through the log"}},
		{"as much on each day, by night", func(w *workshop) {
			for d := range 5 {
				w.decision(time.Duration(d)*day+18*time.Hour, "restic", "backup.quiet-updates.net", w.around(30e6, 0.3), 45_000)
			}
		}, "restic", "quiet-updates.net", 1, 20, []string{"but about as much on each day"}},
		{"what other sandboxes do as well", func(w *workshop) {
			for _, sandbox := range []string{"work", "one", "two", "three"} {
				w.decision(30*time.Hour, "codecov", "ingest.quiet-updates.net", 3e6, 4500).Sandbox = sandbox
			}
		}, "codecov", "quiet-updates.net", 1, 20, []string{"but other sandboxes do as well (3)"}},
		{"a habit that nobody else has, where others fetch", func(w *workshop) {
			for d := range 5 {
				for i := range 60 {
					w.decision(time.Duration(d)*day+time.Duration(i)*8*time.Minute+time.Duration(w.IntN(300))*time.Second, "curl", "pypi.org", w.around(15_000, 0.8), 4500)
				}
			}
		}, "curl", "pypi.org", 40, 95, []string{"others with this destination mostly fetch", "but"}},
	})
}

func checkGrounds(t *testing.T, all []grounded) {
	t.Helper()
	for _, x := range all {
		w := lone(1)
		x.do(w)
		all := found(w.sorted())
		text, score := evidenceOf(all, x.program, x.destination, "upload")
		for _, say := range x.say {
			if !strings.Contains(text, say) {
				t.Errorf("%s: %q is not said in %d, %q", x.name, say, score, text)
			}
		}
		if score < x.least || score > x.most {
			t.Errorf("%s: %d is not in %d to %d:%s", x.name, score, x.least, x.most, table(all, 4))
		}
	}
}

// nowAndThen pushes n times, here and there in five days.
func nowAndThen(w *workshop, n int) {
	for i := range n {
		at := time.Duration(i%5)*day + time.Duration(w.IntN(9*3600))*time.Second
		w.decision(at, "git", "git.example.org", w.around(12_000, 0.8), 4500)
	}
}

// TestWhatIsSlow wants a line that waits for the sender, and nothing that comes down meanwhile.
func TestWhatIsSlow(t *testing.T) {
	for _, x := range []struct {
		up, down int64
		took     time.Duration
		slow     bool
	}{{3e6, 20_000, 40 * time.Minute, true}, {3e6, 20_000, 4 * time.Minute, false}, {3e6, 1e6, 40 * time.Minute, false}, {300e6, 20_000, 40 * time.Minute, false}} {
		w := &workshop{}
		r := w.decision(0, "claude", "api.anthropic.com", x.up, x.down)
		r.Duration = x.took.Milliseconds()
		if isSlow(r, loadOf(r)) != x.slow {
			t.Errorf("%d up and %d down in %s: slow is not %v", x.up, x.down, x.took, x.slow)
		}
	}
}

// others is what another sandbox pushes in the same days.
func others(w *workshop, n int) {
	before := len(w.all)
	nowAndThen(w, n)
	for _, r := range w.all[before:] {
		r.Sandbox = "another"
	}
}

// TestARowIsAStory lets two programs ask for names below one domain, and wants one row of both.
func TestARowIsAStory(t *testing.T) {
	w := lone(4)
	for i := range 400 {
		program := []string{"python3", "dig"}[i%2]
		deny(w.name(30*time.Hour+time.Duration(i)*time.Second, program, fmt.Sprintf("%016x%08x.evil-names.com", w.Uint64(), w.Uint32())), "default-deny")
	}
	var rows []Suspect
	for _, a := range found(w.sorted()) {
		if a.Destination == "evil-names.com" {
			rows = append(rows, a)
		}
	}
	if len(rows) != 1 || len(rows[0].Signals) < 2 || !strings.Contains(rows[0].Signals[1].Evidence, " as well: ") || len(rows[0].IDs) <= maxIDs {
		t.Errorf("the rows are %s", table(rows, 4))
	}
}

// TestSurplusNeedsMoreThanATail wants no evidence where sizes are what they are, however far they
// spread, and some where one is far out.
func TestSurplusNeedsMoreThanATail(t *testing.T) {
	w := lone(5)
	for _, wide := range []float64{0.5, 1, 2} {
		var own sizes
		for range 2000 {
			own.add(w.around(30_000, wide))
		}
		if nats, from := surplus(&own, own.usual(false)); nats > 2 {
			t.Errorf("sizes that spread by %v have %.1f nats from class %d", wide, nats, from)
		}
	}
	var own sizes
	for range 200 {
		own.add(w.around(30_000, 1))
	}
	own.add(300e6)
	if nats, from := surplus(&own, own.usual(false)); nats < 4 || own.atLeast(from) != 1 {
		t.Errorf("what is far out has %.1f nats from class %d", nats, from)
	}
}

// TestWhatExplainsAHabit puts a burst, or one flow, on top of what goes on through the log: the first
// is no habit any more, and the second stands out by itself.
func TestWhatExplainsAHabit(t *testing.T) {
	for _, x := range []struct {
		name  string
		n     int
		each  int64
		habit bool
	}{{"nothing", 0, 0, true}, {"a burst", 300, 12_000, false}, {"one flow", 1, 50e6, true}} {
		w := lone(6)
		nowAndThen(w, 60)
		for i := range x.n {
			w.decision(49*time.Hour+time.Duration(i)*30*time.Second, "git", "git.example.org", x.each, 900)
		}
		var f Finder
		for _, r := range w.sorted() {
			f.Add(r)
		}
		l := f.sites[siteKey{"work", "git", "example.org"}].lanes["git.example.org"]
		if f.habitual(l) > 0 != x.habit {
			t.Errorf("with %s, it is a habit by %.1f", x.name, f.habitual(l))
		}
	}
}
