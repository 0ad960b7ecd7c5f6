package bundle

import (
	"bytes"
	"encoding/json"
	"github.com/egressd/egressd/rego"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/egressd/egressd/policy"
)

const anyRule = "package egress\n\nallow contains {\"rule\": \"r\"} if input.destination.port == 443\n"

func TestBundleManifests(t *testing.T) {
	large := `{"revision":"` + strings.Repeat("a", maxManifestBytes) + `"}`
	for text, want := range map[string]string{
		`{}`:                               "",
		`{"revision":"7","roots":null}`:    "",
		`{"roots":["egress"]}`:             "",
		`{"roots":["/egress/"]}`:           "",
		`{"roots":["egress","acme/a"]}`:    "",
		`{"rego_version":1}`:               "",
		`{"file_rego_versions":{"*":1}}`:   "",
		`{"metadata":{"x":[1]},"wasm":[]}`: "",

		`{"rego_version":0}`:                        "egressd reads version 1",
		`{"rego_version":2}`:                        "egressd reads version 1",
		`{"rego_version":"1"}`:                      "cannot unmarshal",
		`{"file_rego_versions":{"/egress.rego":0}}`: `"/egress.rego" is written in version 0`,
		`{"wasm":[{"module":"x"}]}`:                 "compiled policies",
		`{"roots":[]}`:                              "not below a root",
		`{"roots":["acme"]}`:                        "not below a root",
		`{"roots":["egres"]}`:                       "not below a root",
		`{"roots":["egress/allow"]}`:                "not below a root",
		`{"roots":["egress","egress/a"]}`:           "lies in another one",
		`{"roots":["egress","egress"]}`:             "lies in another one",
		`{"roots":["","egress"]}`:                   "lies in another one",
		`{"roots":"egress"}`:                        "cannot unmarshal",
		`{"Roots":[""],"roots":["egress"]}`:         `write "roots"`,
		`{"roots":["acme"],"roots":["egress"]}`:     "twice",
		`{"rooots":["egress"]}`:                     "does not know",
		`{"roots":["egress"]} {}`:                   "not JSON",
		"roots: [egress]":                           "not JSON",
		`null`:                                      "one object",
		`[]`:                                        "one object",
		``:                                          "not JSON",
		large:                                       "larger than 1 MiB",
	} {
		_, err := Read(tarball(t, tarFile(".manifest", text), tarFile("egress.rego", anyRule)), nil, signingTime)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: error %v, want %q", text, err, want)
		}
	}
}

// TestBundleDataMeansWhatItMeansInOPA reads data in folders, as bundles have it.
func TestBundleDataMeansWhatItMeansInOPA(t *testing.T) {
	for _, c := range []struct {
		what  string
		files map[string]string
		want  string // the data, or the error
	}{
		{"at the root", map[string]string{"data.json": `{"a": {"b": 1}}`}, `{"a":{"b":1}}`},
		{"in a folder", map[string]string{"acme/hosts/data.json": `{"good": ["a.test"]}`}, `{"acme":{"hosts":{"good":["a.test"]}}}`},
		{"a list in a folder", map[string]string{"acme/hosts/data.json": `["a.test"]`}, `{"acme":{"hosts":["a.test"]}}`},
		{"YAML in a folder", map[string]string{"acme/data.yaml": "good:\n- a.test\n"}, `{"acme":{"good":["a.test"]}}`},
		{"together", map[string]string{"data.json": `{"acme": {"a": 1}}`, "acme/data.yml": "b: 2", "acme/c/data.json": `3`}, `{"acme":{"a":1,"b":2,"c":3}}`},
		{"a large number", map[string]string{"data.json": `{"n": 123456789012345678901234567890.5}`}, `{"n":123456789012345678901234567890.5}`},
		{"letters", map[string]string{"data.json": `{"n": "\ud83d\ude00 <\u2028>"}`}, `{"n":"😀 \u003c\u2028\u003e"}`},
		{"an empty object beside", map[string]string{"data.json": `{}`, "a/data.json": `{}`}, `{"a":{}}`},

		{"the same place twice", map[string]string{"data.json": `{"a": 1}`, "a/data.json": `2`}, "data.a is in another file too"},
		{"the same place in JSON and YAML", map[string]string{"a/data.json": `{"b": 1}`, "a/data.yaml": `b: 1`}, "data.a.b is in another file too"},
		{"a list at the root", map[string]string{"data.json": `[1]`}, "does not hold one object"},
		{"nothing", map[string]string{"data.yaml": ``}, "it holds nothing"},
		{"null", map[string]string{"a/data.json": `null`}, "it holds nothing"},
		{"YAML in data.json", map[string]string{"data.json": `a: 1`}, "data.json is not JSON"},
		{"two documents", map[string]string{"data.yaml": "a: 1\n---\nb: 2"}, "more than one document"},
		{"a key twice", map[string]string{"data.json": `{"a": 1, "a": 2}`}, "twice"},
		{"a key twice in YAML", map[string]string{"data.yaml": "a: 1\na: 2"}, "twice"},
	} {
		entries := []tarEntry{tarFile("/egress.rego", anyRule)}
		for name, text := range c.files {
			entries = append(entries, tarFile("/"+name, text))
		}
		packed := tarball(t, entries...)
		b, err := Read(packed, nil, signingTime)
		switch {
		case err != nil:
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want %q", c.what, err, c.want)
			}
		case len(b.Sources) != 2 || string(b.Sources[1].Text) != c.want:
			t.Errorf("%s: %s, want %q", c.what, b.Sources, c.want)
		default:
			sameInOPA(t, packed, b)
		}
	}
}

