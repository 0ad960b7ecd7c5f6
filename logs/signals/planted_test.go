package signals_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/logs/signals"
)

// A level is how hard what is planted is to tell from the rest.
type level int

const (
	easy level = iota
	medium
	hard
)

var levels = []level{easy, medium, hard}

func (l level) String() string { return [...]string{"easy", "medium", "hard"}[l] }

// A planted is one exfiltration, and how to know its row.
type planted struct {
	sandbox, program, host string
}

// exfiltrations are the ways out that are planted, each by a function that adds its records.
var exfiltrations = []struct {
	name  string
	plant func(*trace, *team, level) planted
}{
	{"dns, long labels", plantLongLabels},
	{"dns, short labels, slow", plantShortLabels},
	{"dns, TXT that is refused", plantTXT},
	{"many small uploads, allowed host", plantSmallUploads},
	{"one big upload, allowed host", plantBigUpload},
	{"gist or paste", plantGist},
	{"query strings of GET", plantQueries},
	{"names below an allowed wildcard", plantWildcard},
	{"beacon with payload", plantBeacon},
	{"allowed host after refusals", plantFallback},
	{"upload at night", plantNight},
	{"drip over days", plantDrip},
}

// thief is who sends: in easy cases a program of its own, in hard ones the one that is always there.
func (t *trace) thief(l level, usual string) string {
	if l == easy || l == medium && t.chance(0.5) {
		return pick(t, "python3", "curl", "perl")
	}
	return usual
}

// cover is an allowed host that sandboxes like b use anyway, and by which program.
func (t *trace) cover() (host, usual string) {
	if t.covers != nil {
		c := pick(t, t.covers...)
		return c[0], c[1]
	}
	if t.fourth {
		c := pick(t, [2]string{"rubygems.org", "bundle"}, [2]string{"repo1.maven.org", "mvn"}, [2]string{"proxy.golang.org", "go"}, [2]string{"gitlab.com", "git"},
			[2]string{"learn.microsoft.com", "claude"}, [2]string{"index.crates.io", "cargo"})
		return c[0], c[1]
	}
	c := pick(t, [2]string{"pypi.org", "pip"}, [2]string{"registry.npmjs.org", "npm"}, [2]string{"api.github.com", "gh"},
		[2]string{"docs.rs", "curl"}, [2]string{"en.wikipedia.org", "claude"}, [2]string{"storage.googleapis.com", "codecov"})
	return c[0], c[1]
}

func (t *trace) plan(b *box, program, host string) planted {
	if !b.captured {
		program = ""
	}
	return planted{b.name, program, host}
}

func (t *trace) badDomain() string {
	return t.word() + t.letters("bcdfghjkl", 2) + pick(t, ".xyz", ".top", ".com", ".net", ".io")
}

func (t *trace) victim(w *team) *box {
	return pick(t, w.agents[0], w.agents[1], w.agents[2], w.jobs[0])
}

// by is a parameter for each level.
func by[T any](l level, values ...T) T { return values[l] }

func plantLongLabels(t *trace, w *team, l level) planted {
	b, domain, at := t.victim(w), t.badDomain(), t.when(t.victim(w))
	program := t.thief(l, pick(t, "python3", "claude"))
	d := t.decision("deny", "default", "default-deny")
	for i := range vary(t, by(l, 2000, 300, 70)) {
		label := t.letters(pick(t, base32, hexDigits), by(l, 58, 44, 30))
		if t.fourth { // two of half the length
			label = label[:len(label)/2] + "." + label[len(label)/2:]
		}
		name := fmt.Sprintf("%s.%s", label, domain)
		if l == easy {
			name = fmt.Sprintf("%s.%d.%s", label, i, domain)
		}
		t.question(b, program, name, pick(t, "A", "AAAA"), at, d)
		at = at.Add(t.seconds(0.05, by(l, 2.0, 20, 120)))
	}
	return t.plan(b, program, domain)
}

func plantShortLabels(t *trace, w *team, l level) planted {
	b, domain, at := t.victim(w), t.badDomain(), t.start.Add(t.seconds(600, 20000))
	program := t.thief(l, pick(t, "python3", "claude"))
	d := t.decision("deny", "default", "default-deny")
	n := vary(t, by(l, 3000, 600, 150))
	step := float64(t.days) * 80000 / float64(n)
	for range n {
		t.question(b, program, t.letters(base32, by(l, 10, 8, 6))+"."+domain, "A", at, d)
		at = at.Add(time.Duration(step * t.between(0.3, 1.7) * float64(time.Second)))
	}
	return t.plan(b, program, domain)
}

