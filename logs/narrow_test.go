package logs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// aRequest is one that passed because no rule is about it. An empty method stands for a tunnel.
func aRequest(host string, port uint16, method, path string) *record.Record {
	r := &record.Record{
		Kind: record.KindRequest, Flow: "F", Sandbox: "ci", Dst: &record.Destination{Host: host, Port: port, Addr: "192.0.2.1"},
		Decision: &record.Decision{Action: "allow", Rule: policy.LearnRule},
	}
	if method != "" {
		r.HTTP = &record.HTTP{Method: method, Path: path}
	}
	return r
}

// openedBy returns the lines of the only destination, in words.
func openedBy(t *testing.T, l *Learned) string {
	t.Helper()
	all, _ := l.All()
	if len(all) != 1 {
		t.Fatalf("%d destinations", len(all))
	}
	var texts []string
	for _, o := range all[0].Openings() {
		if err := o.Check(); err != nil {
			t.Error(err)
		}
		texts = append(texts, o.Method+" "+o.Path)
	}
	return strings.Join(texts, ", ")
}

func TestTheNarrowestLinesForRequests(t *testing.T) {
	for _, row := range []struct{ requests, want string }{
		{"GET /a", "GET /a"},
		{"GET /a, GET /b, HEAD /a", "GET /a, GET /b, HEAD /a"},
		{"GET /ubuntu/dists/noble/InRelease, GET /ubuntu/dists/noble-updates/InRelease, GET /ubuntu/pool/main/a/a.deb, GET /ubuntu/pool/main/b/b.deb",
			"GET /ubuntu/dists/noble/InRelease, GET /ubuntu/dists/noble-updates/InRelease, GET /ubuntu/pool/main/a/a.deb, GET /ubuntu/pool/main/b/b.deb"},
		{"GET /pool/a.deb, GET /pool/b.deb, GET /pool/c.deb, GET /pool/d.deb, POST /report", "GET /pool/**, POST /report"},
		{"GET /p/1/x, GET /p/2/x, GET /p/3/y, GET /p/4/z, GET /q", "GET /p/**, GET /q"},
		{"GET /a, GET /b, GET /c, GET /d", "GET "},
		{"GET /", "GET /"},
		{"GET /a/", "GET /a/"},
		{"GET /a/*/b", "GET /a/**"},
		{"GET /$x", "GET "},
		{"OPTIONS *", "OPTIONS "},
		{"GET /a/b, GET ", " "}, // a tunnel, too
		{"get /a", " "},         // no rule names such a method
	} {
		var l Learned
		for request := range strings.SplitSeq(row.requests, ", ") {
			method, path, _ := strings.Cut(request, " ")
			if path == "" {
				method = ""
			}
			l.Add(aRequest("a.example.com", 80, method, path))
		}
		if got := openedBy(t, &l); got != row.want {
			t.Errorf("%s: %q, want %q", row.requests, got, row.want)
		}
	}
	var cut Learned
	r := aRequest("a.example.com", 80, "GET", "/a/b/cccc")
	r.HTTP.PathCut = true
	if cut.Add(r); openedBy(t, &cut) != "GET /a/b/**" {
		t.Errorf("a path that was cut: %q", openedBy(t, &cut))
	}
}

// TestLinesAllowWhatWasAskedFor has a program choose its paths. The lines allow each of them, and no other method.
func TestLinesAllowWhatWasAskedFor(t *testing.T) {
	segment := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "", "..", ".", "a b", "%41", "%2f", "**", "*", "x;y", "é"}), rapid.StringMatching(`[a-z0-9%*.$~-]{0,6}`))
	rapid.Check(t, func(rt *rapid.T) {
		requests := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) requested {
			return requested{rapid.SampledFrom([]string{"GET", "POST"}).Draw(rt, "method"), "/" + strings.Join(rapid.SliceOfN(segment, 0, 4).Draw(rt, "path"), "/"), rapid.Bool().Draw(rt, "cut")}
		}), 1, 30).Draw(rt, "requests")
		var l Learned
		for _, r := range requests {
			one := aRequest("a.example.com", 80, r.method, r.path)
			one.HTTP.PathCut = r.cut
			l.Add(one)
		}
		all, _ := l.All()
		lines := all[0].Openings()
		if len(lines) > maxLines {
			rt.Fatalf("%d lines", len(lines))
		}
		for _, r := range requests {
			opens := func(o policy.Opening) bool {
				line := o.Line("")
				return slices.Contains(line.Methods, r.method) && (len(line.Paths) == 0 || line.Paths[0].Match(r.path))
			}
			if !slices.ContainsFunc(lines, opens) {
				rt.Fatalf("nothing of %v opens %v", lines, r)
			}
		}
		for _, o := range lines {
			if o.Method != "GET" && o.Method != "POST" {
				rt.Fatalf("a line opens %s", o)
			}
		}
	})
}

// TestWhatEachLogBrings has four runs, of which the last two bring nothing new.
func TestWhatEachLogBrings(t *testing.T) {
	var l Learned
	for run, hosts := range [][]string{{"a", "b"}, {"a", "c"}, {"b", "a"}, {"c"}} {
		l.NextLog()
		for _, host := range hosts {
			l.Add(aRequest(host+".example.com", 443, "", ""))
		}
		if want := max(0, run-1); l.NothingNew() != want {
			t.Errorf("after run %d, %d brought nothing new, want %d", run, l.NothingNew(), want)
		}
	}
	all, _ := l.All()
	for _, d := range all {
		if want := map[string]int{"a": 3, "b": 2, "c": 2}[d.host[:1]]; d.Logs != want {
			t.Errorf("%s is in %d logs, want %d", d.host, d.Logs, want)
		}
	}
	if n, _ := l.Quiet(); n != 3 {
		t.Errorf("%d requests after the last new one, want 3", n)
	}
	l.NextLog()
	l.Add(aRequest("p.example.com", 80, "GET", "/a"))
	l.NextLog()
	if l.Add(aRequest("p.example.com", 80, "GET", "/b")); l.NothingNew() != 0 {
		t.Error("another path is nothing new")
	}
}

func TestDenialsThatALineWouldAllow(t *testing.T) {
	for class, want := range map[policy.Class]int{
		policy.DefaultDeny: 1, policy.MethodDenied: 1, policy.PathDenied: 1, policy.RuleDeny: 0, policy.AddressDenied: 0, policy.Canary: 0, policy.ByteBudget: 0,
		policy.AskRejected: 0, policy.PolicyError: 0,
	} {
		l := Learned{Of: DeniedRequests}
		r := aRequest("a.example.com", 443, "GET", "/a")
		r.Decision = &record.Decision{Action: "deny", Class: string(class)}
		l.Add(r)
		if all, _ := l.All(); len(all) != want {
			t.Errorf("%s: %d destinations", class, len(all))
		}
	}
}

// TestDomainsStandTogether: those that were asked for most come first.
func TestDomainsStandTogether(t *testing.T) {
	var l Learned
	for host, n := range map[string]int{"a.one.example": 1, "b.one.example": 4, "x.two.example": 3, "a.github.io": 1, "b.github.io": 1, "one.example": 1} {
		for range n {
			l.Add(aRequest(host, 443, "", ""))
		}
	}
	all, _ := l.All()
	ByDomain(all)
	var got []string
	for _, d := range all {
		got = append(got, fmt.Sprintf("%s %s", d.host, d.Domain()))
	}
	want := []string{"b.one.example one.example", "a.one.example one.example", "one.example one.example", "x.two.example two.example", "a.github.io a.github.io", "b.github.io b.github.io"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
