package signals

import (
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

var start = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// A workshop makes a log of one agent at work in a sandbox whose programs are known.
type workshop struct {
	*rand.Rand
	all []*record.Record
	n   int
}

// decision is a record as a DecisionJoiner hands it on.
func (w *workshop) decision(at time.Duration, program, host string, up, down int64) *record.Record {
	w.n++
	r := &record.Record{
		Time: start.Add(at), Kind: record.KindOpen, Flow: fmt.Sprintf("F%09d", w.n), Sandbox: "work", Via: "connect",
		Dst: &record.Destination{Host: host, Port: 443}, Decision: &record.Decision{Action: "allow", Rule: "r"},
		Bytes: &record.Bytes{Up: up, Down: down}, Outcome: "closed", Duration: 100,
	}
	if program != "" {
		r.Process = &record.Process{Exe: "/usr/bin/" + program}
	}
	w.all = append(w.all, r)
	return r
}

func (w *workshop) request(at time.Duration, program, method, host, path string, up, down int64) *record.Record {
	r := w.decision(at, program, host, up, down)
	r.Kind, r.HTTP = record.KindRequest, &record.HTTP{Method: method, Path: path, Status: 200}
	return r
}

func (w *workshop) name(at time.Duration, program, name string) *record.Record {
	r := w.decision(at, program, "", 0, 0)
	r.Kind, r.Via, r.Dst, r.Bytes, r.Outcome = record.KindDNS, "dns", nil, nil, ""
	r.DNS = &record.DNS{Name: name, Type: "A"}
	return r
}

func deny(r *record.Record, class string) *record.Record {
	r.Decision = &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: class}
	r.Bytes, r.Outcome = nil, ""
	return r
}

// around is a number that is lognormal about middle.
func (w *workshop) around(middle, wide float64) int64 {
	return int64(middle * math.Exp(w.NormFloat64()*wide))
}

func (w *workshop) jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*w.Float64()-1)))
}

const day = 24 * time.Hour

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// ordinary fills in about n records of a day.
func (w *workshop) ordinary(n int) {
	for at := time.Duration(0); at < day; at += w.jitter(30*time.Second, 0.05) { // telemetry of the agent
		w.request(at, "claude", "POST", "statsig.anthropic.com", "/v1/rgstr", w.around(2500, 0.6), 180)
		if w.IntN(4) == 0 {
			w.request(at, "claude", "POST", "o1.ingest.sentry.io", "/api/1/envelope/", w.around(4000, 0.9), 220)
		}
	}
	for at := time.Duration(0); at < day; at += w.jitter(15*time.Second, 0.02) { // somebody waits for CI
		w.request(at, "gh", "GET", "api.github.com", "/repos/acme/x/actions/runs", 900, w.around(6000, 0.3))
	}
	for len(w.all) < n {
		at := time.Duration(w.Int64N(int64(day)))
		switch x := w.IntN(100); {
		case x < 18:
			w.session(at)
		case x < 50:
			w.install(at)
		case x < 70:
			w.git(at)
		case x < 85:
			w.pip(at)
		case x < 95:
			w.browse(at)
		default:
			w.refusals(at)
		}
	}
}

// session is a conversation with a model, whose every turn sends all before it.
func (w *workshop) session(at time.Duration) {
	context := float64(w.around(20_000, 0.7))
	for range 5 + w.IntN(40) {
		w.request(at, "claude", "POST", "api.anthropic.com", "/v1/messages", int64(context), w.around(9000, 1))
		context += float64(w.around(4000, 1.2))
		at += time.Duration(w.around(float64(12*time.Second), 0.8))
	}
}

func (w *workshop) install(at time.Duration) {
	w.name(at, "npm", "registry.npmjs.org")
	for range 20 + w.IntN(200) {
		w.request(at, "npm", "GET", "registry.npmjs.org", "/pkg", w.around(500, 0.2), w.around(60_000, 1.6))
		at += time.Duration(w.IntN(300)) * time.Millisecond
	}
	if w.IntN(5) == 0 {
		w.request(at, "npm", "POST", "registry.npmjs.org", "/-/npm/v1/security/audits/quick", w.around(60_000, 0.5), w.around(4000, 1))
	}
}

func (w *workshop) git(at time.Duration) {
	w.name(at, "git", "github.com")
	w.request(at, "git", "GET", "github.com", "/acme/x.git/info/refs", 400, w.around(8000, 1))
	w.request(at, "git", "POST", "github.com", "/acme/x.git/git-upload-pack", w.around(3000, 1), w.around(400_000, 2))
	if w.IntN(3) == 0 {
		w.request(at, "git", "POST", "github.com", "/acme/x.git/git-receive-pack", w.around(40_000, 1.5), 300)
	}
}

