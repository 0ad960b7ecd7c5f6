package file

import (
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
)

const githubFile = `version: 1
allow:
  - {host: api.github.com, id: gh}
  - "*.github.com"
  - uploads.github.com:80
  - gitlab.com
  - iam.googleapis.com
credentials:
  - {for: github, from: {file: token}}
  - {for: gitlab, from: {file: token}}
  - {for: gcloud, from: {file: token}}
`

// TestCredentialsAreForRulesThatNameTheirHost and need a look into their tunnels.
func TestCredentialsAreForRulesThatNameTheirHost(t *testing.T) {
	f, err := Parse("f", []byte(githubFile))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Credentials[1].Spec.Bodies) == 0 {
		t.Error("nobody looks into bodies for GitLab")
	}
	if models, err := Parse("f", []byte("version: 1\nallow: [api.openai.com]\ncredentials: [{for: openai, from: {file: t}}]\n")); err != nil || len(models.Credentials[0].Spec.Tenants) == 0 {
		t.Errorf("anybody may choose an organization of OpenAI: %v", err)
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

		// Other spellings of one endpoint.
		"POST https://api.github.com/REPOS/a/b/actions/Runners/registration-token":         "deny ",
		"POST https://api.github.com/repositories/1/actions/runners/registration-token":    "deny ",
		"POST https://gitlab.com/api/v4/user/personal_access_tokens.json":                  "deny ",
		"POST https://gitlab.com/api/v4/user/personal_access_tokens/":                      "deny ",
		"https://gitlab.com/users/sign_in.html":                                            "deny ",
		"https://gitlab.com/jwt/auth?service=container_registry":                           "deny ",
		"https://iam.googleapis.com/v1/projects/p/serviceAccounts/a/keys?$httpMethod=POST": "deny ",
		"POST https://iam.googleapis.com/batch":                                            "deny ",
		"https://iam.googleapis.com/v1/projects/p/serviceAccounts/a/keys":                  "allow allow[4]",
		"https://gitlab.com/api/v4/user":                                                   "allow allow[3]",
	} {
		r, err := ParseCheck(ask)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := p.Judge(t.Context(), r)
		if got := d.Verdict.Action() + " " + d.Inject; got != want {
			t.Errorf("%s: %q by %s, want %q", ask, got, d.Rule, want)
		}
		if d.Verdict == policy.Deny && !strings.HasPrefix(d.Rule, "credential:") {
			t.Errorf("%s is denied by %s", ask, d.Rule)
		}
	}
}

var badCredentials = []struct{ name, allow, entries, want string }{
	{"a kind that is none", "api.github.com", "{for: githbu, from: {file: t}}", `did you mean "github"`},
	{"no source", "api.github.com", "{for: github}", "has no from"},
	{"two sources", "api.github.com", "{for: github, from: {file: t, env: T}}", "one of file, env, command, oauth and github_app"},
	{"a secret over plain http", "a.test", "{for: {host: a.test, header: X-Key}, from: {oauth: {token_url: 'http://id.test/token', client_id: x, client_secret: {file: s}}}}", "no https URL"},
	{"no client", "a.test", "{for: {host: a.test, header: X-Key}, from: {oauth: {token_url: 'https://id.test/token', client_secret: {file: s}}}}", "has no client_id"},
	{"neither secret nor token", "a.test", "{for: {host: a.test, header: X-Key}, from: {oauth: {token_url: 'https://id.test/token', client_id: x}}}", "neither client_secret nor refresh_token"},
	{"a secret by another server", "a.test", "{for: {host: a.test, header: X-Key}, from: {oauth: {token_url: 'https://id.test/token', client_id: x, client_secret: {oauth: {token_url: 'https://id.test/', client_id: x, client_secret: {file: s}}}}}}", "is read from file, env or command"},
	{"a refresh token that cannot be replaced", "a.test", "{for: {host: a.test, header: X-Key}, from: {oauth: {token_url: 'https://id.test/token', client_id: x, refresh_token: {env: R}}}}", `no key "env"`},
	{"an app without a key", "api.github.com", "{for: github, from: {github_app: {id: 1, installation: 2}}}", "has no private_key"},
	{"an app by name", "api.github.com", "{for: github, from: {github_app: {id: my app, installation: 2, private_key: {file: k}}}}", "is no number"},
	{"a repository with its owner", "api.github.com", "{for: github, from: {github_app: {id: 1, installation: 2, private_key: {file: k}, repositories: [acme/app]}}}", "without its owner"},
	{"a level that is none", "api.github.com", "{for: github, from: {github_app: {id: 1, installation: 2, private_key: {file: k}, permissions: {contents: all}}}}", "permissions.contents"},
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
	{"a registry without a user", "registry-1.docker.io", "{for: docker, from: {file: t}}", "no user"},
	{"two registries of one token service", "a.test", "{for: docker, user: u, hosts: [a.test, b.test], from: {file: t}}", "several hosts"},
	{"half of a token service", "a.test", "{for: docker, user: u, hosts: [a.test], realm: 'https://b.test/token', from: {file: t}}", "both"},
	{"a token service in clear", "a.test", "{for: docker, user: u, hosts: [a.test], realm: 'http://b.test/token', service: s, from: {file: t}}", "no URL"},
	{"a realm of another kind", "api.github.com", "{for: github, realm: 'https://b.test/token', from: {file: t}}", "belongs to for: docker"},
	{"a rule with inject", "{host: api.github.com, inject: {header: X-A, env: T}}", "{for: github, from: {file: t}}", "has inject"},
}

