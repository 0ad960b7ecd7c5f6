package policy

import (
	"strings"
	"testing"
)

// TestBesideLinesForSingleRequestsARequestLacksALine has requests to a host of which lines name single requests. A rule that
// says more is named in place of that.
func TestBesideLinesForSingleRequestsARequestLacksALine(t *testing.T) {
	path := func(text string) []PathPattern {
		p, err := ParsePathPattern(text)
		if err != nil {
			t.Fatal(err)
		}
		return []PathPattern{p}
	}
	pattern, err := ParsePattern("a.test")
	if err != nil {
		t.Fatal(err)
	}
	single := Rule{ID: "allow[0]", Pattern: pattern, Methods: []string{"GET"}, Paths: path("/a")}
	other := Rule{ID: "allow[1]", Pattern: pattern, Methods: []string{"POST"}, Paths: path("/b")}
	for says, row := range map[string]struct {
		rules []Rule
		class Class
	}{
		"one line":                    {[]Rule{single}, DefaultDeny},
		"two lines":                   {[]Rule{single, other}, DefaultDeny},
		"a line and all below a path": {[]Rule{single, {ID: "allow[1]", Pattern: pattern, Methods: []string{"GET"}, Paths: path("/v1/**")}}, PathDenied},
		"a line of any method":        {[]Rule{{ID: "allow[0]", Pattern: pattern, Paths: path("/a")}}, PathDenied},
		"a grant":                     {[]Rule{{ID: "grant:GAAAAAA", Pattern: pattern, Methods: []string{"GET"}, Paths: path("/a")}}, DefaultDeny},
		"a line that has a name":      {[]Rule{{ID: "model", Pattern: pattern, Methods: []string{"GET"}, Paths: path("/a")}}, PathDenied},
	} {
		p := New((&Lists{Layer: User, Allow: row.rules}).evaluator(nil))
		dst, err := ParseDestination("a.test:80")
		if err != nil {
			t.Fatal(err)
		}
		r := &Request{Via: ViaHTTP, Destination: dst, HTTP: &HTTPRequest{Method: "GET", Path: "/c"}}
		d := p.Decide(t.Context(), r)
		if d.Verdict != Deny || d.Class != row.class || (d.Rule == "default") != (row.class == DefaultDeny) || !strings.Contains(d.Reason, "a.test:80") || len(d.AllowedIf) == 0 {
			t.Errorf("%s: %+v", says, d)
		}
		r.HTTP.Path = "/a"
		if d := p.Decide(t.Context(), r); d.Verdict != Allow {
			t.Errorf("%s: what the line names: %+v", says, d)
		}
	}
}