func plantTXT(t *trace, w *team, l level) planted {
	b, domain, at := t.victim(w), t.badDomain(), t.when(t.victim(w))
	program := t.thief(l, pick(t, "python3", "claude"))
	d := t.decision("deny", "dns", "dns-type-denied")
	for range vary(t, by(l, 1000, 200, 40)) {
		t.question(b, program, t.letters(base32, by(l, 50, 24, 12))+".t."+domain, "TXT", at, d)
		at = at.Add(t.seconds(0.2, by(l, 5.0, 60, 600)))
	}
	return t.plan(b, program, domain)
}

func plantSmallUploads(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host, usual := t.cover()
	program, at := t.thief(l, usual), t.when(b)
	for range vary(t, by(l, 5000, 1500, 500)) {
		size := vary(t, float64(by(l, 8000, 4000, 2000)))
		t.call(b, program, host, "POST", "/search", at, t.seconds(0.05, 0.6), t.bytes(size*0.7, size*1.3), t.bytes(300, 900))
		at = at.Add(t.seconds(0.5, by(l, 6.0, 30, 120)))
	}
	return t.plan(b, program, host)
}

func plantBigUpload(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host, usual := t.cover()
	program := t.thief(l, usual)
	size := vary(t, float64(by(l, 2e9, 200e6, 25e6)))
	t.call(b, program, host, "PUT", "/upload", t.when(b), t.seconds(10, 600), t.bytes(size*0.6, size*1.6), 900)
	return t.plan(b, program, host)
}

func plantGist(t *trace, w *team, l level) planted {
	b := t.victim(w)
	program, at := t.thief(l, "gh"), t.when(b)
	host := "api.github.com"
	if l == easy {
		host = t.host([]string{"paste.rs", "transfer.sh", "0x0.st", "dpaste.com", "gist.github.com"}, []string{"pastes.dev", "filebin.net", "paste.sh", "privatebin.net", "bin.disroot.org"})
	}
	for range vary(t, by(l, 3, 2, 1)) {
		size := vary(t, float64(by(l, 3e6, 200e3, 15e3)))
		if host == "api.github.com" {
			t.request(b, program, host, "POST", "/gists", at, t.seconds(0.3, 3), t.bytes(size*0.7, size*1.4), 4000)
		} else {
			t.tunnel(b, program, host, at, t.seconds(0.3, 9), t.bytes(size*0.7, size*1.4), 900)
		}
		at = at.Add(t.seconds(5, 300))
	}
	if host == "api.github.com" {
		host += "/gists" // which has a row of its own
	}
	return t.plan(b, program, host)
}

func plantQueries(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host, usual := t.host([]string{"docs.python.org", "stackoverflow.com", "en.wikipedia.org", "raw.githubusercontent.com"}, []string{"arxiv.org", "kubernetes.io", "unpkg.com"}), "claude"
	program, at := t.thief(l, usual), t.when(b)
	for range vary(t, by(l, 2000, 400, 80)) {
		size := vary(t, float64(by(l, 6000, 3000, 1500)))
		t.request(b, program, host, "GET", pick(t, "/search", "/w/index.php", "/q"), at, t.seconds(0.05, 0.6), t.bytes(size*0.8, size*1.2), t.bytes(500, 9e3))
		at = at.Add(t.seconds(0.5, by(l, 5.0, 30, 200)))
	}
	return t.plan(b, program, host)
}

func plantWildcard(t *trace, w *team, l level) planted {
	b := t.victim(w)
	domain := t.word() + "-usercontent.net"
	program, at := t.thief(l, "claude"), t.when(b)
	for range vary(t, by(l, 1500, 300, 80)) {
		t.tunnel(b, program, t.letters(base32, by(l, 50, 20, 10))+"."+domain, at, t.seconds(0.1, 1), t.bytes(200, 500), t.bytes(300, 5e3))
		at = at.Add(t.seconds(0.5, by(l, 5.0, 60, 400)))
	}
	return t.plan(b, program, domain)
}

