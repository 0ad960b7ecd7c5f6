package policy

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/testfiles"
)

// TestTrustNeverSaysShutOfWhatIsOpened has rules of a project of which some part is
// opened, though what stands for them is not: a person decides by what is shown.
func TestTrustNeverSaysShutOfWhatIsOpened(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := testfiles.FilesIn(t, map[string]string{
		config.FileName: `version: 1
ceiling: [staging.acme.example, "20.1.2.0/24", "ports.acme.example:8000", held.acme.example, clear.example, late.acme.example]
rego: [held.rego]
tls: {never: [clear.example]}
sandboxes:
  - {name: app, token_file: app.token, project: tree, deny: [held.acme.example]}
  - {name: other, token_file: other.token, project: tree}
`,
		"held.rego": `package egress
deny contains {"rule": "busy"} if input.usage.flows_open > 100
deny contains {"rule": "early"} if { input.destination.host == "late.acme.example"; not input.time > 0 }
`,
		"tree/.egressd/project.yaml": `version: 1
allow:
  - "*.acme.example"
  - "20.0.0.0/8"
  - "ports.acme.example:7000-9000"
  - held.acme.example
  - {host: clear.example, methods: [GET]}
  - late.acme.example
  - evil.example
  - "evil.example:*"
`,
	})
	var stdout, stderr strings.Builder
	if code := clitest.Run(newPolicy(), []string{"policy", "trust", "--config", dir + "/" + config.FileName, dir + "/tree"}, &stdout, &stderr); code != cli.ExitFailed {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	for _, want := range []string{
		"  sandbox      app, other",
		"? allow[0] *.acme.example: opened in part at most; any-host-below.acme.example:443 stays shut by ceiling (organisation)",
		"? allow[1] 20.0.0.0/8: opened in part at most; 20.0.0.0:443 stays shut by ceiling (organisation)",
		"? allow[2] ports.acme.example:7000-9000: opened in part at most; ports.acme.example:7000 stays shut by ceiling (organisation)",
		"✓ allow[3] held.acme.example: opened",
		"? allow[4] clear.example: opened for some requests",
		"✓ allow[5] late.acme.example: opened",
		"✗ allow[6] evil.example: stays shut by ceiling (organisation)",
		"? allow[7] evil.example:*: opened in part at most; evil.example:1 stays shut by ceiling (organisation)",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s%s", &stdout, &stderr)
	}
}

func TestATreeThatReadsOtherwiseThanItIsCannotBeTrusted(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	const module = "package egress.project\nallow contains {\"rule\": \"x\"} if input.destination.host in data.hosts\n"
	for name, row := range map[string]struct {
		data string
		code int
	}{
		"plain text":                   {"# see\r\nhosts: [a.example] # Zürich\n", cli.ExitOK},
		"a carriage return alone":      {"# see\rhosts: [a.example]\n", cli.ExitUsage},
		"another end of a line":        {"# see\u2028hosts: [a.example]\n", cli.ExitUsage},
		"a change of direction":        {"hosts: [a.example] # \u202e\n", cli.ExitUsage},
		"a command to the terminal":    {"hosts: [a.example] # \x1b[2A\n", cli.ExitUsage},
		"what is no text":              {"hosts: [a.example] # \xff\n", cli.ExitUsage},
		"text that is escaped in YAML": {"hosts: [\"a.example\", \"\\e[2J\"]\n", cli.ExitOK},
	} {
		dir := testfiles.FilesIn(t, map[string]string{
			config.FileName:              "version: 1\nsandboxes: [{name: app, token_file: app.token, project: tree}]\n",
			"tree/.egressd/project.yaml": "version: 1\nrego: [policy]\n", "tree/.egressd/policy/p.rego": module, "tree/.egressd/policy/d.yaml": row.data,
		})
		var stdout, stderr strings.Builder
		code := clitest.Run(newPolicy(), []string{"policy", "trust", "--yes", "--config", dir + "/" + config.FileName, dir + "/tree"}, &stdout, &stderr)
		if code != row.code || code == cli.ExitUsage && !strings.Contains(stderr.String(), "of policy/d.yaml holds an invisible character") {
			t.Errorf("%s: exit code %d, want %d: %s", name, code, row.code, &stderr)
		}
	}
}

func TestWhatALongFileLostIsShown(t *testing.T) {
	was, now := "allow: []\ndeny: [never.example]\n", strings.Repeat("#\n", maxDiffLines)+"allow: []\n"
	text := (&treeChange{Name: "project.yaml", Was: &was, Text: &now}).diff()
	for _, want := range []string{"\n-deny: [never.example]\n", "\n+allow: []\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not show %q", want)
		}
	}
}
