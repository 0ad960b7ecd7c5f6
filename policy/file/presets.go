package file

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Each preset is a rule file of its own, with allow rules, or with names of other presets, and with tests.
//
//go:embed presets/*.yaml
var presetFiles embed.FS

// Presets returns the names that "presets:" knows, sorted.
func Presets() []string {
	entries, err := presetFiles.ReadDir("presets")
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), ".yaml")
	}
	slices.Sort(names)
	return names
}

// PresetText returns the rule file of a preset, for a person to read.
func PresetText(name string) ([]byte, error) {
	if !slices.Contains(Presets(), name) {
		return nil, fmt.Errorf("there is no preset %q; %s", printable(name), didYouMeanPreset(name))
	}
	return presetFiles.ReadFile("presets/" + name + ".yaml")
}

// presetsOf are the presets that go by the name of a program, a language or a firm.
var presetsOf = map[string][]string{
	"node": {"npm"}, "nodejs": {"npm"}, "javascript": {"npm"}, "yarn": {"npm"}, "pnpm": {"npm"}, "bun": {"npm"},
	"python": {"pypi"}, "pip": {"pypi"}, "uv": {"pypi"}, "poetry": {"pypi"}, "anaconda": {"conda"},
	"go": {"golang"}, "rust": {"crates"}, "cargo": {"crates"}, "java": {"maven"}, "gradle": {"maven"}, "kotlin": {"maven"},
	"ruby": {"rubygems"}, "gem": {"rubygems"}, "bundler": {"rubygems"}, "php": {"packagist"}, "composer": {"packagist"},
	"dotnet": {"nuget"}, "csharp": {"nuget"}, "elixir": {"hex"}, "erlang": {"hex"}, "mix": {"hex"},
	"apt": {"debian", "ubuntu"}, "apk": {"alpine"}, "gh": {"github"}, "git": {"github", "gitlab", "bitbucket"}, "glab": {"gitlab"},
	"dockerhub": {"docker-hub"}, "hf": {"huggingface"}, "transformers": {"huggingface"}, "aws": {"bedrock"}, "azure": {"azure-openai"},
	"chatgpt": {"openai", "codex"}, "grok": {"xai"}, "google": {"google-ai", "gemini-cli"}, "gemini": {"gemini-cli", "google-ai"},
}

// didYouMeanPreset names the presets that name stands for or whose names hold it as a word, and otherwise the one that is
// spelled like it.
func didYouMeanPreset(name string) string {
	word := strings.ToLower(name)
	near := slices.Clone(presetsOf[word])
	if near == nil {
		near = slices.DeleteFunc(Presets(), func(known string) bool {
			return !slices.Contains(strings.Split(known, "-"), word) && !slices.Contains(strings.Split(word, "-"), known)
		})
	}
	if len(near) == 0 {
		return didYouMean(name, Presets())
	}
	for i, known := range near {
		near[i] = strconv.Quote(known)
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// PresetRules returns the rules of presets, and of those that they name. The id of each is "preset:" and its preset.
func PresetRules(names ...string) (all []policy.Rule, err error) {
	presets, err := parsePresets(names)
	for _, p := range presets {
		all = append(all, p.Allow...)
	}
	return all, err
}

// PresetsWith returns the presets that allow tunnels to a host, those with the fewest rules first. It leaves out those that
// name other presets.
func PresetsWith(host string, port uint16) []string {
	rules := map[string]int{}
	for _, name := range Presets() {
		f, err := parsePreset(name)
		if err == nil && slices.ContainsFunc(f.Allow, func(r policy.Rule) bool { return !r.Conditional() && r.Pattern.MatchesName(host, port) }) {
			rules[name] = len(f.Allow)
		}
	}
	byRules := func(a, b string) int { return cmp.Or(cmp.Compare(rules[a], rules[b]), strings.Compare(a, b)) }
	return slices.SortedFunc(maps.Keys(rules), byRules)
}

// parsePresets reads presets in the order of their names. It reads those that a preset names in place of that.
func parsePresets(names []string) (all []*File, err error) {
	done := map[string]bool{}
	for i := 0; i < len(names); i++ {
		name := names[i]
		if done[name] {
			continue
		}
		done[name] = true
		f, err := parsePreset(name)
		if err != nil {
			return nil, fmt.Errorf("read preset %s: %w", name, err)
		}
		if len(f.Presets) == 0 {
			all = append(all, f)
		}
		names = slices.Concat(names, f.Presets)
	}
	slices.SortFunc(all, func(a, b *File) int { return strings.Compare(a.Allow[0].ID, b.Allow[0].ID) })
	return all, nil
}

// parsePreset reads the rules of a preset. Its tests are run by the tests of this package alone.
func parsePreset(name string) (*File, error) {
	text, err := PresetText(name)
	if err != nil {
		return nil, err
	}
	f, err := Parse("preset "+name, text)
	if err != nil {
		return nil, err
	}
	f.Tests = nil
	for i := range f.Allow {
		f.Allow[i].ID = "preset:" + name
	}
	return f, nil
}
