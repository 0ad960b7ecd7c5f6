package credentials

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/http1"
)

const (
	realGitHub = "ghp_0123456789abcdefghijREALREALREAL0001"
	realGemini = "AIzaREAL-gemini-key-0123456789"
)

// credentialOf has a secret of a kind.
func credentialOf(t *testing.T, kind, text string) *Credential {
	t.Helper()
	k := KindNamed(kind)
	if k == nil {
		t.Fatalf("there is no kind %s", kind)
	}
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := New(Spec{Name: kind, Kind: kind, Places: k.Places, Prefixes: k.Prefixes, Variables: k.Variables, From: Source{File: path}}, nil, func(p string) string { return p })
	if err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func variable(t *testing.T, s *Set, sandbox, name string) string {
	t.Helper()
	all, _ := s.Variables(sandbox)
	i := slices.IndexFunc(all, func(v Variable) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("there is no variable %s in %v", name, all)
	}
	return all[i].Value
}

func basicOf(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }

func TestApply(t *testing.T) {
	gh, gm := credentialOf(t, "github", realGitHub), credentialOf(t, "gemini", realGemini)
	an, gl := credentialOf(t, "anthropic", "sk-ant-api03-REALREALREAL"), credentialOf(t, "gitlab", "glpat-REALREALREAL")
	set := NewSet(Key{1}, []*Credential{gh, gm, an, gl})
	place := variable(t, set, "ci", "GH_TOKEN")
	other := variable(t, set, "web", "GH_TOKEN")
	gemini, claude, lab := variable(t, set, "ci", "GEMINI_API_KEY"), variable(t, set, "ci", "ANTHROPIC_API_KEY"), variable(t, set, "ci", "GITLAB_TOKEN")
	const refused = "refused"
	for _, row := range []struct {
		name, host, target string
		fields             []string // "Name: value"
		want               string   // fields as they go up, or the target, or refused
		kind               string
	}{
		{"none sent", "api.github.com", "/user", nil, "Authorization: token " + realGitHub, "github"},
		{"none sent to git", "github.com", "/acme/app.git/info/refs?service=git-upload-pack", nil, "Authorization: " + basicOf("x-access-token:"+realGitHub), "github"},
		{"none sent to the interface of GitLab", "gitlab.com", "/api/v4/user", nil, "PRIVATE-TOKEN: glpat-REALREALREAL", "gitlab"},
		{"none sent to git at GitLab", "gitlab.com", "/a/b.git/info/refs", nil, "Authorization: " + basicOf("oauth2:glpat-REALREALREAL"), "gitlab"},
		{"Bearer at GitLab", "gitlab.com", "/api/v4/user", []string{"Authorization: Bearer " + lab}, "Authorization: Bearer glpat-REALREALREAL", "gitlab"},
		{"an empty one", "api.github.com", "/user", []string{"authorization: "}, "Authorization: token " + realGitHub, "github"},
		{"token", "api.github.com", "/user", []string{"Authorization: token " + place}, "Authorization: token " + realGitHub, "github"},
		{"Bearer in small letters", "api.github.com", "/user", []string{"authorization: bearer " + place}, "authorization: Bearer " + realGitHub, "github"},
		{"Basic password", "github.com", "/x", []string{"Authorization: " + basicOf("me:"+place)}, "Authorization: " + basicOf("me:"+realGitHub), "github"},
		{"Basic user", "github.com", "/x", []string{"Authorization: " + basicOf(place+":x-oauth-basic")}, "Authorization: " + basicOf(realGitHub+":x-oauth-basic"), "github"},
		{"with a prefix of other tokens of GitHub", "api.github.com", "/", []string{"Authorization: token gho_" + strings.TrimPrefix(place, "ghp_")}, "Authorization: token " + realGitHub, "github"},
		{"bare, which GitHub's tools do not send", "api.github.com", "/user", []string{"Authorization: " + place}, refused, ""},
		{"that of another sandbox", "api.github.com", "/user", []string{"Authorization: token " + other}, refused, ""},
		{"that of another credential", "api.github.com", "/user", []string{"Authorization: Bearer " + claude}, refused, ""},
		{"the placeholder with a prefix that is none", "api.github.com", "/user", []string{"Authorization: token x" + place}, refused, ""},
		{"two spaces", "api.github.com", "/user", []string{"Authorization: token  " + place}, refused, ""},
		{"two in one field", "api.github.com", "/user", []string{"Authorization: token " + place + ", token foreign"}, refused, ""},

		{"case 1: in the path, the query and an unknown field", "api.github.com", "/x/" + place + "?q=" + place, []string{"X-Other: " + place}, "X-Other: " + place, "github"},
		{"case 2: in Authorization to another host", "example.com", "/", []string{"Authorization: token " + place}, "Authorization: token " + place, ""},
		{"case 3: two Authorization", "api.github.com", "/", []string{"Authorization: token " + place, "Authorization: token " + place}, refused, ""},
		{"case 3: of which one is foreign", "api.github.com", "/", []string{"Authorization: token " + place, "authorization: token ghp_foreign"}, refused, ""},
		{"case 4: a foreign Bearer beside the placeholder", "api.anthropic.com", "/v1/messages", []string{"X-Api-Key: " + claude, "Authorization: Bearer foreign"}, refused, ""},
		{"case 4: a foreign Bearer alone", "api.anthropic.com", "/v1/messages", []string{"Authorization: Bearer foreign"}, refused, ""},
		{"case 5: a foreign key in the query", "generativelanguage.googleapis.com", "/v1/models?key=AIzaForeign", nil, refused, ""},
		{"case 5: where the query is no place", "api.github.com", "/user?access_token=foreign", nil, refused, ""},
		{"case 6: encoded", "generativelanguage.googleapis.com", "/v1/models?%6bey=AIzaForeign", nil, refused, ""},
		{"case 6: the placeholder under an encoded name", "generativelanguage.googleapis.com", "/v1/models?a=b&%6Bey=" + gemini, nil, "/v1/models?a=b&%6Bey=" + realGemini, "gemini"},
		{"case 6: behind a semicolon", "generativelanguage.googleapis.com", "/v1/models?a=b;key=AIzaForeign", nil, refused, ""},
		{"case 6: with a dollar", "generativelanguage.googleapis.com", "/v1/models?$key=AIzaForeign", nil, refused, ""},
		{"case 6: in capitals", "generativelanguage.googleapis.com", "/v1/models?KEY=AIzaForeign", nil, refused, ""},
		{"as a list", "api.github.com", "/user?access_token[%1b[31m]=foreign", nil, refused, ""},
		{"with a dot, which PHP takes for an underscore", "api.github.com", "/user?access.token=foreign", nil, refused, ""},
		{"a field in the query, as Google's services take it", "generativelanguage.googleapis.com", "/v1/models?%24httpHeaders=Authorization:Bearer%20foreign", nil, refused, ""},
		{"a URL that is signed itself", "generativelanguage.googleapis.com", "/v1/x?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature=00", nil, refused, ""},
		{"a field with a short name", "api.github.com", "/user", []string{"Token: foreign"}, refused, ""},
		{"a field that ends in auth", "gitlab.com", "/api/v4/user", []string{"X_Auth: foreign"}, refused, ""},
		{"a parameter with a short name", "gitlab.com", "/api/v4/projects/1/trigger/pipeline?token=foreign", nil, refused, ""},
		{"a JWT in the query", "api.anthropic.com", "/v1/messages?jwt=foreign", nil, refused, ""},
		{"a private file as GitHub names it", "raw.githubusercontent.com", "/acme/app/main/file?token=AAAA", nil, "Authorization: token " + realGitHub, "github"},
		{"a type of a login", "api.github.com", "/user", []string{"npm-auth-type: web"}, "Authorization: token " + realGitHub, "github"},
		{"a token of a page", "api.github.com", "/user?page_token=x", nil, "Authorization: token " + realGitHub, "github"},
		{"the placeholder in the query", "generativelanguage.googleapis.com", "/v1/models?key=" + gemini + "&alt=sse", nil, "/v1/models?key=" + realGemini + "&alt=sse", "gemini"},
		{"the placeholder in the query and in the field", "generativelanguage.googleapis.com", "/v1/models?key=" + gemini, []string{"x-goog-api-key: " + gemini}, refused, ""},
		{"case 7: 65 bytes beside it", "github.com", "/", []string{"Authorization: " + basicOf(strings.Repeat("u", 65)+":"+place)}, refused, ""},
		{"case 7: 64 bytes beside it", "github.com", "/", []string{"Authorization: " + basicOf(strings.Repeat("u", 64)+":"+place)}, "Authorization: " + basicOf(strings.Repeat("u", 64)+":"+realGitHub), "github"},
		{"a password as long as a token beside it", "github.com", "/", []string{"Authorization: " + basicOf(place+":"+strings.Repeat("p", 17))}, refused, ""},
		{"a foreign token as the password beside it", "github.com", "/", []string{"Authorization: " + basicOf(place+":ghp_foreign")}, refused, ""},
		{"a foreign token as the user beside it", "github.com", "/", []string{"Authorization: " + basicOf("github_pat_foreign:"+place)}, refused, ""},
		{"a foreign token of GitLab, which looks at the password alone", "gitlab.com", "/a/b.git/info/refs", []string{"Authorization: " + basicOf(lab+":foreign")}, refused, ""},
		{"case 8: junk", "github.com", "/", []string{"Authorization: " + basicOf("me:"+place) + "!"}, refused, ""},
		{"case 8: a newline", "github.com", "/", []string{"Authorization: " + basicOf("me:" + place)[:20] + "\n" + basicOf("me:" + place)[20:]}, refused, ""},
		{"case 8: too much padding", "github.com", "/", []string{"Authorization: " + basicOf("me:"+place) + "="}, refused, ""},
		{"case 8: bits behind the end", "github.com", "/", []string{"Authorization: Basic " + loose("me:"+place)}, refused, ""},
		{"case 9: in another case", "api.github.com", "/", []string{"Authorization: token " + strings.ToLower(place)}, refused, ""},
		{"a foreign cookie", "api.github.com", "/", []string{"Cookie: user_session=foreign"}, refused, ""},
		{"a cookie of the edge", "api.github.com", "/", []string{"Cookie: __cf_bm=x; _cfuvid=y"}, "Authorization: token " + realGitHub, "github"},
		{"a foreign cookie behind a comma", "api.github.com", "/", []string{"Cookie: __cf_bm=x, user_session=foreign"}, refused, ""},
		{"a field that no service of the table has", "api.github.com", "/", []string{"X-Vault-Token: foreign"}, refused, ""},
		{"a token against forged requests", "gitlab.com", "/api/v4/user", []string{"X-CSRF-Token: x"}, "PRIVATE-TOKEN: glpat-REALREALREAL", "gitlab"},
		{"a known field with underscores", "api.github.com", "/", []string{"X_Api_Key: foreign"}, refused, ""},
		{"a key among the protocols of a WebSocket", "api.anthropic.com", "/", []string{"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-foreign"}, refused, ""},
		{"a key alone among them", "api.github.com", "/", []string{"Sec-WebSocket-Protocol: access_token, " + strings.Repeat("k", 40)}, refused, ""},
		{"other protocols of a WebSocket", "api.github.com", "/", []string{"Sec-WebSocket-Protocol: realtime"}, "Authorization: token " + realGitHub, "github"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := &Request{Sandbox: "ci", Rule: "gh", Host: row.host, Fields: fieldsOf(row.fields)}
			r.Target.Path, r.Target.Query, r.Target.HasQuery = strings.Cut(row.target, "?")
			before := slices.Clone(r.Fields)
			a := set.Apply(r)
			if !slices.Equal(before, r.Fields) {
				t.Errorf("the request changed: %v", r.Fields)
			}
			if row.want == refused {
				if strings.ContainsFunc(a.Refused, func(c rune) bool { return c < ' ' }) {
					t.Errorf("the reason has text of the sandbox: %q", a.Refused)
				}
				if a.Refused == "" || a.Unavailable || a.Added != nil {
					t.Errorf("it passes: %v %v", a.Target, a.Fields)
				}
				return
			}
			text := a.Target.RequestURI() + "\n"
			for _, f := range a.Fields {
				text += f.Name + ": " + f.Value + "\n"
			}
			if a.Refused != "" || a.Kind != row.kind || !strings.Contains(text, row.want+"\n") {
				t.Errorf("%s %q, want %q:\n%s", a.Kind, a.Refused, row.want, text)
			}
			if stray := strings.HasPrefix(row.name, "case 1:") || strings.HasPrefix(row.name, "case 2:"); stray != (a.Note != "") {
				t.Errorf("the note is %q", a.Note)
			}
			for _, f := range a.Fields {
				_, encoded, _ := strings.Cut(f.Value, " ")
				plain, _ := base64.StdEncoding.DecodeString(encoded)
				text += string(plain)
			}
			if n := strings.Contains(text, "REAL"); n != (row.kind != "") {
				t.Errorf("it holds a secret: %t:\n%s", n, text)
			}
		})
	}
}

