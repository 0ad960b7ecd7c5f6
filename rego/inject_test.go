package rego_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// injections are those of a file with two credentials.
func injections(t *testing.T) []policy.Injection {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(`version: 1
allow:
  - {host: api.test, id: api-key, inject: {header: X-Key, env: KEY}}
  - {host: other.test, id: other-key, inject: {header: X-Key, env: OTHER}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Injections()
}

func loadInjecting(t *testing.T, known []policy.Injection, text string) (*rego.Evaluator, error) {
	t.Helper()
	return rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n" + text)}}, rego.Options{Injections: known, Deadline: patient})
}

func TestACredentialHasToBeInTheFile(t *testing.T) {
	known := injections(t)
	for _, row := range []struct {
		name, text, want string
		known            []policy.Injection
	}{
		{"a misspelt id", `allow contains {"rule": "r", "inject": "api-kye"}`, `egress.rego:2:40: no rule of the policy file with the id "api-kye" has inject; did you mean "api-key"?`, known},
		{"another id", `allow contains {"rule": "r", "inject": "x"}`, `one that has is "api-key"`, known},
		{"in a branch of a helper", "pick(h) := {\"rule\": \"r\", \"inject\": \"x\"} if h == \"api.test\"\nallow contains pick(input.destination.host)", "egress.rego:2:36", known},
		{"a file without any", `allow contains {"rule": "r", "inject": "api-key"}`, "none has", []policy.Injection{}},
		{"one that is there", `allow contains {"rule": "r", "inject": "api-key"}`, "", known},
		{"one that is computed", `allow contains {"rule": "r", "inject": concat("-", ["api", "kye"])}`, "", known},
		{"a file that is not known", `allow contains {"rule": "r", "inject": "x"}`, "", nil},
	} {
		_, err := loadInjecting(t, row.known, row.text)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
}

func TestACredentialGoesToItsHostAlone(t *testing.T) {
	const byHost = `ids := {"api.test": "api-key", "wrong.test": "api-key", "none.test": "api-kye"}
allow contains {"rule": "r", "inject": ids[input.destination.host]}
allow contains {"rule": "late", "inject": "api-key"} if { input.destination.host == "late.test"; input.http.path == "/x" }
`
	e, err := loadInjecting(t, injections(t), byHost)
	if err != nil {
		t.Fatal(err)
	}
	if d := evaluate(t, e, sends(t, "api.test:443", "GET", "/")); d.Verdict != policy.Allow || d.Inject != "api-key" {
		t.Errorf("%+v", d)
	}
	if d := evaluate(t, e, to(t, "api.test:443")); d.Verdict != policy.Inspect {
		t.Errorf("%+v", d)
	}
	for host, want := range map[string]string{"wrong.test:443": "is for api.test", "api.test:8443": "is for api.test", "none.test:443": "no rule of the policy file"} {
		if err := fails(t, e, sends(t, host, "GET", "/")); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", host, err)
		}
	}
	fails(t, e, sends(t, "late.test:443", "GET", "/x"))
}
