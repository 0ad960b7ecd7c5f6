package policy

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
	"github.com/egressd/egressd/internal/testfiles"
)

// TestImportsDecideLikeTheExamples holds what is imported of an example's settings to
// the decisions beside it: what egressd does, and so never wider than the other.
func TestImportsDecideLikeTheExamples(t *testing.T) {
	for name, row := range map[string]struct{ kind, file string }{
		"claude-code": {"claude", "settings.json"},
		"srt":         {"srt", "srt-settings.json"},
		"e2b":         {"e2b", "network.json"},
		"e2b-open":    {"e2b", "network.json"},
		"daytona":     {"daytona", "sandbox.json"},
		"modal":       {"modal", "sandbox.py"},
		"vercel":      {"vercel", "network-policy.json"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := testfiles.Path(t, "examples", "from", name)
			p := compiledText(t, importOf(t, row.kind, filepath.Join(folder, row.file)))
			for _, line := range decisionsOf(t, folder) {
				if got := decidedWith(t, p, line.subject); got != line.ours {
					t.Errorf("%s: %s, want %s", line.subject, got, line.ours)
				}
				if line.theirs == "deny" && line.ours == "allow" {
					t.Errorf("%s is wider", line.subject)
				}
			}
		})
	}
}

func importOf(t *testing.T, kind, path string) string {
	t.Helper()
	var stdout, stderr strings.Builder
	if code := clitest.Run(newPolicy(), []string{"policy", "import", "--from", kind, path}, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "egressd: stricter: ") {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	return stdout.String()
}