// TestTheSandboxChoosesNoAccount among those that a key may use, but where the policy has.
func TestTheSandboxChoosesNoAccount(t *testing.T) {
	c := credentialOf(t, "openai", "sk-proj-REALREALREAL")
	c.Tenants = KindNamed("openai").Tenants
	set := NewSet(Key{1}, []*Credential{c})
	for _, row := range []struct {
		sent, set []string
		passes    bool
	}{
		{[]string{"openai-organization: org-foreign"}, nil, false},
		{[]string{"OpenAI_Project: proj-foreign"}, nil, false},
		{[]string{"OpenAI-Organization: org-foreign"}, []string{"OpenAI-Project"}, false},
		{[]string{"OpenAI-Organization: org-1"}, []string{"openai-organization"}, true},
		{[]string{"OpenAI-Organization: "}, nil, true},
		{[]string{"OpenAI-Beta: x"}, nil, true},
	} {
		a := set.Apply(&Request{Sandbox: "ci", Rule: "r", Host: "api.openai.com", Fields: fieldsOf(row.sent), Set: row.set})
		if (a.Refused == "") != row.passes || (a.Added != nil) != row.passes {
			t.Errorf("%q, of which the policy has set %q: %+v", row.sent, row.set, a)
		}
	}
}

// loose is base64 that ends in bits that say nothing.
func loose(text string) string {
	for len(text)%3 != 1 {
		text = "m" + text
	}
	s := base64.RawStdEncoding.EncodeToString([]byte(text))
	last := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", s[len(s)-1])
	return s[:len(s)-1] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[last|1])
}

