package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/internal/testfiles"
)

func TestTheOrganisationsFileIsAbove(t *testing.T) {
	files := map[string]string{
		"egressd.yaml":            "version: 1\ndefault: allow\nallow: [in.test, out.test, rego.test]\nrego: [user.rego]\n",
		"user.rego":               "package egress\nallow contains {\"rule\": \"mine\"} if input.destination.host == \"mine.test\"\n",
		"above/organisation.yaml": "version: 1\nallow: [org.test]\ndeny: [never.test]\nceiling: [in.test, rego.test]\nrego: [rego]\ntests: [deny rego.test]\n",
		"above/rego/org.rego":     "package egress\ndeny contains {\"rule\": \"no-rego\"} if input.destination.host == \"rego.test\"\n",
	}
	_, p, err := configtest.Layered(t, files)
	if err != nil {
		t.Fatal(err)
	}
	configtest.Expect(t, p, []configtest.Row{
		{"default", "org.test", "allow by allow[0] (organisation)"},
		{"default", "never.test", "deny by deny[0] (organisation)"},
		{"default", "rego.test", "deny by no-rego (organisation)"},
		{"default", "in.test", "allow by allow[0] (user)"},
		{"default", "out.test", "deny by ceiling (organisation)"},
		{"default", "mine.test", "deny by ceiling (organisation)"},
		{"default", "other.test", "deny by ceiling (organisation)"},
	})
	delete(files, "above/organisation.yaml")
	if _, p, err = configtest.Layered(t, files); err != nil {
		t.Fatal(err)
	}
	configtest.Expect(t, p, []configtest.Row{{"default", "mine.test", "allow by mine (organisation)"}, {"default", "other.test", "allow by default (user)"}})
}

func TestACeilingInRegoHoldsTheFileBesideIt(t *testing.T) {
	_, p, err := configtest.Layered(t, map[string]string{
		"egressd.yaml": "version: 1\nallow: [in.test, out.test, reads.test]\nrego: [org.rego]\n",
		"org.rego": `package egress
allow contains {"rule": "own"} if input.destination.host == "own.test"
ceiling contains {"rule": "some"} if input.destination.host in {"in.test"}
ceiling contains {"rule": "reads"} if {
	input.destination.host == "reads.test"
	input.http.method == "GET"
}
`,
	})
	if err != nil {
		t.Fatal(err)
	}
	configtest.Expect(t, p, []configtest.Row{
		{"default", "in.test", "allow by allow[0] (user)"},
		{"default", "own.test", "allow by own (organisation)"},
		{"default", "out.test", "deny by ceiling (organisation)"},
		{"default", "https://reads.test/", "allow by allow[2] (user)"},
		{"default", "POST https://reads.test/", "deny by ceiling (organisation)"},
	})
}

func TestACeilingOfTheUsersRegoIsTheUsers(t *testing.T) {
	_, p, err := configtest.Layered(t, map[string]string{
		"egressd.yaml":            "version: 1\nallow: [a.test, b.test]\nrego: [user.rego]\n",
		"user.rego":               "package egress\nceiling contains {\"rule\": \"a\"} if input.destination.host == \"a.test\"\n",
		"above/organisation.yaml": "version: 1\nallow: [org.test]\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	configtest.Expect(t, p, []configtest.Row{
		{"default", "a.test", "allow by allow[0] (user)"}, {"default", "b.test", "deny by ceiling (user)"}, {"default", "org.test", "allow by allow[0] (organisation)"},
	})
}

func TestAnOrganisationsFileThatIsWrongStopsEverything(t *testing.T) {
	for name, row := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"no YAML":                    {func(p string) error { return os.WriteFile(p, []byte("version: 1\nallow: ["), 0o600) }, "organisation.yaml:"},
		"half a file":                {func(p string) error { return os.WriteFile(p, nil, 0o600) }, "the file is empty"},
		"a key of egressd.yaml":      {func(p string) error { return os.WriteFile(p, []byte("version: 1\ndefault: allow"), 0o600) }, "default belongs into egressd.yaml"},
		"a folder":                   {func(p string) error { return os.Mkdir(p, 0o700) }, "is a directory"},
		"a link that leads nowhere":  {func(p string) error { return os.Symlink("nowhere", p) }, "no such file"},
		"rego that is not there":     {func(p string) error { return os.WriteFile(p, []byte("version: 1\nrego: [gone]"), 0o600) }, "gone: no such file"},
		"a test that is red":         {func(p string) error { return os.WriteFile(p, []byte("version: 1\ntests: [allow a.test]"), 0o600) }, "organisation.yaml:2:9: the test"},
		"rego for a sandbox in it":   {func(p string) error { return writeBoth(p, "package egress.web\ndeny contains {\"rule\": \"d\"}\n") }, "nobody asks deny of package egress.web"},
		"rego that is broken beside": {func(p string) error { return writeBoth(p, "package egress\nallow contains {\n") }, "x.rego:"},
	} {
		dir := testfiles.FilesIn(t, map[string]string{"egressd.yaml": "version: 1\nallow: [a.test]\nsandboxes: [{name: web, token_file: t}]"})
		above := filepath.Join(dir, "organisation.yaml")
		if err := row.spoil(above); err != nil {
			t.Fatal(err)
		}
		c, err := config.LoadUnder(filepath.Join(dir, config.FileName), above)
		if err == nil {
			_, err = c.Compile()
		}
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", name, err, row.want)
		}
	}
}

func writeBoth(path, module string) error {
	if err := os.WriteFile(path, []byte("version: 1\nrego: [x.rego]"), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(filepath.Dir(path), "x.rego"), []byte(module), 0o600)
}

