package signals

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

func TestNamesThatAreMistakenForOthers(t *testing.T) {
	for _, x := range []struct {
		domain, known string
		like          bool
	}{
		{"githud.com", "github.com", true}, {"antrhopic.com", "anthropic.com", true}, {"npmjs-cdn.org", "npmjs.org", true}, {"pypi-mirror.net", "pypi.org", true},
		{"github.com", "github.com", false}, {"sentry.dev", "sentry.io", false}, {"npmjs.com", "npmjs.org", false}, {"docker.io", "docker.com", false},
		{"acme-backup.s3.eu-central-1.amazonaws.com", "acme.dev", false}, {"npmjs-cdn.pages.dev", "npmjs.org", false}, {"gitlab.com", "github.com", false},
		{"fly.io", "ply.io", false}, {"203.0.113.7", "203.0.113.8", false}, {"co.uk", "com.uk", false},
	} {
		if isLike(x.domain, x.known) != x.like {
			t.Errorf("that %s is like %s is not %v", x.domain, x.known, x.like)
		}
	}
}

// TestHeadsAreComparedWithOthers lets a sandbox send 700 bytes more in each head than another by the same program, and lets both of them do so.
func TestHeadsAreComparedWithOthers(t *testing.T) {
	for _, x := range []struct {
		name         string
		path         string
		query, field int64
		others       bool // do the same
		found        bool
	}{
		{"fields", "/a", 0, 700, false, true},
		{"fields that others have as well", "/a", 0, 700, true, false},
		{"queries", "/a", 700, 0, false, true},
		{"queries that others have as well", "/a", 700, 0, true, false},
		{"paths", "", 0, 0, false, true},
		{"paths that others have as well", "", 0, 0, true, false},
	} {
		w := lone(1)
		for i := range 800 {
			for _, sandbox := range []string{"one", "other"} {
				path, query, up := "/b/index.html", int64(12), int64(420)
				if sandbox == "one" || x.others {
					query += x.query
					if path = x.path; path == "" {
						path = fmt.Sprintf("/%016x%016x%016x%016x", w.Uint64(), w.Uint64(), w.Uint64(), w.Uint64())
					}
					up += x.field
				}
				r := w.request(time.Duration(i)*5*time.Minute, "npm", "GET", "registry.npmjs.org", path, up+query+int64(len(path)), 40_000)
				r.Sandbox, r.HTTP.QueryBytes = sandbox, query
			}
		}
		most := 0
		for _, a := range found(w.sorted()) {
			for _, s := range a.Signals {
				if a.Sandbox == "one" && a.Destination == "npmjs.org" && s.What == "upload" {
					most = max(most, s.Score)
				}
			}
		}
		if most > 5 != x.found {
			t.Errorf("%s: %d", x.name, most)
		}
	}
}

// TestWhatIsPassedOn has another sandbox leave pieces in a store, and one that fetches them and sends them to a host that it sends to anyway.
func TestWhatIsPassedOn(t *testing.T) {
	for _, x := range []struct {
		name    string
		part    int64 // hundredths of what was fetched that are sent on
		from    string
		found   bool
		fetches bool
	}{
		{"as it was", 100, "quiet", true, true},
		{"in base64", 133, "quiet", true, true},
		{"of another length", 117, "quiet", false, true},
		{"that nobody fetched", 100, "quiet", false, false},
		{"of who supplies the store", 100, "ci", false, true},
	} {
		w := lone(2)
		flow := func(at time.Duration, sandbox, method, host string, up, down int64) {
			r := w.request(at, "curl", method, host, "/x", up, down)
			r.Sandbox = sandbox
		}
		for i := range 80 {
			at := time.Duration(i%5)*day + time.Duration(w.IntN(9*3600))*time.Second
			flow(at, "ci", "PUT", "store.example.com", w.around(4e6, 0.5), 40)
			flow(at, "deploy", "POST", "out.example.org", w.around(300e3, 1), 40)
			flow(at, "test", "POST", "out.example.org", w.around(300e3, 1), 40)
		}
		for i := range 8 {
			at, size := time.Duration(1+i/3)*day+time.Duration(i%3)*2*time.Hour, w.around(300e3, 0.4)
			flow(at, x.from, "PUT", "store.example.com", size, 40)
			if x.fetches {
				flow(at+20*time.Minute, "deploy", "GET", "store.example.com", 200, size)
			}
			flow(at+30*time.Minute, "deploy", "POST", "out.example.org", size*x.part/100, 40)
		}
		most := 0
		for _, a := range found(w.sorted()) {
			if a.Sandbox == "deploy" && a.Destination == "example.org" {
				most = max(most, a.Score)
			}
		}
		if most >= 30 != x.found {
			t.Errorf("%s: %d", x.name, most)
		}
	}
}

// TestAPeakSaysWhenMostLeft wants the minutes of a burst among a habit, and nothing where days are alike.
func TestAPeakSaysWhenMostLeft(t *testing.T) {
	for _, burst := range []bool{false, true} {
		w := lone(4)
		for i := range 200 {
			w.decision(time.Duration(i%5)*day+time.Duration(w.IntN(9*3600))*time.Second, "git", "git.example.org", 60_000, 4500)
		}
		from := 2*day + 3*time.Hour
		for i := range 5 {
			if burst {
				w.decision(from+time.Duration(i)*time.Minute, "git", "git.example.org", 8e6, 4500)
			}
		}
		var peak *Peak
		for _, a := range found(w.sorted()) {
			if a.Destination == "example.org" {
				peak = a.Peak
			}
		}
		switch {
		case !burst && peak != nil:
			t.Errorf("days that are alike have a peak: %+v", peak)
		case burst && (peak == nil || peak.Up < 40e6 || peak.Up > 50e6 || peak.Until.Sub(peak.From) > 6*time.Hour):
			t.Errorf("the peak is %+v", peak)
		}
	}
}

// TestATimerOfManySandboxesIsTelemetry lets a program report each twenty minutes in one sandbox or in four of them.
func TestATimerOfManySandboxesIsTelemetry(t *testing.T) {
	scores := map[int]int{}
	for _, n := range []int{1, 4} {
		w := lone(3)
		for i := range 300 {
			for b := range n {
				r := w.decision(time.Duration(i)*20*time.Minute+w.jitter(time.Minute, 0.5), "otelcol", "otlp.example.org", 4000, 5000)
				r.Sandbox = fmt.Sprint("box ", b)
			}
		}
		for _, a := range found(w.sorted()) {
			if a.Destination == "example.org" {
				scores[n] = max(scores[n], a.Score)
			}
		}
	}
	if scores[1] < 15 || scores[4] >= 10 {
		t.Errorf("one sandbox has %d, each of four %d", scores[1], scores[4])
	}
}

// TestAWebSocketIsAConversation lets one of them send much beside what comes down, and one much with nothing back.
func TestAWebSocketIsAConversation(t *testing.T) {
	for _, x := range []struct {
		up, down int64
		sends    bool
	}{{200_000, 2_000_000, false}, {200_000, 9_000, true}, {900, 0, false}} {
		r := &record.Record{HTTP: &record.HTTP{Method: "GET", Path: "/ws", Status: 101}, Bytes: &record.Bytes{Up: x.up, Down: x.down}}
		if loadOf(r).sends() != x.sends {
			t.Errorf("%d up and %d down: that it sends is not %v", x.up, x.down, x.sends)
		}
	}
}
