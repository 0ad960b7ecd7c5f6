package file

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"pgregory.net/rapid"
)

// organisation reads an organisation.yaml.
func organisation(t testing.TB, lines string) *File {
	t.Helper()
	f, err := ParseOrganisation("organisation.yaml", []byte("version: 1\n"+lines))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// project reads a project.yaml of the sandbox "default".
func project(t testing.TB, lines string) map[string]WorkingTree {
	t.Helper()
	f, err := ParseProject("project.yaml", []byte("version: 1\n"+lines))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]WorkingTree{"default": {File: f, Opens: true}}
}

// A judgement is a request, and what is to be said about it.
type judgement struct{ ask, want string }

func judge(t *testing.T, p *policy.Policy, rows []judgement) {
	t.Helper()
	for _, row := range rows {
		r := asking(t, row.ask)
		r.Sandbox.Name = "default"
		if got := saying(p.Decide(context.Background(), r)); got != row.want {
			t.Errorf("%s is %q, want %q", row.ask, got, row.want)
		}
	}
}

func TestACeilingHoldsTheLinesOfTheUser(t *testing.T) {
	p := compiled(t, `
allow: [in.test, out.test, "*.wide.test", some.test, {host: partly.test, methods: [GET, POST]}, {host: more.test, methods: [GET]}]
ask: [asked.test, asked-in.test]
presets: [npm]
ceiling: [in.test, opens-nothing.test, b.wide.test, asked-in.test, {host: some.test, methods: [GET]}, {host: partly.test, paths: [/a/**]}, more.test]
`, inspecting)
	judge(t, p, []judgement{
		{"in.test", "allow by allow[0]"},
		{"out.test", "deny rule-deny by ceiling"},
		{"in.test:8443", "deny rule-deny by ceiling"}, // a line under allow would not open it
		{"opens-nothing.test", "deny default-deny by default"},
		{"b.wide.test", "allow by allow[2]"},
		{"a.wide.test", "deny rule-deny by ceiling"},
		{"registry.npmjs.org", "deny rule-deny by ceiling"},
		{"some.test", "inspect by ceiling[4]"},
		{"https://some.test/", "allow by allow[3]"},
		{"POST https://some.test/", "deny rule-deny by ceiling"},
		{"partly.test", "inspect by allow[4]"},
		{"GET https://partly.test/a/b", "allow by allow[4]"},
		{"GET https://partly.test/b", "deny rule-deny by ceiling"},
		{"PUT https://partly.test/a/b", "deny method-denied by allow[4]"},
		{"POST https://more.test/", "deny method-denied by allow[5]"},
		{"asked.test", "deny rule-deny by ceiling"},
		{"asked-in.test", "ask ask-rejected by ask[1]"},
	})
	d := p.Decide(t.Context(), asking(t, "POST https://some.test/"))
	if d.Layer != policy.Organisation || !slices.Equal(d.AllowedIf, []string{"method is GET or HEAD"}) || !strings.Contains(d.Reason, "some.test:443") {
		t.Errorf("it says %+v", d)
	}
}

func TestAnEmptyCeilingKeepsEverythingShut(t *testing.T) {
	judge(t, compiled(t, "default: allow\nallow: [a.test]\nceiling: []", inspecting), []judgement{
		{"a.test", "deny rule-deny by ceiling"},
		{"b.test", "deny rule-deny by ceiling"},
	})
}

func TestTheOrganisationNeedsNoCeiling(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Organisation: organisation(t, `
allow: [org.test, {host: reads.test, methods: [GET]}, "*.npmjs.org"]
deny: [never.test]
ask: [asked.test]
ceiling: [in.test, asked.test]
`)}}
	judge(t, compiled(t, "default: allow\nallow: [in.test, out.test, never.test, asked.test]\ndeny: [x.npmjs.org]", env), []judgement{
		{"org.test", "allow by allow[0]"},
		{"reads.test", "inspect by allow[1]"},
		{"https://reads.test/", "allow by allow[1]"},
		{"POST https://reads.test/", "deny method-denied by allow[1]"},
		{"in.test", "allow by allow[0]"},
		{"out.test", "deny rule-deny by ceiling"},
		{"never.test", "deny rule-deny by deny[0]"},
		{"asked.test", "ask ask-rejected by ask[0]"},
		{"other.test", "deny rule-deny by ceiling"},
		{"registry.npmjs.org", "allow by allow[2]"},
		{"x.npmjs.org", "deny rule-deny by deny[0]"},
	})
}

