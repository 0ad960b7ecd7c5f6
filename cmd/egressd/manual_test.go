package main

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// TestManualPoliciesLoad has every policy in the manual compile, with its
// tests green. A part of a policy gets the version that it lacks.
func TestManualPoliciesLoad(t *testing.T) {
	found := 0
	for _, block := range strings.Split(testfiles.Manual(t), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(text, "version:") {
			text = "version: 1\n" + text
		}
		parsed, err := file.Parse("manual.md", []byte(text))
		if err == nil {
			_, err = parsed.Compile(file.Environment{Evaluators: manualRego(t), Shadow: manualRego(t)})
		}
		if err != nil {
			t.Errorf("%v\n%s", err, text)
		}
		found++
	}
	if found == 0 {
		t.Error("the manual holds no policy")
	}
}

// manualRego loads every module in the manual.
func manualRego(t *testing.T) (all []policy.Evaluator) {
	t.Helper()
	for _, block := range strings.Split(testfiles.Manual(t), "```rego\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		e, err := rego.Load([]rego.Source{{Name: "manual.rego", Text: []byte(text)}}, rego.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func TestManualNamesEveryFilterAndCommand(t *testing.T) {
	manual := testfiles.Manual(t)
	for _, key := range logs.FilterKeys {
		if !strings.Contains(manual, "`"+key+":`") {
			t.Errorf("the manual does not name the filter %s:", key)
		}
	}
	for _, name := range cli.CommandNames(cmd.Tree()) {
		if name != "help" && !strings.Contains(manual, "`egressd "+name) {
			t.Errorf("the manual does not name egressd %s", name)
		}
	}
}
