package docs

import (
	"slices"
	"strings"
	"testing"
)

// TestEachTopicIsReadable: no markup that only a browser understands is left, and no line of a table is lost.
func TestEachTopicIsReadable(t *testing.T) {
	seen := map[string]bool{}
	for _, shelf := range Shelves() {
		if len(shelf.Topics) < 10 {
			t.Errorf("%s has %d topics", shelf.Name, len(shelf.Topics))
		}
		for _, topic := range shelf.Topics {
			if seen[topic.Name] {
				t.Errorf("there are two pages %s", topic.Name)
			}
			seen[topic.Name] = true
			text, ok := Page(topic.Name)
			if !ok || topic.Title == "" || !strings.Contains(text, topic.Title) {
				t.Errorf("%s: %v, title %q", topic.Name, ok, topic.Title)
			}
			for line := range strings.Lines(text) {
				if strings.Contains(line, "](") || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "```") {
					t.Errorf("%s: %s", topic.Name, line)
				}
			}
		}
	}
	if _, ok := Page("../how-to/troubleshoot"); ok {
		t.Error("a path is no topic")
	}
}

func TestPlain(t *testing.T) {
	const page = "# T\n\nSee [the page](../how-to/troubleshoot.md#x), [a site](https://a.test/), [a part](#part) and ![a picture](../page.png).\n\n" +
		"```yaml\na: [b](c)\n```\n\n| printed | means | do |\n|---|---|---|\n| `a\\|b` | one | |\n| two | | [that](rules.md) |\n\nend\n"
	const want = "# T\n\nSee the page (egressd help troubleshoot), a site (https://a.test/), a part and .\n\n" +
		"    a: [b](c)\n\n- `a|b`\n    means: one\n- two\n    do: that (egressd help rules)\n\nend\n"
	if got := plain(page); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if !slices.Contains(Names(), "policy-file") {
		t.Error(Names())
	}
}
