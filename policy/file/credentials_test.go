package file

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

const githubFile = `version: 1
allow:
  - {host: api.github.com, id: gh}
  - "*.github.com"
  - uploads.github.com:80
credentials:
  - {for: github, from: {file: token}}
`

// TestCredentialsAreForRulesThatNameTheirHost and need a look into their tunnels.
func TestCredentialsAreForRulesThatNameTheirHost(t *testing.T) {
	f, err := Parse("f", []byte(githubFile))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(inspecting)
	if err != nil {
		t.Fatal(err)
	}
	for ask, want := range map[string]string{
		"https://api.github.com/user":                           "allow gh",
		"http://api.github.com/user":                            "allow ",
		"https://gist.github.com/x":                             "allow ",
		"POST https://api.github.com/authorizations":            "deny ",
		"POST https://api.github.com/applications/1/token":      "deny ",
		"https://api.github.com/copilot_internal/v2/token":      "deny ",
		"https://api.github.com/x/../copilot_internal/v2/token": "deny ",
	} {
		r, err := ParseCheck(ask)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := p.Judge(t.Context(), r)
		if got := d.Verdict.Action() + " " + d.Inject; got != want {
			t.Errorf("%s: %q by %s, want %q", ask, got, d.Rule, want)
		}
		if d.Verdict == policy.Deny && d.Rule != "credential:github" {
			t.Errorf("%s is denied by %s", ask, d.Rule)
		}
	}
}

var badCredentials = []struct{ name, allow, entries, want string }{
	{"a kind that is none", "api.github.com", "{for: githbu, from: {file: t}}", `did you mean "github"`},
	{"no source", "api.github.com", "{for: github}", "has no from"},
	{"two sources", "api.github.com", "{for: github, from: {file: t, env: T}}", "one of file, env and command"},
	{"a field without a file", "api.github.com", "{for: github, from: {env: T, field: a}}", "no file"},
	{"no rule that names its host", `"*.github.com"`, "{for: github, from: {file: t}}", "never used"},
	{"a rule in clear alone", `"api.github.com:80"`, "{for: github, from: {file: t}}", "never used"},
	{"two of one name", "api.github.com", "{for: github, from: {file: t}}\n  - {for: github, from: {file: u}}", "give one another name"},
	{"two for one host", "api.anthropic.com", "{for: anthropic, from: {file: t}}\n  - {for: claude-code, from: {file: u}}", "both go to api.anthropic.com"},
	{"two for one variable", "a.test, b.test", "{for: npm, hosts: [a.test], from: {file: t}}\n  - {for: npm, name: n, hosts: [b.test], from: {file: u}}", "NPM_TOKEN"},
	{"hosts of a kind that has its own", "a.test", "{for: github, hosts: [a.test], from: {file: t}}", "fixed"},
	{"a host with a port", "a.test", "{for: {host: 'a.test:443', header: X-Key}, from: {file: t}}", "without a port"},
	{"a wildcard", "a.test", "{for: {host: '*.test', header: X-Key}, from: {file: t}}", "not one host"},
	{"neither field nor parameter", "a.test", "{for: {host: a.test}, from: {file: t}}", "header and query"},
	{"a field that routes", "a.test", "{for: {host: a.test, header: Host}, from: {file: t}}", "how the request is sent"},
	{"a user without Basic", "a.test", "{for: {host: a.test, header: X-Key, user: me}, from: {file: t}}", "form: basic"},
	{"an unknown word for foreign", "api.github.com", "{for: github, from: {file: t}, foreign: allow}", "refuse"},
	{"a rule that lets what cannot be seen", "{host: api.github.com, tls: any}", "{for: github, from: {file: t}}", "cannot be seen"},
	{"aws without services", "s3.eu-west-1.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1]}", "regions"},
	{"s3 for any bucket", "s3.eu-west-1.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1], services: [s3]}", "every bucket"},
	{"a service whose secrets nobody knows", "s3.eu-west-1.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1], services: [sso]}", "sso"},
	{"a pattern of buckets", "s3.eu-west-1.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1], services: [s3], buckets: ['acme-*']}", "whole name"},
	{"buckets without s3", "sts.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1], services: [sts], buckets: [acme-build]}", "no s3"},
	{"an account that is a number", "sts.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1], services: [sts], account: '12'}", "twelve digits"},
	{"env of aws", "sts.amazonaws.com", "{for: aws, from: {profile: a}, regions: [eu-west-1], services: [sts], env: [A]}", "fixed"},
	{"a field of aws", "sts.amazonaws.com", "{for: aws, from: {file: a, field: b}, regions: [eu-west-1], services: [sts]}", "two parts"},
	{"a variable of half a key", "sts.amazonaws.com", "{for: aws, from: {env: AWS_SECRET}, regions: [eu-west-1], services: [sts]}", "ACCESS_KEY_ID"},
	{"a profile of another kind", "api.github.com", "{for: github, from: {profile: a}}", "belongs to for: aws"},
	{"regions of another kind", "api.github.com", "{for: github, from: {file: t}, regions: [eu-west-1]}", "belongs to for: aws"},
	{"a rule with inject", "{host: api.github.com, inject: {header: X-A, env: T}}", "{for: github, from: {file: t}}", "has inject"},
}

func TestBadCredentials(t *testing.T) {
	for _, row := range badCredentials {
		_, err := Parse("f", []byte("version: 1\nallow: ["+row.allow+"]\ncredentials:\n  - "+row.entries+"\n"))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
	if _, err := ParseOrganisation("f", []byte("version: 1\ncredentials: []\n")); err == nil {
		t.Error("an organisation has credentials")
	}
	never := strings.Replace(githubFile, "allow:", "tls: {never: [api.github.com]}\nallow:", 1)
	if _, err := Parse("f", []byte(never)); err == nil || !strings.Contains(err.Error(), "tls.never") {
		t.Errorf("tls.never: %v", err)
	}
}

// TestACredentialOfAWS goes to hosts that rules name exactly, and is read from the file of profiles if nothing else is written.
func TestACredentialOfAWS(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
allow: [{id: s3, host: acme-build.s3.eu-west-1.amazonaws.com}, "*.amazonaws.com"]
credentials:
  - {for: aws, from: {profile: agent}, regions: [eu-west-1], services: [s3, sts], buckets: [acme-build], account: "123456789012"}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(name string) (string, bool) { return "/home/me", name == "HOME" })
	if err != nil {
		t.Fatal(err)
	}
	spec := out.Credentials[0].Complete()
	if spec.From.File != "/home/me/.aws/credentials" || spec.AWS == nil || spec.AWS.Account != "123456789012" || len(spec.AWS.Services) != 2 {
		t.Errorf("%+v", spec)
	}
	if f.Allow[0].Credential != "aws" || f.Allow[1].Credential != "" {
		t.Errorf("%q %q", f.Allow[0].Credential, f.Allow[1].Credential)
	}
}
