package file

import (
	"context"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestLearn(t *testing.T) {
	const text = `version: 1
allow: [{host: api.example.com, methods: [GET]}, "ssh.example.com:22"]
deny: ["*.denied.example", {host: put.example.com, methods: [PUT]}]
sandboxes: [{name: narrow, token_file: t, allow: [a.example.com]}, {name: wide, token_file: u}]
tests: ["deny https://new.example/"]
`
	file, err := Parse("t.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := file.Compile(Environment{Inspection: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := file.Compile(Environment{Inspection: true, Learn: true})
	if err != nil {
		t.Fatalf("the tests of a file are about its rules, whatever is learned: %v", err)
	}
	if p.Digest() == plain.Digest() {
		t.Error("a policy that learns has the digest of one that does not")
	}
	for _, c := range []struct {
		sandbox, what string
		want          policy.Verdict
		rule          string
	}{
		{"wide", "new.example:443", policy.Allow, policy.LearnRule},
		{"wide", "93.184.216.34:22", policy.Allow, policy.LearnRule},
		{"wide", "ssh.example.com:22", policy.Allow, ""},
		{"wide", "x.denied.example:443", policy.Deny, ""},
		{"wide", "PUT http://put.example.com/", policy.Deny, ""},
		{"wide", "POST http://api.example.com/", policy.Deny, ""},
		{"wide", "10.0.0.5:443", policy.Deny, ""},
		{"wide", "169.254.169.254:80", policy.Deny, ""},
		{"narrow", "new.example:443", policy.Deny, ""},
	} {
		r, err := ParseCheck(c.what)
		if err != nil {
			t.Fatal(err)
		}
		r.Sandbox, r.Usage = policy.Sandbox{Name: c.sandbox}, new(policy.Usage)
		d, _ := p.Judge(context.Background(), r)
		if d.Verdict != c.want || c.rule != "" && d.Rule != c.rule || c.rule == "" && d.Rule == policy.LearnRule {
			t.Errorf("%s by %s: %s by %s", c.what, c.sandbox, d.Verdict, d.Rule)
		}
		if before, _ := plain.Judge(context.Background(), r); before.Verdict < d.Verdict && d.Rule != policy.LearnRule {
			t.Errorf("%s by %s: %s by %s, and %s without learning", c.what, c.sandbox, d.Verdict, d.Rule, before.Verdict)
		}
	}
}
