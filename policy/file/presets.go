package file

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// Each preset is a rule file of its own, with allow rules and tests alone.
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
		return nil, fmt.Errorf("there is no preset %q; %s", printable(name), didYouMean(name, Presets()))
	}
	return presetFiles.ReadFile("presets/" + name + ".yaml")
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
	return f, nil
}