func TestRegoForOneSandbox(t *testing.T) {
	_, p, err := configtest.Layered(t, map[string]string{
		"egressd.yaml": `version: 1
allow: [a.test, b.test, c.test, d.test]
rego: [top.rego, both.rego]
sandboxes:
  - {name: web, token_file: t, rego: [web.rego]}
  - {name: my-ci, token_file: u}
  - {name: free, token_file: v}
`,
		"top.rego":  "package egress\ndeny contains {\"rule\": \"org\"} if input.destination.host == \"d.test\"\n",
		"both.rego": "package egress[\"my-ci\"]\ndeny contains {\"rule\": \"no-posts\"} if input.http.method == \"POST\"\n",
		"web.rego": `package egress.web
allow contains {"rule": "two"} if input.destination.host in {"a.test", "b.test", "evil.test", "d.test"}
deny contains {"rule": "not-b"} if input.destination.host == "b.test"
`,
	})
	if err != nil {
		t.Fatal(err)
	}
	configtest.Expect(t, p, []configtest.Row{
		{"web", "a.test", "allow by allow[0] (user)"},
		{"web", "b.test", "deny by not-b (sandbox)"},
		{"web", "c.test", "deny by rego (sandbox)"},
		{"web", "evil.test", "deny by default (builtin)"},
		{"web", "d.test", "deny by org (organisation)"},
		{"my-ci", "https://b.test/", "allow by allow[1] (user)"},
		{"my-ci", "POST https://b.test/", "deny by no-posts (sandbox)"},
		{"free", "POST https://b.test/", "allow by allow[1] (user)"},
		{"free", "c.test", "allow by allow[2] (user)"},
		{"", "c.test", "allow by allow[2] (user)"},
	})
}

func TestRegoOfASandboxThatIsWrong(t *testing.T) {
	for module, want := range map[string]string{
		"package egress\ndeny contains {\"rule\": \"d\"}\n":        "nobody asks deny of package egress; write it as deny in package egress.web",
		"package egress.ci\ndeny contains {\"rule\": \"d\"}\n":     "nobody asks deny of package egress.ci",
		"package egress.web\nceiling contains {\"rule\": \"d\"}\n": "nobody asks ceiling of package egress.web",
		"package egress.web\nx := 1\n":                             "sandboxes[0].rego[0] of ",
	} {
		_, _, err := configtest.Layered(t, map[string]string{
			"egressd.yaml": "version: 1\nsandboxes: [{name: web, token_file: t, rego: [web.rego]}, {name: ci, token_file: u}]\n", "web.rego": module,
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", module, err, want)
		}
	}
}

func TestInspectionFollowsFromEveryLayer(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"a ceiling":           {"egressd.yaml": "version: 1\nallow: [a.test]\nceiling: [{host: a.test, methods: [GET]}]"},
		"the organisation":    {"egressd.yaml": "version: 1", "above/organisation.yaml": "version: 1\ndeny: [{host: a.test, paths: [/x]}]"},
		"a ceiling in Rego":   {"egressd.yaml": "version: 1\nrego: [x.rego]", "x.rego": "package egress\nceiling contains {\"rule\": \"r\"} if input.http.method == \"GET\"\n"},
		"Rego for a sandbox":  {"egressd.yaml": "version: 1\nsandboxes: [{name: w, token_file: t, rego: [x.rego]}]", "x.rego": "package egress.w\ndeny contains {\"rule\": \"r\"} if input.http.method == \"GET\"\n"},
		"a package for one":   {"egressd.yaml": "version: 1\nrego: [x.rego]\nsandboxes: [{name: w, token_file: t}]", "x.rego": "package egress.w\ndeny contains {\"rule\": \"r\"} if input.http.method == \"GET\"\n"},
		"nothing of all that": {"egressd.yaml": "version: 1\nallow: [a.test]\nceiling: [a.test]", "above/organisation.yaml": "version: 1\nallow: [b.test]"},
	} {
		c, _, err := configtest.Layered(t, files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Inspects() != (name != "nothing of all that") {
			t.Errorf("%s: inspects is %t", name, c.Inspects())
		}
	}
}

// TestSinksOfTheOrganisation has them beside the user's own, whose names must differ.
func TestSinksOfTheOrganisation(t *testing.T) {
	files := map[string]string{
		"egressd.yaml":            "version: 1\nallow: [in.test]\naudit: {sinks: [{name: mine, type: unix, path: mine.sock}]}\n",
		"above/organisation.yaml": "version: 1\nallow: [org.test]\naudit: {sinks: [{name: store, type: otlp, url: \"http://127.0.0.1:4318/v1/logs\", headers_file: otlp.headers}]}\n",
	}
	c, _, err := configtest.Layered(t, files)
	if err != nil {
		t.Fatal(err)
	}
	sinks := c.File.Audit.Sinks
	if len(sinks) != 2 || sinks[0].Name != "store" || sinks[1].Name != "mine" {
		t.Fatalf("%+v", sinks)
	}
	if want := filepath.Join(filepath.Dir(c.Organisation.Path), "otlp.headers"); sinks[0].HeadersFile != want {
		t.Errorf("the headers are in %s, not %s", sinks[0].HeadersFile, want)
	}
	if len(c.Organisation.File.Audit.Sinks) != 1 {
		t.Errorf("the organisation has %d sinks", len(c.Organisation.File.Audit.Sinks))
	}
	files["egressd.yaml"] = strings.Replace(files["egressd.yaml"], "mine,", "store,", 1)
	if _, _, err := configtest.Layered(t, files); err == nil {
		t.Error("a user's sink takes the name of the organisation's")
	}
}
