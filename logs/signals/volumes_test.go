package signals_test

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/record"
)

// A way is a host that a sandbox may reach, and the program that usually does.
type way struct{ host, program string }

// A scene is a world in which the three exfiltrations that everybody names can be planted:
// names, a slow upload to a host that is allowed, and something published at a code host.
type scene struct {
	*trace
	victims   []*box
	language  func(*box) way // where the model is
	content   []way          // from where things are fetched
	forge     func(*box) way
	team      *team // for the other nine kinds; nil where they are not planted
	decisions []emitted
}

// An emitted is a decision, and when a DecisionJoiner hands it on.
type emitted struct {
	at time.Time
	r  *record.Record
}

// A volume is how much is to get out, in bytes.
type volume int64

var volumes = []volume{100e3, 1e6, 10e6}

func (v volume) String() string {
	if v < 1e6 {
		return fmt.Sprint(int64(v)/1000, " kB")
	}
	return fmt.Sprint(int64(v)/1e6, " MB")
}

// mostNames is how many questions a tunnel in names has: beyond that it is not planted.
const mostNames = 100_000

// leaks are what is planted in volumes; each function returns false where it cannot be that much.
var leaks = []struct {
	name  string
	plant func(*scene, level, volume) (planted, string, bool)
}{
	{"names", leakByNames},
	{"slow upload, small requests", leakByRequests},
	{"slow upload, long flows", leakByFlows},
	{"gist, paste, push or comments", leakByCode},
}

// leakByNames encodes: in easy cases as iodine, dnscat2 and others do, fast; then in addresses
// alone, over six hours; in hard ones in short labels over days.
func leakByNames(s *scene, l level, v volume) (planted, string, bool) {
	b, domain := pick(s.trace, s.victims...), s.badDomain()
	usual := pick(s.trace, s.content...).program
	program := s.thief(l, usual)
	encoder, label, each := "", func() string { return "" }, 0
	switch l {
	case easy:
		switch s.IntN(3) {
		case 0:
			encoder, each = "iodine", 112
			label = func() string {
				return s.letters(base32, 60) + "." + s.letters(base32, 60) + "." + s.letters(base32, 59)
			}
		case 1:
			encoder, each = "dnscat2", 58
			label = func() string { return s.letters(hexDigits, 60) + "." + s.letters(hexDigits, 56) }
		default:
			encoder, each = "base64", 47
			label = func() string { return s.letters(base32+"ABCDEFGHIJKLMNOPQRSTUVWXYZ0189-_", 63) }
		}
	case medium:
		long := 30 + s.IntN(22)
		encoder, each = "base32", long*5/8
		label = func() string { return s.letters(base32, long) }
	case hard:
		long := 9 + s.IntN(6)
		encoder, each = "short", long*5/8
		label = func() string { return s.letters(base32, long) }
	}
	n := int(v) / each
	if n > mostNames {
		return planted{}, "", false
	}
	span := time.Duration(s.days) * 24 * time.Hour
	at, over := s.when(b), time.Duration(n)*time.Duration(s.between(0.05, 0.5)*float64(time.Second))
	if l != easy {
		at, over = s.start.Add(s.seconds(600, 7200)), min(6*time.Hour, span/2)
	}
	if l == hard {
		over = span - 3*time.Hour
	}
	kind := []string{"A", "AAAA"}
	refused := s.decision("deny", "default", "default-deny")
	if l == easy {
		if kind = []string{pick(s.trace, "TXT", "NULL", "CNAME", "MX", "A")}; kind[0] != "A" {
			refused = s.decision("deny", "dns", "dns-type-denied")
		}
	}
	if s.chance(0.3) && refused.Class == "default-deny" { // below a wildcard, up to the budget
		encoder += " below a wildcard"
		s.budgeted(b, program, domain, label, each, n, at, over)
		return s.plan(b, program, domain), encoder, true
	}
	for range n {
		s.question(b, program, label()+"."+domain, pick(s.trace, kind...), at, refused)
		at = at.Add(time.Duration(s.between(0.3, 1.9) * float64(over) / float64(n)))
	}
	return s.plan(b, program, domain), encoder, true
}

