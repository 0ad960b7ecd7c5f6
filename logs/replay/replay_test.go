package replay

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// TestACutPathIsNotDecidedAgain: the policy would judge its beginning.
func TestACutPathIsNotDecidedAgain(t *testing.T) {
	f, err := file.Parse("f.yaml", []byte("version: 1\nallow: [{host: a.test, paths: ['/x/**']}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(file.Environment{Inspection: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []bool{false, true} {
		r := New(&config.Config{File: f}, p)
		r.Add(t.Context(), &record.Record{
			Kind: record.KindRequest, Via: string(policy.ViaHTTP), Dst: &record.Destination{Host: "a.test", Port: 80},
			HTTP: &record.HTTP{Method: "GET", Path: "/y", PathCut: cut}, Decision: &record.Decision{Action: "allow"},
		})
		want := [3]int64{1, 1, 0}
		if cut {
			want = [3]int64{0, 0, 1}
		}
		if got := [3]int64{r.Decided, r.Changed, r.Skipped}; got != want {
			t.Errorf("cut %t: decided, changed and skipped %v, want %v", cut, got, want)
		}
	}
}

// TestWhatNoRecordHoldsIsNotDecidedAgain: a record has no header fields and no query.
func TestWhatNoRecordHoldsIsNotDecidedAgain(t *testing.T) {
	for _, condition := range []string{`headers: {accept: [x]}`, `query: {q: [x]}`, `git: {repos: [a/b]}`} {
		f, err := file.Parse("f.yaml", []byte("version: 1\nallow: [{host: a.test, "+condition+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(file.Environment{Inspection: true})
		if err != nil {
			t.Fatal(err)
		}
		r := New(&config.Config{File: f}, p)
		r.Add(t.Context(), &record.Record{
			Kind: record.KindRequest, Via: string(policy.ViaHTTP), Dst: &record.Destination{Host: "a.test", Port: 80},
			HTTP: &record.HTTP{Method: "GET", Path: "/a/b/info/refs"}, Decision: &record.Decision{Action: "allow"},
		})
		if r.Decided != 0 || r.Changed != 0 || r.Skipped != 1 {
			t.Errorf("%s: decided, changed and skipped %d, %d, %d", condition, r.Decided, r.Changed, r.Skipped)
		}
	}
}

// compiled compiles a policy file.
func compiled(t *testing.T, text string) (*config.Config, *policy.Policy) {
	t.Helper()
	f, err := file.Parse("f.yaml", []byte("version: 1\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(file.Environment{Inspection: true})
	if err != nil {
		t.Fatal(err)
	}
	return &config.Config{File: f}, p
}

// TestWhatAnotherPolicyWouldDo has one record for each word, beside the log and beside another file.
func TestWhatAnotherPolicyWouldDo(t *testing.T) {
	tunnel := func(host, action, rule string, inspected bool) *record.Record {
		return &record.Record{
			Kind: record.KindOpen, Via: string(policy.ViaConnect), Dst: &record.Destination{Host: host, Port: 443}, TLS: &record.TLS{SNI: host, Inspected: inspected},
			Decision: &record.Decision{Action: action, Rule: rule}, Count: 3,
		}
	}
	const file = "allow: [same.test, new.test, {host: looked.test, methods: [GET]}]\nask: [asked.test]\n"
	for _, row := range []struct {
		says    string
		of      *record.Record
		beside  string // another file, or "" for the log
		want    Words
		wantNow string
	}{
		{"the same", tunnel("same.test", "allow", "r", false), "", Words{Same: 3}, ""},
		{"denied", tunnel("gone.test", "allow", "r", false), "", Words{Denied: 3}, "deny"},
		{"asked", tunnel("asked.test", "allow", "r", false), "", Words{Asked: 3}, "ask"},
		{"looked into", tunnel("looked.test", "allow", "r", false), "", Words{LookedInto: 3}, LookedInto},
		{"looked into already", tunnel("looked.test", "allow", "r", true), "", Words{Same: 3}, ""},
		{"refused before, and looked into", tunnel("looked.test", "deny", "default", false), "", Words{LookedInto: 3}, LookedInto},
		{"allowed", tunnel("new.test", "deny", "default", false), "", Words{Allowed: 3}, "allow"},
		{"a grant that has ended, beside the log", tunnel("gone.test", "allow", "grant", false), "", Words{Denied: 3}, "deny"},
		{"the same, beside a file", tunnel("gone.test", "allow", "grant", false), "allow: [same.test]\n", Words{Same: 3}, ""},
		{"what a file opens", tunnel("new.test", "allow", "grant", false), "allow: [same.test]\n", Words{Allowed: 3}, "allow"},
		{"what was learned, beside a file or the log", tunnel("new.test", "allow", "learn", false), "allow: [same.test]\n", Words{Same: 3}, ""},
		{"a grant that has ended, beside a file or the log", tunnel("gone.test", "allow", "grant", false), "allow: [same.test]\n", Words{Same: 3}, ""},
		{"what opens, beside a file or the log", tunnel("new.test", "deny", "default", false), "allow: [same.test]\n", Words{Allowed: 3}, "allow"},
		{"what a file looks into", tunnel("looked.test", "deny", "default", false), "allow: [looked.test]\n", Words{LookedInto: 3}, LookedInto},
	} {
		r := New(compiled(t, file))
		r.OrLog = strings.HasSuffix(row.says, "or the log")
		if row.beside != "" {
			r.Beside(compiled(t, row.beside))
		}
		r.Add(t.Context(), row.of)
		now := ""
		for _, g := range r.Groups() {
			now = g.Now
		}
		if r.Words != row.want || now != row.wantNow || r.Decided != 3 || r.Changed != 3-row.want.Same {
			t.Errorf("%s: %+v, now %q; decided %d, changed %d", row.says, r.Words, now, r.Decided, r.Changed)
		}
	}
}