func fieldsOf(lines []string) (f http1.Fields) {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		f = append(f, http1.Field{Name: name, Value: value})
	}
	return f
}

// TestOverPlainHTTPNothingPasses to a host that has a credential: case 11.
func TestOverPlainHTTPNothingPasses(t *testing.T) {
	set := NewSet(Key{}, []*Credential{credentialOf(t, "github", realGitHub)})
	for host, refused := range map[string]bool{"api.github.com": true, "example.com": false} {
		a := set.Apply(&Request{Sandbox: "ci", Host: host, Clear: true})
		if (a.Refused != "") != refused || a.Added != nil || len(a.Fields) > 0 {
			t.Errorf("%s: %+v", host, a)
		}
	}
}

// TestARuleWithoutACredentialAddsNone and keeps foreign ones out all the same.
func TestARuleWithoutACredentialAddsNone(t *testing.T) {
	set := NewSet(Key{}, []*Credential{credentialOf(t, "github", realGitHub)})
	place := variable(t, set, "ci", "GH_TOKEN")
	if a := set.Apply(&Request{Sandbox: "ci", Host: "api.github.com", Fields: fieldsOf([]string{"Authorization: token " + place})}); a.Refused != "" || a.Added != nil || a.Fields[0].Value != "token "+place || a.Note == "" {
		t.Errorf("%+v", a)
	}
	if a := set.Apply(&Request{Sandbox: "ci", Host: "api.github.com", Fields: fieldsOf([]string{"Authorization: token foreign"})}); a.Refused == "" {
		t.Errorf("%+v", a)
	}
}

