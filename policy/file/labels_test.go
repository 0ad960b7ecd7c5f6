package file

import (
	"errors"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestWhatLabelsChoose has two rings and a canary in shadow, on machines with several labels.
func TestWhatLabelsChoose(t *testing.T) {
	const rings = `version: 1
labels: {ring: "${RING}", site: "${SITE}"}
rego:
  - everywhere/
  - {path: canary/, when: {labels: {ring: canary}}}
  - {path: next/, mode: shadow, when: {labels: {ring: stable, site: lab}}}
  - {path: stable/, when: {labels: {ring: stable}}}
`
	for _, row := range []struct {
		ring, site string
		want       string // paths that count
	}{
		{"canary", "lab", "everywhere/ canary/"},
		{"stable", "lab", "everywhere/ next/ stable/"},
		{"stable", "office", "everywhere/ stable/"},
		{"canray", "lab", ""},
		{"", "lab", ""},
	} {
		f, err := Parse("f", []byte(rings))
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]string{"RING": row.ring, "SITE": row.site}
		out, err := f.Expand(func(name string) (string, bool) { return values[name], true })
		var problems policy.FileError
		if row.want == "" {
			if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Line < 2 {
				t.Errorf("ring %q: %v", row.ring, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("ring %q: %v", row.ring, err)
		}
		var counts []string
		for i := range out.Rego {
			if !out.Rego[i].Elsewhere {
				counts = append(counts, out.Rego[i].Path)
			}
		}
		if got := strings.Join(counts, " "); got != row.want {
			t.Errorf("ring %q, site %q: %s", row.ring, row.site, got)
		}
		if names := out.names(true); names != strings.Contains(row.want, "next/") {
			t.Errorf("ring %q, site %q: a shadow: %v", row.ring, row.site, names)
		}
	}
	// Only a canary in shadow, for other machines: nothing else is lost.
	f, err := Parse("f", []byte("version: 1\nlabels: {ring: stable}\nrego: [all/, {path: next/, mode: shadow, when: {labels: {ring: canary}}}]\n"))
	if err == nil {
		f, err = f.Expand(nil)
	}
	if err != nil || !f.Rego[1].Elsewhere {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestConditionsOnLabelsThatAreRefused(t *testing.T) {
	for _, text := range []string{
		"rego: [{path: a, when: {labels: {ring: canary}}}]",                              // no labels
		"labels: {ring: canary}\nrego: [{path: a, when: {labels: {rign: canary}}}]",      // another name
		"labels: {ring: canary}\nrego: [{path: a, when: {labels: {}}}]",                  // no condition
		"labels: {ring: canary}\nrego: [{path: a, when: {}}]",                            // none either
		"labels: {ring: canary}\nrego: [{path: a, when: {ring: canary}}]",                // not labels
		"labels: {ring: canary}\nrego: [{path: a, when: {labels: {ring: [canary]}}}]",    // a list
		"labels: {ring: canary}\nrego: [{path: a, when: {labels: {ring: \"${RING}\"}}}]", // a variable
		"labels: {ring: canary, ring: stable}",                                           // twice
		"labels: {}", "labels: canary", "labels: {ring: 1}", "labels: {\"a b\": c}",
		"labels: {ring: \"a b\"}", "labels: {ring: " + strings.Repeat("a", 64) + "}",
		"labels: {ring: a}\nsandboxes: [{name: ci, token_file: t, rego: [{path: a, when: {labels: {ring: a}}}]}]", // of a sandbox
	} {
		if f, err := Parse("f", []byte("version: 1\n"+text+"\n")); err == nil {
			t.Errorf("%s: %+v", text, f.Rego)
		}
	}
}
