package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy/file"
)

// TestTheReadmeOfInitRegoRuns types every line of the README, and every line of the workflow that runs
// egressd, in the folder that init rego makes.
func TestTheReadmeOfInitRegoRuns(t *testing.T) {
	t.Chdir(t.TempDir())
	typed(t, "egressd init rego pol")
	typed(t, "egressd policy test pol")
	t.Chdir("pol")
	t.Setenv("GITHUB_SHA", "0123abcd")
	lines := shellLines(readmeText(t), "```sh\n")
	if len(lines) < 6 {
		t.Fatalf("the README has the lines %q", lines)
	}
	for _, line := range lines {
		typed(t, line)
	}
	_, block, _ := strings.Cut(readmeText(t), "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	if _, err := file.Parse("README.md", []byte(block)); err != nil {
		t.Errorf("%v\n%s", err, block)
	}
	workflow, err := os.ReadFile(filepath.Join(".github", "workflows", "policy.yml"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(string(workflow)) {
		if _, command, ok := strings.Cut(line, "- run: egressd"); ok {
			typed(t, "egressd"+os.ExpandEnv(strings.ReplaceAll(command, `"`, "")))
			ran++
		}
	}
	if ran < 4 {
		t.Errorf("the workflow runs egressd %d times", ran)
	}
}

func readmeText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shellLines are the lines of the blocks of a text that begin with a line.
func shellLines(text, begin string) (lines []string) {
	for _, block := range strings.Split(text, begin)[1:] {
		block, _, _ = strings.Cut(block, "```")
		lines = append(lines, strings.Split(strings.TrimSpace(block), "\n")...)
	}
	return lines
}

// typed runs a line as somebody would type it.
func typed(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "egressd" {
		t.Fatalf("%q does not run egressd", line)
	}
	var stdout, stderr strings.Builder
	if code := Run(words[1:], &stdout, &stderr); code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", line, code, &stdout, &stderr)
	}
}
