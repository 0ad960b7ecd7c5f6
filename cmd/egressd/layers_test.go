package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// filesIn writes files into a new folder.
func filesIn(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// layered reads and compiles the egressd.yaml of a folder, under its
// organisation.yaml where it has one.
func layered(t *testing.T, files map[string]string) (*config, *policy.Policy, error) {
	t.Helper()
	dir := filesIn(t, files)
	c, err := loadConfigUnder(filepath.Join(dir, configName), filepath.Join(dir, "above", "organisation.yaml"))
	if err != nil {
		return nil, nil, err
	}
	p, err := c.compile()
	return c, p, err
}

// decided says who decides about a destination, as "allow by ID (LAYER)".
func decided(t *testing.T, p *policy.Policy, sandbox, subject string) string {
	t.Helper()
	r, err := policy.ParseCheck(subject)
	if err != nil {
		t.Fatal(err)
	}
	r.Sandbox.Name = sandbox
	d, _ := p.Judge(t.Context(), r)
	return d.Verdict.Action() + " by " + cli.RuleText(d.Rule, string(d.Layer))
}

// An expectation is who decides about a destination for a sandbox.
type expectation struct{ sandbox, subject, want string }

func expect(t *testing.T, p *policy.Policy, rows []expectation) {
	t.Helper()
	for _, row := range rows {
		if got := decided(t, p, row.sandbox, row.subject); got != row.want {
			t.Errorf("%s for %s: %s, want %s", row.subject, row.sandbox, got, row.want)
		}
	}
}

func TestTheOrganisationsFileIsAbove(t *testing.T) {
	files := map[string]string{
		"egressd.yaml":            "version: 1\ndefault: allow\nallow: [in.test, out.test, rego.test]\nrego: [user.rego]\n",
		"user.rego":               "package egress\nallow contains {\"rule\": \"mine\"} if input.destination.host == \"mine.test\"\n",
		"above/organisation.yaml": "version: 1\nallow: [org.test]\ndeny: [never.test]\nceiling: [in.test, rego.test]\nrego: [rego]\ntests: [deny rego.test]\n",
		"above/rego/org.rego":     "package egress\ndeny contains {\"rule\": \"no-rego\"} if input.destination.host == \"rego.test\"\n",
	}
	_, p, err := layered(t, files)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, p, []expectation{
		{"default", "org.test", "allow by allow[0] (organisation)"},
		{"default", "never.test", "deny by deny[0] (organisation)"},
		{"default", "rego.test", "deny by no-rego (organisation)"},
		{"default", "in.test", "allow by allow[0] (user)"},
		{"default", "out.test", "deny by ceiling (organisation)"},
		{"default", "mine.test", "deny by ceiling (organisation)"},
		{"default", "other.test", "deny by ceiling (organisation)"},
	})
	delete(files, "above/organisation.yaml")
	if _, p, err = layered(t, files); err != nil {
		t.Fatal(err)
	}
	expect(t, p, []expectation{{"default", "mine.test", "allow by mine (organisation)"}, {"default", "other.test", "allow by default (user)"}})
}