func TestTheLayerOfADecisionIsThatOfItsFile(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{
		Organisation: organisation(t, "allow: [org.test]\ndeny: [never.test]\nceiling: [user.test, tree.test]"),
		Projects:     project(t, "allow: [tree.test]\ndeny: [untouched.test]"),
	}}
	p := compiled(t, "allow: [user.test, out.test]\nsandboxes: [{name: default, token_file: t, deny: [shut.test]}]", env)
	for ask, want := range map[string]policy.Layer{
		"org.test": policy.Organisation, "never.test": policy.Organisation, "user.test": policy.User, "tree.test": policy.Project, "out.test": policy.Organisation,
		"untouched.test": policy.Project, "shut.test": policy.PerSandbox, "nobody.test": policy.Organisation, "10.0.0.1": policy.Builtin,
	} {
		r := asking(t, ask)
		r.Sandbox.Name = "default"
		if d := p.Decide(t.Context(), r); d.Layer != want {
			t.Errorf("%s is decided by %s, want %s: %s", ask, d.Layer, want, saying(d))
		}
	}
}

func TestACeilingOfTheUserIsOneMore(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Organisation: organisation(t, `ceiling: ["*.test"]`)}}
	p := compiled(t, "allow: [a.test, b.test]\nceiling: [a.test, c.example]", env)
	judge(t, p, []judgement{{"a.test", "allow by allow[0]"}, {"b.test", "deny rule-deny by ceiling"}})
	if d := p.Decide(t.Context(), asking(t, "b.test")); d.Layer != policy.User {
		t.Errorf("it was decided by %s", d.Layer)
	}
}

func TestACeilingHoldsTheExceptionsToTheBaseline(t *testing.T) {
	user := "allow: ['10.0.0.5:8443', '10.0.0.6:8443', name.test]\nunsafe_allow: ['127.0.0.1:5000']\n"
	rows := func(five, six, loop string) []judgement {
		return []judgement{{"10.0.0.5:8443", five}, {"10.0.0.6:8443", six}, {"127.0.0.1:5000", loop}, {"name.test:443 => 10.0.0.6", "deny address-denied by baseline"}}
	}
	shut, open := "deny rule-deny by ceiling", "allow by allow[0]"
	judge(t, compiled(t, user, inspecting), rows(open, "allow by allow[1]", "allow by unsafe_allow[0]"))
	judge(t, compiled(t, user+"ceiling: ['*:*']", inspecting), rows(shut, shut, shut))
	judge(t, compiled(t, user+"ceiling: ['*:*', '10.0.0.5:8443']", inspecting), rows(open, shut, shut))
	judge(t, compiled(t, user+"ceiling: ['*:*', '10.0.0.5:8443', '127.0.0.1:5000']", inspecting), rows(open, shut, "allow by unsafe_allow[0]"))
	everything := Environment{Inspection: true, Layers: Layers{Ceilings: []policy.Ceiling{{Evaluator: voice{Verdict: policy.Allow}, Layer: policy.Organisation}}}}
	judge(t, compiled(t, user, everything), rows(shut, shut, shut))
	everything.Layers.Organisation = organisation(t, "allow: ['10.0.0.6:8443']")
	judge(t, compiled(t, user, everything), rows(shut, "allow by allow[0]", shut))
}

