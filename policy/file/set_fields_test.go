package file

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestSetFields are those of the host, and every rule under allow that names it has its tunnels looked into.
func TestSetFields(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
allow:
  - api.test
  - {host: api.test, paths: ["/v1/**"], set: {X-Org: ours}}
  - {host: "api.test:8443", set: {X-Tier: "1"}}
  - "*.test"
deny:
  - {host: api.test, headers: {x-org: [ours]}, paths: ["/v1/secret/**"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(inspecting)
	if err != nil {
		t.Fatal(err)
	}
	for ask, want := range map[string]string{
		"https://api.test/v1/x":        "allow X-Org: ours|X-Tier: 1|",
		"https://api.test/":            "allow X-Org: ours|X-Tier: 1|",
		"https://api.test/v1/secret/x": "deny ",
		"api.test:443":                 "allow X-Org: ours|X-Tier: 1|",
		"https://www.test/":            "allow ",
	} {
		r, err := ParseCheck(ask)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := p.Judge(t.Context(), r)
		if got := d.Verdict.Action() + " " + strings.ReplaceAll(d.Set, "\n", "|"); got != want {
			t.Errorf("%s: %q, want %q", ask, got, want)
		}
		if strings.HasSuffix(ask, ":443") && d.Verdict != policy.Inspect {
			t.Errorf("%s: %v: the tunnel passes unread", ask, d.Verdict)
		}
	}
}

func TestBadSetFields(t *testing.T) {
	for _, row := range []struct{ name, allow, want string }{
		{"for several hosts", `{host: "*.test", set: {X-Org: a}}`, "one host"},
		{"a credential", `{host: api.test, set: {Authorization: a}}`, "credentials"},
		{"a field that frames", `{host: api.test, set: {Content-Length: "5"}}`, "how the request is sent"},
		{"no name", `{host: api.test, set: {"a b": x}}`, "no name of a header field"},
		{"a line break", `{host: api.test, set: {X-Org: "a\nb"}}`, "printable ASCII"},
		{"an empty value", `{host: api.test, set: {X-Org: ""}}`, "is empty"},
		{"a list", `{host: api.test, set: [X-Org]}`, "no mapping"},
		{"nothing", `{host: api.test, set: {}}`, "no mapping"},
		{"a name twice", `{host: api.test, set: {X-Org: a, x-org: b}}`, "twice"},
		{"two values for a host", `{host: api.test, set: {X-Org: a}}, {host: api.test, paths: [/x], set: {x-org: b}}`, "something else"},
		{"what cannot be seen", `{host: api.test, tls: any, set: {X-Org: a}}`, "cannot be"},
		{"what another rule does not see", `{host: api.test, tls: any}, {host: api.test, paths: [/x], set: {X-Org: a}}`, "cannot be seen"},
	} {
		if _, err := Parse("f", []byte("version: 1\nallow: ["+row.allow+"]\n")); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
	for _, list := range []string{"deny: [{host: a.test, set: {X-Org: a}}]", "sandboxes: [{name: a, allow: [{host: a.test, set: {X-Org: a}}]}]"} {
		if _, err := Parse("f", []byte("version: 1\n"+list+"\n")); err == nil {
			t.Errorf("%s is read", list)
		}
	}
	if _, err := Parse("f", []byte("version: 1\ntls: {never: [api.test]}\nallow: [{host: api.test, set: {X-Org: a}}]\n")); err == nil || !strings.Contains(err.Error(), "tls.never") {
		t.Errorf("tls.never: %v", err)
	}
}

// TestADifferenceOfSetFieldsIsSeen by policy diff: without one, requests are looser.
func TestADifferenceOfSetFieldsIsSeen(t *testing.T) {
	compile := func(rule string) *policy.Policy {
		f, err := Parse("f", []byte("version: 1\nallow: ["+rule+"]\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(inspecting)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	none, ours, theirs := compile("{host: api.test, paths: [/x]}"), compile("{host: api.test, paths: [/x], set: {X-Org: ours}}"), compile("{host: api.test, paths: [/x], set: {X-Org: theirs}}")
	for _, row := range []struct {
		was, now *policy.Policy
		want     policy.Change
	}{{ours, none, policy.Loosens}, {none, ours, policy.Tightens}, {ours, theirs, policy.Credential}} {
		c := policy.Sides{Old: row.was, New: row.now, Sandboxes: []policy.Sandbox{{Name: "default"}}}.Compare(t.Context())
		found := false
		for _, d := range c.Differences {
			found = found || d.Change == row.want
		}
		if !found {
			t.Errorf("%+v, want %s", c, row.want)
		}
	}
}
