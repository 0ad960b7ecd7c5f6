package codex

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations"
)

func writtenTOML(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings")
	if text != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

var someVariables = []integrations.Variable{{Name: "HTTPS_PROXY", Value: "http://127.0.0.1:3128"}, {Name: "NO_PROXY", Value: ""}}

const codexTable = "[shell_environment_policy.set]\nHTTPS_PROXY = \"http://127.0.0.1:3128\"\nNO_PROXY = \"\"\n"

func TestCodexAddsWhatIsMissing(t *testing.T) {
	for old, want := range map[string]string{
		"":                    codexTable,
		"model = \"gpt\" # x": "model = \"gpt\" # x\n\n" + codexTable,
		"[shell_environment_policy]\ninherit = \"core\"\n[tui]\n": "[shell_environment_policy]\ninherit = \"core\"\n[tui]\n\n" + codexTable,
		"[shell_environment_policy.set] # mine\r\nCI = \"1\"\n":   "[shell_environment_policy.set] # mine\r\nHTTPS_PROXY = \"http://127.0.0.1:3128\"\nNO_PROXY = \"\"\nCI = \"1\"\n",
		codexTable: codexTable,
		"[shell_environment_policy.set]\nNO_PROXY = ''\n[tui]\n": "[shell_environment_policy.set]\nHTTPS_PROXY = \"http://127.0.0.1:3128\"\nNO_PROXY = ''\n[tui]\n",
	} {
		plan, err := Merge(writtenTOML(t, old), someVariables)
		if err != nil {
			t.Errorf("%q: %v", old, err)
			continue
		}
		if got := string(plan.File.New); got != want {
			t.Errorf("%q: came %q, want %q", old, got, want)
		}
		again, err := Merge(writtenTOML(t, string(plan.File.New)), someVariables)
		if err != nil || !again.File.Same() {
			t.Errorf("%q: a second time changes it: %v", old, err)
		}
	}
}

func TestCodexNeverReplaces(t *testing.T) {
	for old, want := range map[string]string{
		"[shell_environment_policy.set]\nNO_PROXY = \"*\"\n":                                               `set.NO_PROXY is "*", and would have to be ""`,
		"shell_environment_policy = {inherit = \"all\"}\n":                                                 "not a table with a header of its own",
		"[shell_environment_policy]\nset = {CI = \"1\"}\n":                                                 "not a table with a header of its own",
		"shell_environment_policy = 1\n":                                                                   "not a table with a header of its own",
		"x = \"\"\"\n[shell_environment_policy.set]\n\"\"\"\n[shell_environment_policy]\nset.CI = \"1\"\n": "without another meaning",
		"model = \n": "it is not TOML",
	} {
		_, err := Merge(writtenTOML(t, old), someVariables)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", old, err, want)
		}
	}
}

func TestCodexOpensNoNetwork(t *testing.T) {
	plan, err := Merge(writtenTOML(t, "[sandbox_workspace_write]\nnetwork_access = false\n[shell_environment_policy]\ninclude_only = [\"PATH\"]\n"), someVariables)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(plan.File.New), "network_access = true") || len(plan.Notes) != 4 {
		t.Errorf("came %s\n%q", plan.File.New, plan.Notes)
	}
}

func FuzzMergeTOMLChangesNothingElse(f *testing.F) {
	f.Add(codexTable + "[a.b]\nc = 1979-05-27\n")
	f.Fuzz(func(t *testing.T, text string) {
		if plan, err := Merge(writtenTOML(t, text), someVariables); err == nil {
			if again, err := Merge(writtenTOML(t, string(plan.File.New)), someVariables); err != nil || !again.File.Same() {
				t.Errorf("%q, then %q: %v", text, plan.File.New, err)
			}
		}
	})
}