// TestSourcesThatServersHandOut reads what a file says of them, with a variable in each path.
func TestSourcesThatServersHandOut(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
allow: [a.test, api.github.com]
credentials:
  - {for: {host: a.test, header: X-Key}, from: {oauth: {token_url: "https://id.test/token", client_id: x, client_secret: {file: "${D}/s"}, refresh_token: {file: "${D}/r"}, scopes: [a, b]}, refresh: 10m}}
  - {for: github, from: {github_app: {id: 123, installation: 7, private_key: {file: "${D}/k"}, repositories: [app], permissions: {contents: write}}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "/d", true })
	if err != nil {
		t.Fatal(err)
	}
	o, a := out.Credentials[0].Spec.From, out.Credentials[1].Spec.From
	if o.OAuth.ClientSecret.File != "/d/s" || o.OAuth.RefreshToken != "/d/r" || o.OAuth.TokenURL != "https://id.test/token" || len(o.OAuth.Scopes) != 2 || len(o.Parts()) != 2 {
		t.Errorf("%+v", o.OAuth)
	}
	if a.GitHubApp.PrivateKey.File != "/d/k" || a.GitHubApp.ID != "123" || a.GitHubApp.Installation != "7" || a.GitHubApp.API != "https://api.github.com" || a.GitHubApp.Permissions["contents"] != "write" || len(a.Parts()) != 1 {
		t.Errorf("%+v", a.GitHubApp)
	}
	if f.Credentials[0].Spec.From.OAuth.RefreshToken != "${D}/r" || f.Credentials[1].Spec.From.GitHubApp.PrivateKey.File != "${D}/k" {
		t.Error("expanding a file has changed it")
	}
}

// TestEveryMintingEndpointIsDenied opens all hosts of each kind, and asks for what its table denies.
func TestEveryMintingEndpointIsDenied(t *testing.T) {
	asked := 0
	for _, kind := range credentials.Kinds() {
		if kind.Name == credentials.AWS { // whose operations a table lists
			continue
		}
		first := kind.Places[0].Host
		if strings.HasPrefix(first, ".") {
			first = "storage" + first
		}
		user := ""
		if kind.Name == credentials.Docker {
			user = ", user: acme"
		}
		hosts := []string{first}
		for _, m := range kind.Mints {
			if m.Host != "" && !slices.Contains(hosts, m.Host) {
				hosts = append(hosts, m.Host)
			}
		}
		p := compiled(t, "allow: ["+strings.Join(hosts, ", ")+"]\ncredentials: [{for: "+kind.Name+user+", from: {file: s}}]", inspecting)
		for _, m := range kind.Mints {
			methods, host := m.Methods, m.Host
			if len(methods) == 0 {
				methods = []string{"GET", "POST"}
			}
			if host == "" {
				host = kind.Places[0].Host
			}
			for _, method := range methods {
				for _, path := range m.Paths {
					asked++
					ask := method + " https://" + host + strings.ReplaceAll(strings.ReplaceAll(path, "**", "a/b"), "*", "x")
					if d := p.Decide(t.Context(), asking(t, ask)); d.Verdict != policy.Deny || d.Rule != "credential:"+kind.Name {
						t.Errorf("%s: %s: %s", kind.Name, ask, saying(d))
					}
				}
			}
		}
	}
	if asked < 100 {
		t.Errorf("only %d were asked for", asked)
	}
}

// TestATokenEndpointIsDenied to sandboxes, which would get a token of their own there.
func TestATokenEndpointIsDenied(t *testing.T) {
	p := compiled(t, `allow: [a.test, id.test]
credentials: [{for: {host: a.test, header: X-Key}, from: {oauth: {token_url: "https://id.test/oauth/token", client_id: x, client_secret: {file: s}}}}]`, inspecting)
	for ask, want := range map[string]policy.Verdict{"POST https://id.test/oauth/token": policy.Deny, "GET https://id.test/x/../oauth/token": policy.Deny, "GET https://id.test/keys": policy.Allow} {
		if d := p.Decide(t.Context(), asking(t, ask)); d.Verdict != want {
			t.Errorf("%s: %s", ask, saying(d))
		}
	}
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

// TestACredentialOfARegistry knows the token service, which no sandbox may ask.
func TestACredentialOfARegistry(t *testing.T) {
	for entry, want := range map[string]string{
		"{for: docker, user: u, from: {file: t}}":                                                                      "https://auth.docker.io/token registry.docker.io",
		"{for: docker, user: u, hosts: [ghcr.io], from: {file: t}}":                                                    "https://ghcr.io/token ghcr.io",
		"{for: docker, user: u, hosts: [own.test], from: {file: t}}":                                                   " ",
		"{for: docker, user: u, hosts: [own.test], realm: 'https://auth.test/a/token', service: own, from: {file: t}}": "https://auth.test/a/token own",
	} {
		f, err := Parse("f", []byte("version: 1\nallow: [registry-1.docker.io, ghcr.io, own.test, auth.test, auth.docker.io]\ncredentials:\n  - "+entry+"\n"))
		if err != nil {
			t.Errorf("%s: %v", entry, err)
			continue
		}
		spec := f.Credentials[0].Complete()
		if got := spec.Docker.Service.Realm + " " + spec.Docker.Service.Service; got != want {
			t.Errorf("%s: %q, want %q", entry, got, want)
		}
		if spec.Docker.Service.Realm == "" {
			continue
		}
		p, err := f.Compile(inspecting)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ParseCheck(spec.Docker.Service.Realm + "?service=x&scope=y")
		if err != nil {
			t.Fatal(err)
		}
		if d, _ := p.Judge(t.Context(), r); d.Verdict != policy.Deny || d.Rule != "credential:docker" {
			t.Errorf("%s: its token service may be asked: %+v", entry, d)
		}
	}
}
