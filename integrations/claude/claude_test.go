package claude

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations"
)

func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings")
	if text != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

const claudeWhole = `{
  "sandbox": {
    "enabled": true,
    "network": {
      "httpProxyPort": 3128,
      "socksProxyPort": 3128
    }
  }
}
`

func TestClaudeAddsWhatIsMissing(t *testing.T) {
	for name, row := range map[string]struct{ old, want string }{
		"no file":      {"", claudeWhole},
		"empty object": {"{}\n", claudeWhole},
		"done already": {claudeWhole, claudeWhole},
		"another setting, indented by tabs": {
			"{\n\t\"model\": \"opus\"\n}\n",
			"{\n\t\"model\": \"opus\",\n\t\"sandbox\": {\n",
		},
		"comments stay": {
			"{\n  // mine\n  \"sandbox\": {\"enabled\": true /* on */, \"network\": {\"allowedDomains\": [\"a.test\"]}}, // end\n}\n",
			"/* on */, \"network\": {\"allowedDomains\": [\"a.test\"],\"httpProxyPort\": 3128,\"socksProxyPort\": 3128}}, // end\n",
		},
		"a comment at the end": {
			"{\n  \"model\": \"opus\" // mine\n}\n",
			"{\n  \"model\": \"opus\", // mine\n  \"sandbox\": {\n    \"enabled\": true,\n",
		},
		"a comment alone":    {"{ // mine\n}\n", "{ // mine\n  \"sandbox\": {\n"},
		"a comma at the end": {"{\n  \"model\": \"opus\",\n}\n", "    }\n  },\n}\n"},
		"one of the ports is there": {
			`{"sandbox":{"enabled":true,"network":{"httpProxyPort":3128}}}`,
			`{"sandbox":{"enabled":true,"network":{"httpProxyPort":3128,"socksProxyPort": 3128}}}`,
		},
		"numbers that a float has no room for": {
			`{"x": 12345678901234567890, "sandbox": {"enabled": true, "network": {}}}`,
			`{"x": 12345678901234567890, "sandbox": {"enabled": true, "network": {`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := Merge(written(t, row.old), 3128)
			if err != nil {
				t.Fatal(err)
			}
			got := string(plan.File.New)
			if !strings.Contains(got, row.want) {
				t.Errorf("came %s, want %s", got, row.want)
			}
			if plan.File.Same() != (row.old == claudeWhole) {
				t.Errorf("same: %t", plan.File.Same())
			}
			again, err := Merge(written(t, got), 3128)
			if err != nil || !again.File.Same() {
				t.Errorf("a second time changes it: %v\n%s", err, again.File.New)
			}
		})
	}
}

func TestClaudeNeverReplaces(t *testing.T) {
	for old, want := range map[string]string{
		`{"sandbox": {"enabled": false}}`:                                 "sandbox.enabled is false, and would have to be true",
		`{"sandbox": {"enabled": true, "network": {"httpProxyPort": 1}}}`: "sandbox.network.httpProxyPort is 1, and would have to be 3128",
		`{"sandbox": {"network": {"socksProxyPort": "3128"}}}`:            `sandbox.network.socksProxyPort is "3128", and would`,
		`{"sandbox": {"enabled": true /* x */, "network": null}}`:         "sandbox.network is no object",
		`[]`:                             "the file is no object",
		`{"sandbox": {}, "sandbox": {}}`: "it has sandbox twice",
		`{"model": `:                     "it is not JSON",
		"\x00":                           "it is not text",
	} {
		_, err := Merge(written(t, old), 3128)
		var conflict *integrations.ConflictError
		var shape *integrations.ShapeError
		if !errors.As(err, &conflict) && !errors.As(err, &shape) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", old, err, want)
		}
	}
}

func TestClaudeIsToldWhatItMeans(t *testing.T) {
	for old, want := range map[string]int{
		"": 2,
		`{"sandbox": {"network": {"deniedDomains": ["a.test"]}}}`: 3,
		`{"sandbox": {"allowUnsandboxedCommands": false}}`:        1,
	} {
		plan, err := Merge(written(t, old), 3128)
		if err != nil || len(plan.Notes) != want {
			t.Errorf("%s: %v %q, want %d notes", old, err, plan.Notes, want)
		}
	}
}

func FuzzMergeChangesNothingElse(f *testing.F) {
	f.Add(claudeWhole)
	f.Add("{// x\n}")
	f.Fuzz(func(t *testing.T, text string) {
		if plan, err := Merge(written(t, text), 3128); err == nil {
			if again, err := Merge(written(t, string(plan.File.New)), 3128); err != nil || !again.File.Same() {
				t.Errorf("%q, then %q: %v", text, plan.File.New, err)
			}
		}
	})
}