func (w *workshop) pip(at time.Duration) {
	for range 3 + w.IntN(30) {
		w.request(at, "pip", "GET", "pypi.org", "/simple/x/", 400, w.around(20_000, 1))
		w.request(at, "pip", "GET", "files.pythonhosted.org", "/packages/x.whl", 400, w.around(800_000, 1.5))
		at += time.Duration(w.IntN(2000)) * time.Millisecond
	}
}

func (w *workshop) browse(at time.Duration) {
	for range 1 + w.IntN(12) {
		host := pick(w.Rand, []string{
			fmt.Sprintf("rr%d---sn-4g5ed%cz.googlevideo.com", w.IntN(7), 'a'+rune(w.IntN(26))), "docs.python.org", "developer.mozilla.org",
			fmt.Sprintf("cdn%d.jsdelivr.net", w.IntN(4)), "raw.githubusercontent.com", fmt.Sprintf("www.site%d.com", w.IntN(400)),
			fmt.Sprintf("d%x.cloudfront.net", w.IntN(30)*7919),
		})
		w.name(at, "chromium", host)
		w.decision(at, "chromium", host, w.around(1500, 0.5), w.around(120_000, 1.5))
	}
}

func (w *workshop) refusals(at time.Duration) {
	for range 1 + w.IntN(3) {
		deny(w.decision(at, pick(w.Rand, []string{"claude", "npm", "chromium"}), pick(w.Rand, []string{"telemetry.vendor.test", "fonts.gstatic.test", "ads.example.test"}), 0, 0), "default-deny")
		at += time.Second
	}
}

// tunnel sends data out in names.
func (w *workshop) tunnel() (destination string) {
	program := pick(w.Rand, []string{"python3", "dig", "claude", ""})
	long := 12 + w.IntN(50)
	at := time.Duration(w.Int64N(int64(day / 2)))
	gap := time.Duration(1+w.IntN(30)) * time.Second
	refused := w.IntN(2) == 0
	for range 120 + w.IntN(600) {
		b := make([]byte, long*5/8)
		for i := range b {
			b[i] = byte(w.Uint32())
		}
		label := strings.ToLower(strings.TrimRight(base32.StdEncoding.EncodeToString(b), "="))
		if w.IntN(2) == 0 {
			label = hex.EncodeToString(b)[:min(63, 2*len(b))]
		}
		r := w.name(at, program, label+".t.exfil-names.com")
		if refused {
			deny(r, "default-deny")
		}
		at += w.jitter(gap, 0.5)
	}
	return "exfil-names.com"
}

// drip sends a file in pieces to a host that is allowed.
func (w *workshop) drip() (destination string) {
	host := pick(w.Rand, []string{"registry.npmjs.org", "files.pythonhosted.org", "github.com", "docs.python.org"})
	program := pick(w.Rand, []string{"python3", "curl", "ruby"})
	piece := float64(int(4096) << w.IntN(5))
	vary := w.Float64() * 0.3
	gap := time.Duration(20+w.IntN(100)) * time.Second
	shake := w.Float64() * 0.6
	at := time.Duration(w.Int64N(int64(day / 2)))
	for range 100 + w.IntN(300) {
		up := int64(piece * (1 + vary*(2*w.Float64()-1)))
		r := w.decision(at, program, host, up, w.around(500, 0.4))
		if piece > 20_000 {
			r.Kind, r.HTTP = record.KindRequest, &record.HTTP{Method: "POST", Path: "/x", Status: 404}
		}
		at += w.jitter(gap, shake)
	}
	return map[string]string{"registry.npmjs.org": "npmjs.org", "files.pythonhosted.org": "pythonhosted.org", "github.com": "github.com", "docs.python.org": "python.org"}[host]
}

// gist pushes a gist, in one of the ways there are.
func (w *workshop) gist() (destination string) {
	at := time.Duration(w.Int64N(int64(day)))
	up := w.around(60_000, 1)
	switch w.IntN(4) {
	case 0:
		w.request(at, "git", "POST", "gist.github.com", "/0123456789abcdef.git/git-receive-pack", up, 400)
	case 1:
		w.request(at, pick(w.Rand, []string{"gh", "curl"}), "POST", "api.github.com", "/gists", up, 4000)
		return gists
	case 2:
		w.decision(at, "git", "gist.github.com", max(up, 12_000), 5000)
	case 3:
		w.request(at, "curl", "PUT", "transfer.sh", "/loot.tgz", up, 60)
		return "transfer.sh"
	}
	return "gist.github.com"
}

// sorted returns the log in the order of time.
func (w *workshop) sorted() []*record.Record {
	slices.SortStableFunc(w.all, func(a, b *record.Record) int { return a.Time.Compare(b.Time) })
	return w.all
}

func found(all []*record.Record) []Suspect {
	var f Finder
	for _, r := range all {
		f.Add(r)
	}
	return f.Suspects()
}
