package main

import (
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/policy"
)

// layered reads and compiles the egressd.yaml of a folder, under its
// organisation.yaml where it has one.
func layered(t *testing.T, files map[string]string) (*config, *policy.Policy, error) {
	t.Helper()
	dir := filesIn(t, files)
	c, err := loadConfigUnder(filepath.Join(dir, configName), filepath.Join(dir, "above", "organisation.yaml"))
	if err != nil {
		return nil, nil, err
	}
	p, err := c.compile()
	return c, p, err
}

// decided says who decides about a destination, as "allow by ID (LAYER)".
func decided(t *testing.T, p *policy.Policy, sandbox, subject string) string {
	t.Helper()
	r, err := policy.ParseCheck(subject)
	if err != nil {
		t.Fatal(err)
	}
	r.Sandbox.Name = sandbox
	d, _ := p.Judge(t.Context(), r)
	return d.Verdict.Action() + " by " + cli.RuleText(d.Rule, string(d.Layer))
}

// An expectation is a sandbox, a destination, and who decides about it.
type expectation [3]string

// expect has each of the rows decided.
func expect(t *testing.T, p *policy.Policy, rows []expectation) {
	t.Helper()
	for _, row := range rows {
		if got := decided(t, p, row[0], row[1]); got != row[2] {
			t.Errorf("%s for %s: %s, want %s", row[1], row[0], got, row[2])
		}
	}
}

// configIn writes files into a new folder and reads its egressd.yaml.
func configIn(t *testing.T, files map[string]string) *config {
	t.Helper()
	c, err := loadConfig(filepath.Join(filesIn(t, files), configName))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
