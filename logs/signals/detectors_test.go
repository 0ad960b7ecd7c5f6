package signals

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// A lone workshop does ordinary things by day for a week, so that something can be odd.
func lone(seed uint64) *workshop {
	w := &workshop{Rand: rand.New(rand.NewPCG(seed, 7))}
	for d := range 5 {
		for at := time.Duration(0); at < 9*time.Hour; at += w.jitter(30*time.Second, 0.9) {
			when := time.Duration(d)*day + at
			w.decision(when, "claude", "api.anthropic.com", w.around(90_000, 1), w.around(20_000, 1))
			w.decision(when, "pip", "pypi.org", w.around(1500, 0.3), w.around(90_000, 1))
		}
	}
	return w
}

// evidenceOf is what is said of a destination by a signal; "" for nothing.
func evidenceOf(all []Suspect, program, destination, what string) (string, int) {
	for _, a := range all {
		if a.Destination != destination || a.Program != program {
			continue
		}
		for _, s := range a.Signals {
			if s.What == what {
				return s.Evidence, s.Score
			}
		}
	}
	return "", 0
}

// TestEachReasonIsSeen does one thing at a time, and wants the reason to be said.
func TestEachReasonIsSeen(t *testing.T) {
	for _, x := range []struct {
		name                      string
		do                        func(*workshop)
		program, destination, say string
		what                      string
		score                     int // at least
	}{
		{"an upload that is smaller than the certificates that come down", func(w *workshop) {
			for i := range 300 {
				w.decision(30*time.Hour+time.Duration(i)*20*time.Second, "curl", "pypi.org", 3000, 4500)
			}
		}, "curl", "pypi.org", "300 flows that mostly send; others with this destination mostly fetch", "upload", 40},
		{"long heads", func(w *workshop) {
			for i := range 200 {
				w.request(30*time.Hour+time.Duration(i)*20*time.Second, "curl", "GET", "pypi.org", "/search", 5000, 40_000)
			}
		}, "curl", "pypi.org", "in the heads of requests", "upload", 60},
		{"an upload at night", func(w *workshop) {
			w.decision(66*time.Hour, "curl", "pypi.org", 3e6, 4500)
		}, "curl", "pypi.org", "at hours in which the sandbox does little else", "upload", 40},
		{"an upload after a refusal of something else", func(w *workshop) {
			deny(w.decision(30*time.Hour, "pip", "evil.test", 0, 0), "default-deny")
			w.decision(30*time.Hour+40*time.Second, "pip", "pypi.org", 3e6, 4500)
		}, "pip", "pypi.org", "soon after something else was denied", "upload", 40},
		{"a timer that is shaken", func(w *workshop) {
			for at := 20 * time.Hour; at < 60*time.Hour; at += w.jitter(10*time.Minute, 0.45) {
				w.decision(at, "claude", "cdn.quiet-updates.net", 1700, 5000)
			}
		}, "claude", "quiet-updates.net", "mostly every", "beacon", 30},
		{"records of text for names that differ", func(w *workshop) {
			for i := range 60 {
				deny(w.name(30*time.Hour+time.Duration(i)*time.Minute, "claude", fmt.Sprintf("%08x.t.evil-names.com", w.Uint32())), "dns-type-denied").DNS.Type = "TXT"
			}
		}, "claude", "evil-names.com", "of a record type whose answers carry free text", "names", 40},
		{"short names, more than are counted one by one", func(w *workshop) {
			for i := range 6000 {
				w.name(20*time.Hour+time.Duration(i)*10*time.Second, "claude", fmt.Sprintf("%09x.evil-names.com", w.Uint64()&(1<<36-1)))
			}
		}, "claude", "evil-names.com", "different names", "names", 50},
		{"places that are denied within minutes", func(w *workshop) {
			for i := range 120 {
				deny(w.decision(30*time.Hour+time.Duration(i)*time.Second, "curl", fmt.Sprintf("www.place%d.com", i), 0, 0), "default-deny")
			}
		}, "curl", "many", "120 denials for about 1", "search", 40},
	} {
		w := lone(1)
		x.do(w)
		all := found(w.sorted())
		if text, score := evidenceOf(all, x.program, x.destination, x.what); !strings.Contains(text, x.say) || score < x.score {
			t.Errorf("%s: %d, %q:%s", x.name, score, text, table(all, 4))
		}
	}
}