func plantBeacon(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host := t.host([]string{t.word() + "-" + t.letters("abcdefghij", 4) + ".workers.dev", t.word() + ".azurewebsites.net", t.word() + ".ngrok-free.app", "api." + t.badDomain()},
		[]string{t.word() + ".pages.dev", t.word() + ".herokuapp.com", t.word() + ".fly.dev", "cdn." + t.badDomain()})
	program, at := t.thief(l, "claude"), t.start.Add(t.seconds(1000, 30000))
	every, jitter := vary(t, by(l, 60.0, 300, 900)), by(l, 0.1, 0.3, 0.5)
	for end := at.Add(by(l, 24*time.Hour, 36*time.Hour, 36*time.Hour)); at.Before(end); {
		size := vary(t, float64(by(l, 4000, 3000, 1500)))
		t.tunnel(b, program, host, at, t.seconds(0.1, 0.5), t.bytes(size*0.5, size*1.5), t.bytes(100, 300))
		at = at.Add(time.Duration(every * (1 + jitter*(2*t.Float64()-1)) * float64(time.Second)))
	}
	return t.plan(b, program, host)
}

func plantFallback(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host, usual := t.cover()
	program, at := t.thief(l, usual), t.when(b)
	for range vary(t, by(l, 8, 3, 1)) {
		blocked := pick(t, t.badDomain(), "transfer.sh", "paste.rs", "203.0.113."+fmt.Sprint(1+t.IntN(250)), "webhook.site", "discord.com")
		t.denied(b, program, blocked, pick(t, uint16(443), 443, 80, 8443), at, by(l, 3, 2, 2))
		at = at.Add(t.seconds(0.5, 15))
	}
	size := vary(t, float64(by(l, 30e6, 3e6, 300e3)))
	t.call(b, program, host, "POST", "/upload", at, t.seconds(1, 30), t.bytes(size*0.7, size*1.4), 900)
	return t.plan(b, program, host)
}

func plantNight(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host, usual := t.cover()
	program := t.thief(l, usual)
	at := t.start.Add(time.Duration(24*t.IntN(t.days))*time.Hour + 2*time.Hour + t.seconds(60, 7000))
	parts := by(l, 5, 10, 5)
	for range parts {
		size := vary(t, float64(by(l, 500e6, 50e6, 5e6))) / float64(parts)
		t.call(b, program, host, "POST", "/upload", at, t.seconds(1, 60), t.bytes(size*0.7, size*1.4), 900)
		at = at.Add(t.seconds(5, 200))
	}
	return t.plan(b, program, host)
}

func plantDrip(t *trace, w *team, l level) planted {
	b := t.victim(w)
	host, usual := t.cover()
	program, at := t.thief(l, usual), t.start.Add(t.seconds(60, 6000))
	for end := t.start.Add(time.Duration(t.days) * 24 * time.Hour); at.Before(end); {
		size := vary(t, float64(by(l, 900, 500, 200)))
		t.call(b, program, host, "POST", "/v1/status", at, t.seconds(0.05, 0.4), t.bytes(size*0.8, size*1.2), 200)
		at = at.Add(t.seconds(by(l, 50.0, 200, 700), by(l, 70.0, 400, 1100)))
	}
	return t.plan(b, program, host)
}

// is reports whether a row of the ranking is that of p: its sandbox and program, and its
// host or what that is below.
func (p planted) is(sandbox, program, destination string) bool {
	host := destination
	if i := strings.LastIndexByte(host, ':'); i > 0 {
		host = host[:i]
	}
	host, own := strings.TrimSuffix(strings.TrimPrefix(host, "*."), "/gists"), strings.TrimSuffix(p.host, "/gists")
	return sandbox == p.sandbox && program == p.program && (own == host || strings.HasSuffix(own, "."+host))
}

// isIn reports whether a row of the ranking is that of p, or tells of it as well.
func (p planted) isIn(row signals.Suspect) bool {
	return p.is(row.Sandbox, row.Program, row.Destination) || p.is(row.Sandbox, p.program, row.Destination) &&
		slices.ContainsFunc(row.Signals, func(s signals.Signal) bool {
			return strings.HasPrefix(s.Evidence, "by "+cmp.Or(p.program, "another program")+" as well")
		})
}