// budgeted asks for names that are allowed until an hour has had what dns_name_bytes allows;
// the refusals of a second are one record then.
func (s *scene) budgeted(b *box, program, domain string, label func() string, each, n int, at time.Time, over time.Duration) {
	yes, no := s.allow(domain), s.decision("deny", "limits", "dns-budget")
	hour, spent, second := time.Time{}, 0, time.Time{}
	for range n {
		if h := at.Truncate(time.Hour); h != hour {
			hour, spent = h, 0
		}
		if spent += each; spent < 4096 {
			s.question(b, program, label()+"."+domain, "A", at, yes)
		} else if at.Sub(second) > time.Second {
			second = at
			s.question(b, program, label()+"."+domain, "A", at, no)
		} else {
			s.out[len(s.out)-1].Count = max(1, s.out[len(s.out)-1].Count) + 1
		}
		at = at.Add(over / time.Duration(n))
	}
}

// anywhere is the model, a host of content or the code host: where the upload goes.
func (s *scene) anywhere(b *box) (w way, what string) {
	switch s.IntN(3) {
	case 0:
		return s.language(b), "at the model"
	case 1:
		return s.forge(b), "at the code host"
	}
	return pick(s.trace, s.content...), "at content"
}

// leakByRequests sends many small ones: in two hours, in nine, over all days.
func leakByRequests(s *scene, l level, v volume) (planted, string, bool) {
	b := pick(s.trace, s.victims...)
	to, what := s.anywhere(b)
	program := s.thief(l, to.program)
	low, high := by(l, 16e3, 4e3, 1e3), by(l, 64e3, 16e3, 6e3)
	over := min(by(l, 2*time.Hour, 9*time.Hour, 1000*time.Hour), time.Duration(s.days)*24*time.Hour-5*time.Hour)
	at := s.start.Add(s.seconds(600, 4*3600))
	n := max(2, int(float64(v)/((low+high)/2)))
	for left := int64(v); left > 0; {
		up := min(left, int64(low+(high-low)*s.Float64()))
		left -= up
		s.call(b, program, to.host, "POST", pick(s.trace, "/v1/messages", "/api/upload", "/search"), at, s.seconds(0.1, 2), up, s.bytes(300, 3e3))
		at = at.Add(time.Duration(s.between(0.3, 1.9) * float64(over) / float64(n)))
	}
	return s.plan(b, program, to.host), what, true
}

// leakByFlows sends few that take long.
func leakByFlows(s *scene, l level, v volume) (planted, string, bool) {
	b := pick(s.trace, s.victims...)
	to, what := s.anywhere(b)
	program := s.thief(l, to.program)
	n := by(l, 1, 2+s.IntN(3), 4+s.IntN(7))
	at := s.start.Add(s.seconds(600, 4*3600))
	room := (time.Duration(s.days)*24*time.Hour - 6*time.Hour) / time.Duration(n)
	for range n {
		took := min(s.seconds(600, 7200), room)
		s.call(b, program, to.host, "POST", "/upload", at, took, int64(v)/int64(n), s.bytes(500, 3e3)+int64(v)/100)
		at = at.Add(took + time.Duration(s.Float64()*float64(room-took)))
	}
	return s.plan(b, program, to.host), what, true
}

// leakByCode publishes at the code host that is allowed, or at a paste that is.
func leakByCode(s *scene, l level, v volume) (planted, string, bool) {
	b := pick(s.trace, s.victims...)
	at, program, host := s.when(b), s.thief(l, "gh"), "api.github.com"
	parts, path, what := 1+s.IntN(4), "/gists", "gist"
	switch x := s.IntN(3); {
	case l == easy && x == 0:
		host, path, what = pick(s.trace, "pastebin.com", "dpaste.com", "paste.rs", "0x0.st"), "/api", "paste"
	case l != easy && x == 0:
		program = s.thief(l, "git")
		host, path, what = "gist.github.com", "/"+s.letters(hexDigits, 32)+".git/git-receive-pack", "push of a gist"
	case l != easy && x == 1:
		parts, path, what = int(v)/60_000+1, fmt.Sprintf("/repos/acme/web/issues/%d/comments", s.IntN(900)), "comments"
	case l == hard:
		program = s.thief(l, "git")
		host, path, what = "github.com", "/"+s.word()+"/dump.git/git-receive-pack", "push of a new repository"
	}
	for range parts {
		up := int64(v) / int64(parts)
		if host == "api.github.com" && l == easy {
			s.request(b, program, host, "POST", path, at, s.seconds(0.3, 9), up, 4000)
		} else {
			s.call(b, program, host, "POST", path, at, s.seconds(0.3, 9), up, s.bytes(900, 4000))
		}
		at = at.Add(s.seconds(2, 120))
	}
	return s.plan(b, program, host), what, true
}
