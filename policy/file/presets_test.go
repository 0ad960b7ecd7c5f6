package file

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/google/go-cmp/cmp"
)

func TestEveryPresetKeepsItsPromises(t *testing.T) {
	for _, name := range Presets() {
		t.Run(name, func(t *testing.T) {
			text, err := PresetText(name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Parse("preset "+name, text)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Compile(Environment{}); err != nil {
				t.Error(err)
			}
			if !bytes.HasPrefix(text, []byte("# ")) {
				t.Error("it does not begin with what it is for")
			}
			if len(f.Presets) > 0 {
				checkCollection(t, f)
				return
			}
			checkPreset(t, f)
		})
	}
}

// checkCollection holds a preset that names others to that.
func checkCollection(t *testing.T, f *File) {
	if f.Default != policy.Deny || len(f.Allow)+len(f.Deny)+len(f.Ask)+len(f.UnsafeAllow)+len(f.Sandboxes) > 0 {
		t.Error("it holds more than names of presets and tests")
	}
	for _, name := range f.Presets {
		if one, err := parsePreset(name); err != nil || len(one.Presets) > 0 {
			t.Errorf("%s: %v, and names %v", name, err, one.Presets)
		}
	}
}

// TestACollectionIsItsPresets compares a policy with a preset that names others with one that names them itself.
func TestACollectionIsItsPresets(t *testing.T) {
	whole, err := PresetRules("starter", "npm")
	if err != nil {
		t.Fatal(err)
	}
	parts, err := PresetRules("pypi", "npm", "golang", "github", "codex", "claude-code")
	if err != nil {
		t.Fatal(err)
	}
	ids := func(all []policy.Rule) (texts []string) {
		for i := range all {
			texts = append(texts, all[i].ID+" "+all[i].Pattern.String())
		}
		return texts
	}
	if diff := cmp.Diff(ids(parts), ids(whole)); diff != "" || len(whole) < 20 {
		t.Error(diff, len(whole))
	}
}

func TestPresetsThatHaveAHost(t *testing.T) {
	for host, want := range map[string]string{"api.anthropic.com": "claude-code", "registry.npmjs.org": "npm", "github.com": "github", "evil.test": ""} {
		got := PresetsWith(host, 443)
		if slices.Contains(got, "starter") || want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%s: %v", host, got)
		}
	}
}

func TestAPresetIsNearByAWordOfItsName(t *testing.T) {
	for wrong, want := range map[string]string{"claude": "claude-code", "gemini": "gemini-cli", "docker": "docker-hub", "azure": "azure-openai", "npn": "npm", "openai-codex": "codex", "pip": "pypi", "Node": "npm", "apt": "ubuntu"} {
		if text := didYouMeanPreset(wrong); !strings.Contains(text, `"`+want+`"`) || strings.Contains(text, "amp") {
			t.Errorf("%s: %s", wrong, text)
		}
	}
}

func TestWhatANameStandsForIsAPreset(t *testing.T) {
	for name, presets := range presetsOf {
		for _, preset := range presets {
			if !slices.Contains(Presets(), preset) || slices.Contains(Presets(), name) {
				t.Errorf("%s stands for %s: the second is none, or the first is one", name, preset)
			}
		}
	}
}

// checkPreset holds a preset to what it is: public hosts, read where reading
// can be told from writing, with tests both ways.
func checkPreset(t *testing.T, f *File) {
	for _, rule := range f.Allow {
		switch p := rule.Pattern; {
		case p == p.At(443) && !rule.Conditional():
		case p == p.At(80) && slices.Equal(rule.Methods, []string{"GET"}):
		default:
			t.Errorf("%s is neither a tunnel to 443 nor GET on 80", rule.Pattern)
		}
		if policy.InSpecialSpace(rule.Pattern) || rule.AnyProtocol || rule.ECH || rule.Upgrade || rule.Inject != nil {
			t.Errorf("%s loosens more than its destination", rule.Pattern)
		}
		if p := rule.Pattern; !p.OneHost() && p.Sharing() != "" {
			t.Errorf("%s %s", p, p.Sharing())
		}
	}
	for _, want := range []policy.Verdict{policy.Allow, policy.Deny} {
		if !slices.ContainsFunc(f.Tests, func(t Test) bool { return t.Want == want }) {
			t.Errorf("no test says %s", want)
		}
	}
	if f.Default != policy.Deny || len(f.Deny)+len(f.Ask)+len(f.UnsafeAllow)+len(f.Sandboxes)+len(f.Presets) > 0 {
		t.Error("it holds more than allow rules and tests")
	}
}

func TestNoPresetOpensTelemetry(t *testing.T) {
	all := "presets: ["
	for i, name := range Presets() {
		if i > 0 {
			all += ", "
		}
		all += name
	}
	p := compiled(t, all+"]", inspecting)
	for _, host := range []string{"statsig.anthropic.com", "sentry.io", "o1.ingest.sentry.io", "events.openai.com", "ab.chatgpt.com", "www.google-analytics.com", "telemetry.nodejs.org", "copilot-telemetry.githubusercontent.com", "collector.github.com", "default.exp-tas.com", "play.googleapis.com", "gist.github.com"} {
		if d := p.Decide(t.Context(), asking(t, host)); d.Verdict != policy.Deny {
			t.Errorf("%s: %s", host, saying(d))
		}
	}
}

func TestThereIsNoTextOfAnUnknownPreset(t *testing.T) {
	for _, name := range []string{"", "nmp", "../presets", "npm.yaml"} {
		if text, err := PresetText(name); err == nil {
			t.Errorf("%q has the text %q", name, text)
		}
	}
}