func TestAWebSocketNeedsRoomUnderTheCeiling(t *testing.T) {
	p := compiled(t, `
allow: [all.test, {host: live.test, paths: [/ws], upgrade: websocket}]
ceiling: [{host: all.test, methods: [GET]}, live.test]
`, inspecting)
	for ask, want := range map[string]policy.Verdict{"https://all.test/ws": policy.Deny, "https://live.test/ws": policy.Allow} {
		r := asking(t, ask)
		r.HTTP.Upgrade = true
		if d := p.Decide(t.Context(), r); d.Verdict != want {
			t.Errorf("%s: %s", ask, saying(d))
		}
	}
}

func TestAProjectOpensOnlyUnderACeiling(t *testing.T) {
	lines := "allow: [tree.test, {host: reads.test, methods: [GET]}, 10.0.0.5]\ndeny: [user.test]\npresets: [npm]\n"
	user := "allow: [user.test, mine.test, reads.test]\n"
	env := func(projects map[string]WorkingTree, ceiling string) Environment {
		return Environment{Inspection: true, Layers: Layers{Projects: projects, Organisation: organisation(t, ceiling)}}
	}
	judge(t, compiled(t, user, env(project(t, lines), "ceiling: ['*']")), []judgement{
		{"tree.test", "allow by allow[0]"},
		{"registry.npmjs.org", "allow by preset:npm"},
		{"user.test", "deny rule-deny by deny[0]"},
		{"mine.test", "allow by allow[1]"},
		{"reads.test", "inspect by allow[1]"},
		{"POST https://reads.test/", "deny method-denied by allow[1]"},
		{"10.0.0.5", "deny address-denied by baseline"},
	})
	judge(t, compiled(t, user, env(project(t, lines), "")), []judgement{
		{"tree.test", "deny default-deny by default"},
		{"user.test", "deny rule-deny by deny[0]"},
		{"mine.test", "allow by allow[1]"},
		{"POST https://reads.test/", "deny method-denied by allow[1]"},
	})
	closed := project(t, lines)
	closed["default"] = WorkingTree{File: closed["default"].File}
	judge(t, compiled(t, user, env(closed, "ceiling: ['*']")), []judgement{
		{"tree.test", "deny default-deny by default"},
		{"user.test", "deny rule-deny by deny[0]"},
		{"POST https://reads.test/", "deny method-denied by allow[1]"},
	})
}

func TestAProjectIsOneSandboxesAlone(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Projects: project(t, "allow: [tree.test]\ndeny: [user.test]"), Organisation: organisation(t, "ceiling: ['*']")}}
	p := compiled(t, "allow: [user.test]\nsandboxes: [{name: default, token_file: t}, {name: other, token_file: u}]", env)
	for _, row := range []struct {
		sandbox, ask string
		want         policy.Verdict
	}{{"default", "tree.test", policy.Allow}, {"default", "user.test", policy.Deny}, {"other", "tree.test", policy.Deny}, {"other", "user.test", policy.Allow}, {"", "tree.test", policy.Deny}} {
		r := asking(t, row.ask)
		r.Sandbox.Name = row.sandbox
		if d := p.Decide(t.Context(), r); d.Verdict != row.want {
			t.Errorf("%s for %q: %s", row.ask, row.sandbox, saying(d))
		}
	}
}

func TestAProjectGivesNothingBesideItsDestinations(t *testing.T) {
	generous := voice{Verdict: policy.Allow, AnyProtocol: true, ECH: true, Inject: "key"}
	tree := project(t, "")
	tree["default"] = WorkingTree{File: tree["default"].File, Evaluators: []policy.Evaluator{generous}, Opens: true}
	p := compiled(t, "ceiling: ['*']", Environment{Inspection: true, Layers: Layers{Projects: tree}})
	r := asking(t, "https://a.test/")
	r.Sandbox.Name, r.TLS = "default", &policy.ClientHello{ServerName: "a.test", Inspected: true}
	if d := p.Decide(t.Context(), r); d.Verdict != policy.Allow || d.AnyProtocol || d.ECH || d.Inject != "" {
		t.Errorf("%+v", d)
	}
}

