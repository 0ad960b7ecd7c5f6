package policy

import (
	"path"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/file"
)

// TestEveryPresetSaysWhereItWasRead holds each preset to its sources: pages with the day on which they were read, or
// the hosts that no page names. A line of another form counts as no source.
func TestEveryPresetSaysWhereItWasRead(t *testing.T) {
	for _, name := range file.Presets() {
		t.Run(name, func(t *testing.T) {
			line, err := presetLineOf(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, page := range line.Read {
				if on, err := time.Parse(time.DateOnly, page.On); err != nil || on.After(time.Now()) {
					t.Errorf("%s was read on %s", page.Page, page.On)
				}
			}
			text, err := file.PresetText(name)
			if err != nil {
				t.Fatal(err)
			}
			rules, err := file.Parse(name, text)
			if err != nil {
				t.Fatal(err)
			}
			unread := map[string]bool{}
			for _, rule := range rules.Allow {
				host := rule.Pattern.Host()
				at := slices.IndexFunc(line.Unread, func(pattern string) bool { ok, err := path.Match(pattern, host); return ok && err == nil })
				if at >= 0 {
					unread[line.Unread[at]] = true
				} else if len(line.Read) == 0 {
					t.Errorf("it does not say where %s was read, nor that no page names it", host)
				}
			}
			for _, pattern := range line.Unread {
				if !unread[pattern] {
					t.Errorf("it says that no page names %s, which it does not have", pattern)
				}
			}
		})
	}
}