func TestForeignCredentialsPassWhereTheyMay(t *testing.T) {
	c := credentialOf(t, "npm", "npm_REALREALREAL")
	c.ForeignPaths = []func(string) bool{func(path string) bool { return path == "/-/whoami" }}
	set := NewSet(Key{}, []*Credential{c})
	ask := func(path string, fields ...string) Answer {
		r := &Request{Sandbox: "ci", Rule: "npm", Host: "registry.npmjs.org", Fields: fieldsOf(fields)}
		r.Target.Path = path
		return set.Apply(r)
	}
	if a := ask("/-/whoami", "Authorization: Bearer own"); a.Refused != "" || a.Kind != "foreign" || a.Fields[0].Value != "Bearer own" {
		t.Errorf("%+v", a)
	}
	if a := ask("/left-pad", "Authorization: Bearer own"); a.Refused == "" {
		t.Errorf("%+v", a)
	}
	if a := ask("/-/whoami", "Authorization: Bearer own", "Cookie: a=b"); a.Refused == "" {
		t.Errorf("two pass: %+v", a)
	}
}

// TestAPlaceholderHasTheShapeOfTheSecret and is another one for each sandbox, key and credential.
func TestAPlaceholderHasTheShapeOfTheSecret(t *testing.T) {
	c := credentialOf(t, "github", "github_pat_REALREALREAL")
	set, next := NewSet(Key{1}, []*Credential{c}), NewSet(Key{2}, []*Credential{c})
	one := variable(t, set, "a", "GH_TOKEN")
	if !strings.HasPrefix(one, "github_pat_EGRESSD") || strings.Contains(one, "REAL") || len(one) != len("github_pat_EGRESSD")+29 {
		t.Errorf("%q", one)
	}
	if one != variable(t, set, "a", "GITHUB_TOKEN") || one == variable(t, set, "b", "GH_TOKEN") || one == variable(t, next, "a", "GH_TOKEN") {
		t.Errorf("%q is not that of one sandbox and key", one)
	}
	unknown := credentialOf(t, "github", "REALREALREAL-of-no-known-shape")
	if got := variable(t, NewSet(Key{}, []*Credential{unknown}), "a", "GH_TOKEN"); !strings.HasPrefix(got, "github_pat_EGRESSD") {
		t.Errorf("%q", got)
	}
}