func TestNarrowingOpensNothing(t *testing.T) {
	narrow := func(exhaustive bool, v voice) Environment {
		return Environment{Inspection: true, Layers: Layers{Narrowing: map[string][]policy.Narrowing{"web": {{Evaluator: v, Exhaustive: exhaustive}}}}}
	}
	asks := voice{Verdict: policy.Ask, Class: policy.AskRejected, Rule: "a"}
	lines := "allow: [a.test]\nsandboxes: [{name: web, token_file: t}, {name: other, token_file: u}]"
	for _, row := range []struct {
		name string
		env  Environment
		want string
	}{
		{"an allow of what nobody else allows", narrow(false, voice{Verdict: policy.Allow}), "b.test for web: deny default-deny by default"},
		{"an allow of what others allow", narrow(true, voice{Verdict: policy.Allow}), "a.test for web: allow by allow[0]"},
		{"silence", narrow(false, voice{Verdict: policy.Abstain}), "a.test for web: allow by allow[0]"},
		{"silence of what lists all", narrow(true, voice{Verdict: policy.Abstain}), "a.test for web: deny default-deny by rego"},
		{"silence of what lists all, and of all others", narrow(true, voice{Verdict: policy.Abstain}), "b.test for web: deny default-deny by rego"},
		{"a deny", narrow(false, voice{Verdict: policy.Deny, Class: policy.RuleDeny, Rule: "d"}), "a.test for web: deny rule-deny by d"},
		{"what depends on the request", narrow(true, voice{Verdict: policy.Inspect, Needs: policy.NeedsMethod}), "a.test for web: inspect by allow[0]"},
		{"a question about what others allow", narrow(false, asks), "a.test for web: ask ask-rejected by a"},
		{"a question about what nobody else allows", narrow(false, asks), "b.test for web: deny default-deny by default"},
		{"a deny for another", narrow(true, voice{Verdict: policy.Deny}), "a.test for other: allow by allow[0]"},
		{"nonsense", narrow(false, voice{Verdict: policy.Abstain + 1}), "a.test for web: deny policy-error by policy-error"},
	} {
		where, want, _ := strings.Cut(row.want, ": ")
		ask, sandbox, _ := strings.Cut(where, " for ")
		r := asking(t, ask)
		r.Sandbox.Name = sandbox
		if got := saying(compiled(t, lines, row.env).Decide(t.Context(), r)); got != want {
			t.Errorf("%s: %q, want %q", row.name, got, want)
		}
	}
}

// TestWhatOpensNothingAsksAboutNothingElse has questions of those that open nothing:
// whoever answers them would open something after all.
func TestWhatOpensNothingAsksAboutNothingElse(t *testing.T) {
	tree := project(t, "ask: [mine.test, out.test, nobody.test]")
	closed := map[string]WorkingTree{"default": {File: tree["default"].File}}
	narrow := map[string][]policy.Narrowing{"default": {{Evaluator: voice{Verdict: policy.Ask, Class: policy.AskRejected, Rule: "a"}}}}
	asked := func(mine, out, nobody string) []judgement {
		return []judgement{{"mine.test", mine}, {"out.test", out}, {"nobody.test", nobody}}
	}
	user, ceiling := "allow: [mine.test, out.test]\n", "ceiling: [mine.test]"
	in := func(l Layers) Environment { return Environment{Layers: l} }
	question, shut, outside := "ask ask-rejected by ask[0]", "deny default-deny by default", "deny rule-deny by ceiling"
	judge(t, compiled(t, user, in(Layers{Projects: tree})), asked(question, "ask ask-rejected by ask[1]", shut))
	judge(t, compiled(t, user+ceiling, in(Layers{Projects: closed})), asked(question, outside, outside))
	judge(t, compiled(t, user+"ceiling: [mine.test, nobody.test]", in(Layers{Projects: tree})), asked(question, outside, "ask ask-rejected by ask[2]"))
	judge(t, compiled(t, user+ceiling, in(Layers{Narrowing: narrow})), asked("ask ask-rejected by a", outside, outside))
	judge(t, compiled(t, "default: allow\n"+ceiling, in(Layers{Narrowing: narrow})), asked("ask ask-rejected by a", outside, outside))
}

