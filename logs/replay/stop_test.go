package replay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestTheNarrowestRuleThatWouldHaveStoppedIt has a row for each kind of course.
func TestTheNarrowestRuleThatWouldHaveStoppedIt(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	request := func(program, host, method, path string, up int64) *record.Record {
		r := &record.Record{
			Kind: record.KindRequest, Time: at, Flow: "F", Sandbox: "ci", Via: "connect", Dst: &record.Destination{Host: host, Port: 443, Addrs: []string{"93.184.216.34"}},
			HTTP: &record.HTTP{Method: method, Path: path}, Process: &record.Process{Exe: "/usr/bin/" + program}, Decision: &record.Decision{Action: "allow", Rule: "r", Layer: "user"}, Bytes: &record.Bytes{Up: up},
		}
		if method == "" {
			r.Kind, r.HTTP, r.TLS = record.KindOpen, nil, &record.TLS{SNI: host}
		}
		return r
	}
	name := func(program, name string) *record.Record {
		r := request(program, name, "", "", 0)
		r.Kind, r.Via, r.Dst, r.TLS, r.Bytes, r.DNS = record.KindDNS, "dns", nil, nil, nil, &record.DNS{Name: name, Type: "TXT"}
		return r
	}
	denied := request("node", "denied.test", "POST", "/", 0)
	denied.Decision = &record.Decision{Action: "deny", Class: "default-deny"}
	log := []*record.Record{
		request("node", "api.example.com", "GET", "/a", 100), request("node", "api.example.com", "POST", "/a", 90_000), request("node", "api.example.com", "POST", "/b", 90_000),
		request("curl", "api.example.com", "GET", "/a", 100), request("curl", "api.example.com", "POST", "/a", 300),
		request("node", "api.example.org", "", "", 70_000), request("git", "api.example.org", "", "", 100), request("git", "www.example.org", "", "", 100),
		request("node", "a.example.net", "", "", 9), request("node", "b.example.net", "", "", 9), request("node", "c.example.net", "", "", 9), request("node", "d.example.net", "", "", 9), request("git", "e.example.net", "", "", 9),
		name("node", "x1.example.info"), name("node", "x2.example.info"), name("git", "www.example.info"),
		request("node", "api.github.com", "POST", "/gists", 5000), request("node", "api.github.com", "POST", "/repos/a/b", 500),
		denied,
	}
	private := request("git", "inside.example.org", "", "", 100) // another rule opened its address
	private.Dst.Addrs = []string{"10.0.0.7"}
	log = append(log, private)
	read := func(do func(*record.Record)) error {
		for _, r := range log {
			do(r.Clone())
		}
		return nil
	}
	rows := []struct {
		destination string
		want        *Stop
	}{
		{"example.com", &Stop{Tried{[]string{`{host: "api.example.com:443", methods: [POST]}`}, 2, 1, 1, []string{"ci/curl"}}, nil, 0, ""}},
		{"example.org", &Stop{Tried{[]string{`"api.example.org:443"`}, 1, 0, 1, []string{"ci/git"}}, nil, 0, ""}},
		{"example.net", &Stop{Tried{[]string{`"example.net"`, `"*.example.net"`}, 4, 0, 1, []string{"ci/git"}}, nil, 0, ""}},
		{"example.info", &Stop{Tried{[]string{`"example.info"`, `"*.example.info"`}, 2, 0, 1, []string{"ci/git"}}, nil, 0, ""}},
		{"api.github.com/gists", &Stop{Tried{[]string{`{host: "api.github.com:443", methods: [POST], paths: ["/gists", "/gists/**"]}`}, 1, 0, 0, nil}, nil, 0, ""}},
		{"denied.test", &Stop{Tried{nil, 0, 0, 0, nil}, nil, 1, "default-deny"}},
		{"nowhere.test", nil},
	}
	var courses []Course
	for _, row := range rows {
		courses = append(courses, Course{"ci", "node", row.destination})
	}
	found, err := Stops(t.Context(), courses, read)
	if err != nil {
		t.Fatal(err)
	}
	wider := func(destination string) (all []string) {
		for _, t := range found[Course{"ci", "node", destination}].Wider {
			all = append(all, fmt.Sprint(t.Deny, t.Stopped, t.Left, t.Others, t.Who))
		}
		return all
	}
	for destination, want := range map[string][]string{
		"example.com": {`["api.example.com:443"] 3 0 2 [ci/curl]`, `["example.com" "*.example.com"] 3 0 2 [ci/curl]`},
		"example.org": {`["example.org" "*.example.org"] 1 0 3 [ci/git]`},
		"example.net": nil, "denied.test": nil,
	} {
		if got := wider(destination); !slices.Equal(got, want) {
			t.Errorf("%s: the wider ones are %q, want %q", destination, got, want)
		}
	}
	for i, row := range rows {
		got := found[courses[i]]
		switch {
		case (got == nil) != (row.want == nil):
			t.Errorf("%s: %+v", row.destination, got)
		case got != nil && (!slices.Equal(got.Deny, row.want.Deny) || got.Stopped != row.want.Stopped || got.Left != row.want.Left || got.Others != row.want.Others || !slices.Equal(got.Who, row.want.Who) || got.Refused != row.want.Refused || got.Why != row.want.Why):
			t.Errorf("%s: %+v, want %+v", row.destination, got, row.want)
		}
	}
}