// sameInOPA reports whether OPA reads a bundle at all, and has it read the same.
func sameInOPA(t *testing.T, packed []byte, b *Bundle) bool {
	t.Helper()
	theirs, err := bundle.NewCustomReader(bundle.NewTarballLoaderWithBaseURL(bytes.NewReader(packed), "")).WithSkipBundleVerification(true).Read()
	if err != nil {
		return false
	}
	data, modules := map[string]any{}, 0
	for _, s := range b.Sources {
		if s.Name == dataName {
			if err := util.UnmarshalJSON(s.Text, &data); err != nil {
				t.Fatal(err)
			}
			continue
		}
		modules++
	}
	if diff := cmp.Diff(theirs.Data, data); diff != "" {
		t.Errorf("OPA reads other data: %s", diff)
	}
	if modules != len(theirs.Modules) || b.Revision != theirs.Manifest.Revision {
		t.Errorf("OPA reads %d modules and revision %q, egressd %d and %q", len(theirs.Modules), theirs.Manifest.Revision, modules, b.Revision)
	}
	return true
}

// TestBundleOfOPAIsRead has OPA write and sign a bundle.
func TestBundleOfOPAIsRead(t *testing.T) {
	private, public := testKey(t, "P-256")
	b := bundle.Bundle{
		Manifest: bundle.Manifest{Revision: "17", Roots: &[]string{"egress", "acme"}, Metadata: map[string]any{"team": "net"}},
		Data:     map[string]any{"acme": map[string]any{"hosts": []any{"a.test"}}},
		Modules:  []bundle.ModuleFile{{URL: "/rules/egress.rego", Path: "/rules/egress.rego", Raw: []byte(anyRule)}},
	}
	b.Manifest.SetRegoVersion(ast.RegoV1)
	if err := b.GenerateSignature(bundle.NewSigningConfig(string(private), "ES256", ""), "team", false); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := bundle.NewWriter(&packed).Write(b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(packed.Bytes(), &Key{PEM: public}, signingTime)
	want := &Bundle{
		Revision: "17", Roots: []string{"egress", "acme"}, KeyID: "team", Signed: true,
		Sources: []rego.Source{{Name: "rules/egress.rego", Text: []byte(anyRule)}, {Name: "data.json", Text: []byte(`{"acme":{"hosts":["a.test"]}}`)}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Fatalf("%v %s", err, diff)
	}
	if _, err := rego.Load(got.Sources, rego.Options{Layer: policy.Organisation}); err != nil {
		t.Errorf("it does not load: %v", err)
	}
}

// TestBundleMeansWhatItsSourcesMean builds one, and asks both.
func TestBundleMeansWhatItsSourcesMean(t *testing.T) {
	b, err := Read(mustBuild(t, BuildOptions{}), nil, signingTime)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]policy.Verdict{"a.example": policy.Allow, "evil.example": policy.Abstain} {
		for what, sources := range map[string][]rego.Source{"files": bundled, "bundle": b.Sources} {
			e, err := rego.Load(sources, rego.Options{Layer: policy.Organisation})
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			d, err := e.Evaluate(t.Context(), &policy.Request{Destination: policy.Destination{Host: host, Port: 443}})
			if err != nil || d.Verdict != want {
				t.Errorf("%s: %s: %v, %v", what, host, d.Verdict, err)
			}
		}
	}
}

// TestBundleTestsDecideNothing has a file of tests say what it likes.
func TestBundleTestsDecideNothing(t *testing.T) {
	b, err := Read(tarball(t, tarFile("egress.rego", anyRule), tarFile("open_test.rego", "package egress\n\nallow contains {\"rule\": \"open\"}\n")), nil, signingTime)
	if err != nil || len(b.Sources) != 2 || b.Sources[1].Decides() {
		t.Fatalf("%+v, %v", b, err)
	}
	e, err := rego.Load(b.Sources, rego.Options{Layer: policy.Organisation})
	if err != nil {
		t.Fatal(err)
	}
	d, err := e.Evaluate(t.Context(), &policy.Request{Destination: policy.Destination{Host: "a.example", Port: 22}})
	if err != nil || d.Verdict != policy.Abstain {
		t.Errorf("%v, %v", d, err)
	}
}

func TestBundleModulesAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "sub/egress.rego:1:1: ",
		"package egress\nallow contains if":   "sub/egress.rego:2:",
		"package egress\nallow[x] { x := 1 }": "sub/egress.rego:2:", // version 0
	} {
		_, err := Read(tarball(t, tarFile("sub/egress.rego", text)), nil, signingTime)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDataKeysWithASlashAreNoPaths(t *testing.T) {
	var data map[string]any
	if err := json.Unmarshal([]byte(`{"acme/hosts": {"a": 1}}`), &data); err != nil {
		t.Fatal(err)
	}
	if err := dataWithin([]string{"acme/hosts"}, nil, data); err == nil {
		t.Error("the key acme/hosts is taken for the path")
	}
	if err := dataWithin([]string{"acme"}, nil, map[string]any{"acme": data}); err != nil {
		t.Error(err)
	}
}