func TestAFileWhoseRegoWasForgottenDoesNotCompile(t *testing.T) {
	some := []policy.Evaluator{voice{Verdict: policy.Abstain}}
	tree := project(t, "rego: [policy]")
	for name, row := range map[string]struct {
		lines string
		env   Environment
	}{
		"the organisation's":                {"", Environment{Layers: Layers{Organisation: organisation(t, "rego: [x]"), User: some}}},
		"the user's beside an organisation": {"rego: [x]", Environment{Evaluators: some, Layers: Layers{Organisation: organisation(t, "rego: [x]")}}},
		"a sandbox's":                       {"rego: [x]\nsandboxes: [{name: web, token_file: t, rego: [x]}]", Environment{Evaluators: some}},
		"a project's":                       {"", Environment{Layers: Layers{Projects: tree}}},
	} {
		f, err := Parse("f", []byte("version: 1\n"+row.lines))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Compile(row.env); err == nil || !strings.Contains(err.Error(), "nothing was made of it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysThatBelongElsewhere(t *testing.T) {
	for _, row := range []struct {
		parse       func(string, []byte) (*File, error)
		lines, want string
	}{
		{ParseOrganisation, "default: allow", "f:2:10: default belongs into egressd.yaml; write it there"},
		{ParseOrganisation, "sandboxes: []", "sandboxes belongs into egressd.yaml"},
		{ParseOrganisation, "tls: {ca_dir: /x}", "tls.ca_dir belongs into egressd.yaml"},
		{ParseOrganisation, "audit: {dir: /x}", "audit.dir belongs into egressd.yaml"},
		{ParseOrganisation, "celing: []", `did you mean "ceiling"?`},
		{ParseOrganisation, "allow: [{host: a.test, inject: {header: X-Key, env: K}}]", "allow[0].inject: credentials belong to who runs egressd"},
		{ParseProject, "unsafe_allow: [127.0.0.1]", "unsafe_allow belongs into egressd.yaml"},
		{ParseProject, "ceiling: []", "ceiling belongs into egressd.yaml"},
		{ParseProject, "tls: {never: [a.test]}", "tls belongs into egressd.yaml"},
		{ParseProject, "allow: [{host: a.test, tls: any}]", "allow[0].tls: a project cannot give that"},
		{ParseProject, "allow: [{host: a.test, ech: allow}]", "allow[0].ech: a project cannot give that"},
		{ParseProject, "allow: [{host: a.test, paths: [/x], upgrade: websocket}]", "allow[0].upgrade: a project cannot give that"},
		{ParseProject, "allow: [{host: a.test, inject: {header: X-Key, env: K}}]", "allow[0].inject: a project cannot give that"},
	} {
		if _, err := row.parse("f", []byte("version: 1\n"+row.lines)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", row.lines, err, row.want)
		}
	}
}

func TestTestsOfOtherFilesAreRun(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Organisation: organisation(t, "allow: [a.test]\ntests: [allow a.test, deny b.test]")}}
	f := func(lines string) *File {
		f, err := Parse("f", []byte("version: 1\n"+lines))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if _, err := f("deny: [a.test]\nallow: [b.test]").Compile(env); err != nil {
		t.Errorf("a user may be stricter, and open what the organisation leaves open: %v", err)
	}
	env.Layers.Organisation = organisation(t, "tests: [allow a.test]")
	if _, err := f("allow: [a.test]").Compile(env); err == nil || !strings.HasPrefix(err.Error(), "organisation.yaml:2:") {
		t.Errorf("the organisation's test: %v", err)
	}
	env.Layers = Layers{Projects: project(t, "allow: [tree.test]\npresets: [npm]\ntests: [allow tree.test, 'allow https://registry.npmjs.org/', deny b.test]")}
	for _, user := range []string{"ceiling: [tree.test]", "ceiling: []", "deny: [tree.test]", "allow: [b.test]\nceiling: [b.test]"} {
		if _, err := f(user).Compile(env); err != nil {
			t.Errorf("the project's tests beside %q: %v", user, err)
		}
	}
	env.Layers = Layers{Projects: project(t, "allow: [tree.test]\ntests: [deny tree.test]")}
	if _, err := f("ceiling: []").Compile(env); err == nil || !strings.HasPrefix(err.Error(), "project.yaml:3:") {
		t.Errorf("a project's test that its own lines break: %v", err)
	}
}

// TestEachFileIsTestedByItself: whatever an organisation denies, opens or leaves out of its ceiling, a user's tests are about
// the user's lines. What does not hold on the machine is said.
func TestEachFileIsTestedByItself(t *testing.T) {
	user := `
allow: [a.test, "*.wide.test", {host: some.test, methods: [GET, POST], paths: [/a/**]}, asked.test, "10.0.0.5:8443"]
presets: [npm]
tests: [allow a.test, deny open.test, "allow POST https://some.test/a/b", "allow https://registry.npmjs.org/"]
`
	for _, row := range []struct {
		above string
		said  []string // beginnings
	}{
		{"ceiling: ['*:*', '10.0.0.5:8443']", nil},
		{"deny: [z.test]", nil},
		{"allow: [open.test]", []string{`u:4:23: the test "deny open.test" holds for this file alone, and not with o.yaml: expected deny, got allow`}},
		{"deny: [a.test]", []string{
			"u:2:9: allow[0] allows a.test, and o.yaml keeps a.test:443 shut (rule deny[0])",
			`u:4:9: the test "allow a.test"`,
		}},
		{"ceiling: [a.test, b.wide.test, asked.test, {host: some.test, methods: [GET]}]", []string{
			"u:2:17: allow[1] allows *.wide.test, and o.yaml keeps any-host-below.wide.test:443 shut (rule ceiling)",
			"u:2:32: allow[2] allows some.test, and o.yaml keeps POST some.test:443/a/** shut (rule ceiling)",
			"u:2:101: allow[4] allows 10.0.0.5:8443, and o.yaml keeps 10.0.0.5:8443 shut (rule ceiling)",
			"u:3:11: preset npm: o.yaml keeps shut, in whole or in part, all of it (registry.npmjs.org:443, registry.npmjs.org:80, registry.yarnpkg.com:443, registry.yarnpkg.com:80 and ",
			`u:4:39: the test "allow POST https://some.test/a/b"`,
			`u:4:75: the test "allow https://registry.npmjs.org/"`,
		}},
		{"ceiling: [a.test, '*.wide.test', some.test, '10.0.0.5:8443', {host: asked.test, methods: [GET]}, 'registry.npmjs.org:443', registry.yarnpkg.com]", []string{
			"u:2:89: allow[3] allows asked.test, and o.yaml lets asked.test:443 pass only if method is GET or HEAD;",
			"u:3:11: preset npm: o.yaml keeps shut, in whole or in part, registry.npmjs.org",
		}},
		{"ceiling: []\nallow: [a.test, '*.wide.test', some.test, asked.test, '10.0.0.5:8443', registry.npmjs.org, '*.yarnpkg.com', nodejs.org]", nil},
	} {
		f, err := Parse("u", []byte("version: 1"+user))
		if err != nil {
			t.Fatal(err)
		}
		o, err := ParseOrganisation("o.yaml", []byte("version: 1\n"+row.above))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(Environment{Inspection: true, Layers: Layers{Organisation: o}})
		if err != nil {
			t.Errorf("under %s: %v", row.above, err)
			continue
		}
		var said []string
		for _, one := range f.Overruled(t.Context(), p, "o.yaml", "") {
			said = append(said, one.String())
		}
		if !slices.EqualFunc(said, row.said, strings.HasPrefix) {
			t.Errorf("under %s it says\n%s", row.above, strings.Join(said, "\n"))
		}
	}
	f, err := Parse("u", []byte("version: 1\nallow: [a.test]\nceiling: []\ntests: [allow a.test]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Compile(Environment{}); err == nil {
		t.Error("a file's own ceiling is not part of its layer")
	}
}

func TestTheDigestCoversEveryLayer(t *testing.T) {
	seen := map[string]string{}
	npm := organisation(t, "presets: [npm]")
	closed := project(t, "allow: [a.test]")
	closed["default"] = WorkingTree{File: closed["default"].File}
	for name, l := range map[string]Layers{
		"none": {}, "an organisation": {Organisation: organisation(t, "")}, "another": {Organisation: organisation(t, "#")}, "a preset": {Organisation: npm},
		"a project": {Projects: project(t, "allow: [a.test]")}, "another project": {Projects: project(t, "allow: [b.test]")}, "one that opens nothing": {Projects: closed},
	} {
		digest := compiled(t, "", Environment{Layers: l}).Digest()
		if other, twice := seen[digest]; twice {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[digest] = name
	}
}

func TestNeverOfTheOrganisationHolds(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Organisation: organisation(t, "tls: {never: [pinned.test]}")}}
	judge(t, compiled(t, "allow: [{host: pinned.test, methods: [GET]}]", env), []judgement{{"pinned.test", "deny method-denied by allow[0]"}})
}

func TestAFileBesideOthersThatAllowNeedsNoRules(t *testing.T) {
	f, err := Parse("f", []byte("version: 1"))
	if err != nil {
		t.Fatal(err)
	}
	silent, loud := organisation(t, "deny: [a.test]"), organisation(t, "allow: [a.test]")
	if len(f.Doubts(silent)) != 1 || len(f.Doubts(loud)) != 0 || len(silent.Doubts()) != 0 {
		t.Errorf("%v, %v, %v", f.Doubts(silent), f.Doubts(loud), silent.Doubts())
	}
}

// A user of usage looks at it.
type usageUser struct{ voice }

func (usageUser) ReadsUsage() bool { return true }

func TestUsageIsReadInEveryLayer(t *testing.T) {
	looks := usageUser{voice{Verdict: policy.Abstain}}
	tree := project(t, "")
	tree["default"] = WorkingTree{File: tree["default"].File, Evaluators: []policy.Evaluator{looks}}
	for name, l := range map[string]Layers{
		"the user": {User: []policy.Evaluator{looks}}, "a ceiling": {Ceilings: []policy.Ceiling{{Evaluator: looks, Layer: policy.Organisation}}},
		"a sandbox": {Narrowing: map[string][]policy.Narrowing{"default": {{Evaluator: looks}}}}, "a project": {Projects: tree}, "": {Organisation: organisation(t, "")},
	} {
		if got := compiled(t, "", Environment{Layers: l}).ReadsUsage(); got != (name != "") {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestABudgetNarrows(t *testing.T) {
	own := voice{Verdict: policy.Allow, MaxBytesUp: 10, BudgetRule: "small", BudgetLayer: policy.PerSandbox, Log: true}
	env := Environment{Layers: Layers{Narrowing: map[string][]policy.Narrowing{"default": {{Evaluator: own}}}}}
	r := asking(t, "a.test")
	r.Sandbox.Name = "default"
	if d := compiled(t, "allow: [a.test]", env).Decide(t.Context(), r); d.Verdict != policy.Allow || d.MaxBytesUp != 10 || d.BudgetRule != "small" || !d.Log {
		t.Errorf("%+v", d)
	}
}

// TestAShadowHasTheOtherLayers has a source of the user in shadow: what stands above
// it and below it is the same.
func TestAShadowHasTheOtherLayers(t *testing.T) {
	says := func(verdict policy.Verdict, rule string) []policy.Evaluator {
		return []policy.Evaluator{voice{Verdict: verdict, Rule: rule}}
	}
	above := Layers{Organisation: organisation(t, "deny: [never.test]\nceiling: [a.test, never.test]")}
	now, next := above, above
	now.User, next.User = says(policy.Abstain, "now"), says(policy.Allow, "next")
	env := Environment{Inspection: true, Layers: now, ShadowLayers: next}
	p := compiled(t, "rego: [now, {path: next, mode: shadow}]", env)
	for ask, want := range map[string]string{"a.test": "allow by next", "never.test": "deny rule-deny by deny[0]", "out.test": "deny rule-deny by ceiling"} {
		if got := saying(p.Shadow().Decide(t.Context(), asking(t, ask))); got != want {
			t.Errorf("%s: the shadow says %q, want %q", ask, got, want)
		}
	}
	f, err := Parse("f", []byte("version: 1\nrego: [{path: next, mode: shadow}]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Compile(Environment{Layers: above, Shadow: says(policy.Allow, "of the organisation")}); err == nil {
		t.Error("what the user has in shadow was forgotten")
	}
}

func TestOpinionsOfLayers(t *testing.T) {
	env := Environment{Inspection: true, Evaluators: []policy.Evaluator{voice{Verdict: policy.Abstain}}, Layers: Layers{
		Organisation: organisation(t, "deny: [a.test]\nceiling: [b.test]"), User: []policy.Evaluator{voice{Verdict: policy.Allow, Rule: "mine"}},
		Projects: project(t, "deny: [c.test]"), Narrowing: map[string][]policy.Narrowing{"default": {{Evaluator: voice{Verdict: policy.Abstain}}}},
	}}
	r := asking(t, "a.test")
	r.Sandbox.Name = "default"
	var got []string
	for _, o := range compiled(t, "allow: [a.test]", env).Opinions(t.Context(), r) {
		got = append(got, strings.TrimSpace(string(o.Part)+" of "+string(o.Layer)+": "+saying(o.Decision)))
	}
	want := []string{
		"baseline of builtin: abstain by", "file of organisation: deny rule-deny by deny[0]", "file of user: allow by allow[0]",
		"sandbox of sandbox: abstain by", "further of organisation: abstain by",
		"project of project: abstain by", "further of user: allow by mine", "sandbox of sandbox: abstain by", "ceiling of organisation: deny default-deny by default",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

func TestTheBaselineHoldsUnderEveryLayer(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Organisation: organisation(t, "allow: ['*:*']\nceiling: ['*:*']"), Projects: project(t, "allow: ['*:*', '10.0.0.0/8:*']")}}
	p := compiled(t, "default: allow\nallow: ['*:*']", env)
	for _, addr := range []string{"10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1"} {
		r := &policy.Request{Sandbox: policy.Sandbox{Name: "default"}, Destination: policy.Destination{Host: addr, Addr: netip.MustParseAddr(addr), Port: 443}}
		if d := p.Decide(t.Context(), r); d.Verdict != policy.Deny || d.Layer != policy.Builtin {
			t.Errorf("%s: %s", addr, saying(d))
		}
	}
}

func TestTheFirstLookUnderACeilingPromisesNothing(t *testing.T) {
	asks := rapid.SampledFrom([]string{"GET https://b.a.test/x/1", "POST https://a.test/y", "GET https://93.184.216.34/y", "POST http://c.b.a.test/y//x"})
	rapid.Check(t, func(t *rapid.T) {
		file := fileOf(anyLines(t))
		allows := slices.DeleteFunc(anyLines(t), func(line string) bool {
			return !strings.HasPrefix(line, "allow") || strings.Contains(line, "inject") || strings.Contains(line, "upgrade")
		})
		_, ceiling, _ := strings.Cut(strings.Split(fileOf(allows), "\n")[0], ": ")
		p := compiled(t, file+"ceiling: "+ceiling, inspecting)
		r := asking(t, asks.Draw(t, "ask"))
		seen := p.Decide(context.Background(), r)
		unseen := *r
		unseen.HTTP = nil
		before := p.Decide(context.Background(), &unseen)
		if before.Verdict == policy.Allow && seen.Verdict != policy.Allow || before.Verdict <= policy.Ask && seen.Verdict == policy.Allow {
			t.Fatalf("%s unseen, then %s", saying(before), saying(seen))
		}
	})
}