func TestACeilingInRegoHoldsTheFileBesideIt(t *testing.T) {
	_, p, err := layered(t, map[string]string{
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
	expect(t, p, []expectation{
		{"default", "in.test", "allow by allow[0] (user)"},
		{"default", "own.test", "allow by own (organisation)"},
		{"default", "out.test", "deny by ceiling (organisation)"},
		{"default", "https://reads.test/", "allow by allow[2] (user)"},
		{"default", "POST https://reads.test/", "deny by ceiling (organisation)"},
	})
}

func TestACeilingOfTheUsersRegoIsTheUsers(t *testing.T) {
	_, p, err := layered(t, map[string]string{
		"egressd.yaml":            "version: 1\nallow: [a.test, b.test]\nrego: [user.rego]\n",
		"user.rego":               "package egress\nceiling contains {\"rule\": \"a\"} if input.destination.host == \"a.test\"\n",
		"above/organisation.yaml": "version: 1\nallow: [org.test]\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, p, []expectation{
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
		dir := filesIn(t, map[string]string{"egressd.yaml": "version: 1\nallow: [a.test]\nsandboxes: [{name: web, token_file: t}]"})
		above := filepath.Join(dir, "organisation.yaml")
		if err := row.spoil(above); err != nil {
			t.Fatal(err)
		}
		c, err := loadConfigUnder(filepath.Join(dir, configName), above)
		if err == nil {
			_, err = c.compile()
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
	_, p, err := layered(t, map[string]string{
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
	expect(t, p, []expectation{
		{"web", "a.test", "allow by allow[0] (user)"},
		{"web", "b.test", "deny by not-b (sandbox)"},
		{"web", "c.test", "deny by default (sandbox)"},
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
		_, _, err := layered(t, map[string]string{
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
		c, _, err := layered(t, files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.inspects() != (name != "nothing of all that") {
			t.Errorf("%s: inspects is %t", name, c.inspects())
		}
	}
}

func TestAnOrganisationsFileIsReadAgain(t *testing.T) {
	w := serveRego(t, "allow: [\"a.test:*\"]\n", nil)
	port := upstream(t)
	if status, _ := w.connect(t, "a.test:"+port); status != 200 {
		t.Fatalf("without an organisation: %d", status)
	}
	before := w.gate.Digest()
	w.write(t, "above/organisation.yaml", "version: 1\nceiling: []\n")
	w.hear(t, "policy reloaded")
	if status, text := w.connect(t, "a.test:"+port); status != 403 || !strings.Contains(text, `"rule":"ceiling"`) || !strings.Contains(text, `"layer":"organisation"`) {
		t.Errorf("%d %s", status, text)
	}
	if r := w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindOpen }); r.Decision.Layer != "organisation" || r.Decision.Rule != "ceiling" || r.Decision.Class != "rule-deny" {
		t.Errorf("the record is %+v", r.Decision)
	}
	digest := w.gate.Digest()
	w.write(t, "above/organisation.yaml", "version: 1\nceiling: [\n")
	w.hear(t, "policy not reloaded")
	w.hear(t, "organisation.yaml") // what to correct
	if w.gate.Digest() != digest || digest == before {
		t.Error("the digest does not follow the organisation's file")
	}
	w.write(t, "above/organisation.yaml", "version: 1\nceiling: [\"a.test:*\", \"127.0.0.1:*\"]\n")
	w.hear(t, "policy reloaded")
	if status, text := w.connect(t, "a.test:"+port); status != 200 {
		t.Errorf("inside the ceiling: %d %s", status, text)
	}
	if err := os.Remove(filepath.Join(w.dir, "above", "organisation.yaml")); err != nil {
		t.Fatal(err)
	}
	w.hear(t, "policy reloaded")
	if w.gate.Digest() != before {
		t.Error("a file that is gone still counts")
	}
}

// TestABundleOfTheOrganisationIsRenewed keeps what stands beside it.
func TestABundleOfTheOrganisationIsRenewed(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveRego(t, "allow: [\"never.test:*\", \"user.test:*\", \"out.test:*\"]\n", map[string]string{
		"above/key.pem":           string(key.public),
		"above/organisation.yaml": "version: 1\ndeny: [\"never.test:*\"]\nceiling: [\"user.test:*\", \"127.0.0.1:*\"]\n" + fetchedLine(s),
	})
	port := upstream(t)
	for _, revision := range []string{"one", "two"} {
		if revision == "two" {
			s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
			w.look(t)
		}
		for host, want := range map[string]int{revision + ".test": 200, "user.test": 200, "never.test": 403, "out.test": 403} {
			if status, text := w.connect(t, host+":"+port); status != want {
				t.Errorf("with %s, %s: %d %s", revision, host, status, text)
			}
		}
		r := w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindOpen && r.Dst.Host == revision+".test" })
		if r.Decision.Layer != "organisation" || r.Decision.Rule != revision {
			t.Errorf("the record says %+v", r.Decision)
		}
	}
}

func TestExplainAndLsKnowTheLayers(t *testing.T) {
	c, p, err := layered(t, map[string]string{
		"egressd.yaml":            "version: 1\nallow: [a.test]\nrego: [user.rego]\nsandboxes: [{name: web, token_file: t}]\n",
		"user.rego":               "package egress\nallow contains {\"rule\": \"mine\"} if input.destination.host == \"a.test\"\n",
		"above/organisation.yaml": "version: 1\n\n\ndeny: [never.test]\nrego: [org.rego]\n",
		"above/org.rego":          "package egress\nceiling contains {\"rule\": \"top\"} if input.destination.host == \"b.test\"\ndeny contains {\"rule\": \"d\"} if input.destination.port == 22\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	o := explainOptions{}
	e, err := o.explain(c, p, policy.Sandbox{Name: "web"}, "a.test", nil)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, v := range e.Opinions {
		said = append(said, v.Part+" of "+string(v.Layer)+" "+v.Verdict)
	}
	want := "baseline of builtin abstain, organisation file of organisation abstain, file of user allow, sandbox of sandbox abstain, " +
		"organisation rego[0] of organisation abstain, rego[0] of user allow, organisation rego[0] ceiling of organisation abstain"
	if got := strings.Join(said, ", "); got != want || e.Rule != "ceiling" {
		t.Errorf("rule %s: %s", e.Rule, got)
	}
	listed, err := listedRules(c)
	if err != nil {
		t.Fatal(err)
	}
	said = nil
	for _, r := range listed {
		said = append(said, r.Rule+" of "+string(r.Layer)+" "+r.Effect)
	}
	want = "baseline of builtin deny, allow[0] of user allow, deny[0] of organisation deny, d of organisation deny, mine of user allow, ceiling of organisation deny, default of builtin deny"
	if got := strings.Join(said, ", "); got != want {
		t.Errorf("listed are %s", got)
	}
}

const someProject = "version: 1\nallow: [\"tree.test:*\"]\ndeny: [\"shut.test:*\"]\n"

// serveProject starts a daemon whose sandbox app has a project in the folder tree.
func serveProject(t *testing.T) *regoWorld {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	socket := filepath.Join(t.TempDir(), "app.sock")
	w := serveRego(t, "allow: [\"shut.test:*\", \"open.test:*\"]\nceiling: [\"*.test:*\", \"127.0.0.1:*\"]\n"+
		"sandboxes: [{name: app, listen: \"unix:"+socket+"\", project: tree}]\n", map[string]string{"tree/.egressd/project.yaml": someProject})
	w.proxy = socket
	return w
}

// trust does what the command does.
func (w *regoWorld) trust(t *testing.T, flags ...string) {
	t.Helper()
	var stdout, stderr strings.Builder
	args := slices.Concat([]string{"trust", "--config", filepath.Join(w.dir, configName)}, flags, []string{filepath.Join(w.dir, "tree")})
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("%q: exit code %d\n%s%s", args, code, &stdout, &stderr)
	}
}

func (w *regoWorld) statuses(t *testing.T, port string, hosts ...string) (all []int) {
	t.Helper()
	for _, host := range hosts {
		status, _ := w.connect(t, host+":"+port)
		all = append(all, status)
	}
	return all
}

func TestAProjectCountsAsItWasTrusted(t *testing.T) {
	w := serveProject(t)
	port := upstream(t)
	hosts := []string{"tree.test", "shut.test", "open.test"}
	step := func(what, hears string, want ...int) {
		t.Helper()
		w.hear(t, hears)
		if got := w.statuses(t, port, hosts...); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	step("untrusted", "project.yaml of sandbox app is not trusted", 403, 200, 200)
	note := w.record(t, func(r *egress.Record) bool {
		return r.Kind == egress.KindPolicy && strings.Contains(r.Note, "not trusted")
	})
	if note.Note == "" {
		t.Error("the log does not say that the project is not trusted")
	}
	w.trust(t, "--yes")
	step("trusted", "policy reloaded", 200, 403, 200)
	w.write(t, "tree/.egressd/project.yaml", "version: 1\nallow: [\"*.test:*\"]\n")
	step("changed", "is not what was trusted", 403, 403, 200)
	if note := w.record(t, func(r *egress.Record) bool {
		return r.Kind == egress.KindPolicy && strings.Contains(r.Note, "not what was trusted")
	}); note.Note == "" {
		t.Error("the log does not say that the project changed")
	}
	w.write(t, "tree/.egressd/project.yaml", someProject)
	step("as it was", "policy reloaded", 200, 403, 200)
	if err := os.RemoveAll(filepath.Join(w.dir, "tree")); err != nil {
		t.Fatal(err)
	}
	step("gone", "cannot be read as it was trusted", 403, 403, 200)
	w.write(t, "tree/.egressd/project.yaml", someProject)
	step("there again", "policy reloaded", 200, 403, 200)
	w.trust(t, "--revoke")
	step("revoked", "is not trusted", 403, 200, 200)
}

// TestAHostileTreeDoesNotHoldTheDaemonUp puts what would block or be endless in the
// place of a project.
func TestAHostileTreeDoesNotHoldTheDaemonUp(t *testing.T) {
	w := serveProject(t)
	port := upstream(t)
	w.trust(t, "--yes")
	w.hear(t, "policy reloaded")
	path := filepath.Join(w.dir, "tree", ".egressd", "project.yaml")
	for name, put := range map[string]func() error{
		"a FIFO":   func() error { return syscall.Mkfifo(path, 0o600) },
		"a device": func() error { return os.Symlink("/dev/zero", path) },
		"a folder": func() error { return os.Mkdir(path, 0o700) },
		"an endless file": func() error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40) // takes no room on disk
		},
		"half a file": func() error { return os.WriteFile(path, []byte(someProject[:20]), 0o600) },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		w.until(t, port, 403, 403, 200)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		w.write(t, "tree/.egressd/project.yaml", someProject)
		w.until(t, port, 200, 403, 200)
		if t.Failed() {
			t.Fatalf("with %s", name)
		}
	}
}

// until waits for a policy that answers the three hosts of a project so.
func (w *regoWorld) until(t *testing.T, port string, want ...int) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		got := w.statuses(t, port, "tree.test", "shut.test", "open.test")
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-w.said: // one more line may mean another policy
		case <-late:
			t.Fatalf("the hosts are answered %v, want %v", got, want)
		}
	}
}