// TestWhatAServerOfLargeFilesHasSigned passes as it is, if the rule is for that, and nothing beside it does.
func TestWhatAServerOfLargeFilesHasSigned(t *testing.T) {
	set := NewSet(Key{1}, []*Credential{awsCredential(t, wholeLimits), credentialOf(t, "gemini", realGemini)})
	const google = "generativelanguage.googleapis.com"
	const signed = "/alambic/03df?X-Amz-Credential=AKIAX%2F20170131%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=79"
	const given = "Authorization: AWS4-HMAC-SHA256 Credential=AKIAX/20170131/us-east-1/s3/aws4_request,SignedHeaders=host,Signature=79"
	for _, row := range []struct {
		says, host, target string
		named              bool
		given, sent        []string
		want               string // the kind, or ""
	}{
		{"a signed URL", "github-cloud.s3.amazonaws.com", signed, true, nil, nil, "foreign"},
		{"a URL that is signed as earlier", "github-cloud.s3.amazonaws.com", "/a?AWSAccessKeyId=AKIAX&Signature=x", true, nil, nil, "foreign"},
		{"fields that the answer has", "github-cloud.s3.amazonaws.com", "/alambic/03df", true, []string{given}, []string{given}, "foreign"},
		{"a URL of Google's", google, "/a?X-Goog-Signature=00", true, nil, nil, "foreign"},
		{"not named", "github-cloud.s3.amazonaws.com", signed, false, nil, nil, ""},
		{"not named, with the fields", "github-cloud.s3.amazonaws.com", "/alambic/03df", false, []string{given}, []string{given}, ""},
		{"another field", "github-cloud.s3.amazonaws.com", "/alambic/03df", true, []string{given}, []string{strings.Replace(given, "79", "80", 1)}, ""},
		{"a field beside the URL", "github-cloud.s3.amazonaws.com", signed, true, nil, []string{"X-Amz-Security-Token: foreign"}, ""},
		{"nothing signed", google, "/a", true, nil, nil, "gemini"},
	} {
		r := &Request{Sandbox: "ci", Rule: "lfs", Host: row.host, Authority: row.host, Method: "PUT", Fields: fieldsOf(row.sent), Given: fieldsOf(row.given), Named: row.named}
		r.Target.Path, r.Target.Query, r.Target.HasQuery = strings.Cut(row.target, "?")
		a := set.Apply(r)
		if a.Kind != row.want || (a.Refused == "") != (row.want != "") || (a.Added != nil) != (row.want == "gemini") {
			t.Errorf("%s: %+v", row.says, a)
		}
		if row.want == "foreign" && (a.Target != r.Target || !slices.Equal(a.Fields, r.Fields)) {
			t.Errorf("%s: it goes up as %v %v", row.says, a.Target, a.Fields)
		}
	}
}