// TestWhatIsOrdinaryStaysLow does what is much and ordinary.
func TestWhatIsOrdinaryStaysLow(t *testing.T) {
	for name, do := range map[string]func(*workshop){
		"artifacts, in parts of one size, spread over twenty stores": func(w *workshop) {
			for d := range 5 {
				for job := range 3 {
					for part := range 8 {
						at := time.Duration(d)*day + time.Duration(job)*3*time.Hour + time.Duration(part)*time.Second + time.Duration(w.IntN(3600))*time.Second
						w.decision(at, "upload", fmt.Sprintf("productionresultssa%d.blob.core.windows.net", w.IntN(20)), 8e6, 2000)
					}
				}
			}
		},
		"places that are denied over days": func(w *workshop) {
			for i := range 150 {
				deny(w.decision(time.Duration(i)*40*time.Minute, "claude", fmt.Sprintf("blog%d.com", i), 0, 0), "default-deny")
			}
		},
		"names of addresses": func(w *workshop) {
			for i := range 600 {
				w.name(time.Duration(i)*10*time.Minute, "ss", fmt.Sprintf("%d.%d.%d.81.in-addr.arpa", w.IntN(256), w.IntN(256), w.IntN(256)))
			}
		},
		"bursts, which are no timer": func(w *workshop) {
			for i := range 60 {
				at := time.Duration(i%5)*day + time.Duration(w.IntN(8*3600))*time.Second
				for range 4 {
					w.decision(at, "cargo", "quiet-updates.net", 1200, 3000)
					at += 6 * time.Second
				}
			}
		},
	} {
		w := lone(2)
		do(w)
		all := found(w.sorted())
		if all[0].Score > ordinaryMost {
			t.Errorf("%s:%s", name, table(all, 4))
		}
		if text, _ := evidenceOf(all, "cargo", "quiet-updates.net", "beacon"); text != "" {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestABurstIsNoHabit hides one upload among small ones that happen all the time.
func TestABurstIsNoHabit(t *testing.T) {
	for _, burst := range []bool{false, true} {
		w := lone(3)
		for i := range 60 {
			w.decision(time.Duration(i%5)*day+time.Duration(w.IntN(9*3600))*time.Second, "pip", "pypi.org", w.around(12_000, 0.8), 900)
		}
		if burst {
			for i := range 40 {
				w.decision(50*time.Hour+time.Duration(i)*w.jitter(time.Minute, 0.9), "pip", "pypi.org", w.around(100_000, 0.8), 900)
			}
		}
		if _, score := evidenceOf(found(w.sorted()), "pip", "pypi.org", "upload"); score > 25 != burst {
			t.Errorf("with a burst %v the score is %d", burst, score)
		}
	}
}

func TestFamilyOfStores(t *testing.T) {
	for host, want := range map[string]string{
		"productionresultssa17.blob.core.windows.net":        "productionresultssa#.blob.core.windows.net",
		"acme.s3.eu-central-1.amazonaws.com":                 "acme.s3.eu-central-1.amazonaws.com",
		"s3-us-west-2.amazonaws.com":                         "s3-us-west-2.amazonaws.com",
		"0123456789abcdef.r2.cloudflarestorage.com":          "0123456789abcdef.r2.cloudflarestorage.com",
		"files.s3.dualstack.eu-west-1.amazonaws.com":         "files.s3.dualstack.eu-west-1.amazonaws.com",
		"ec2-1-2-3-4.eu-central-1.compute.amazonaws.com":     "ec2-1-2-3-4.eu-central-1.compute.amazonaws.com",
		"cache3.example.com":                                 "example.com",
		"evil-s3.example.com":                                "example.com",
		"storage.googleapis.com":                             "storage.googleapis.com",
		"productionresultssa.blob.core.windows.net.evil.com": "evil.com",
	} {
		r := &record.Record{Dst: &record.Destination{Host: host, Port: 443}}
		if got := destination(r, traitsOf(host)); got != want {
			t.Errorf("%s is %s, want %s", host, got, want)
		}
	}
}
