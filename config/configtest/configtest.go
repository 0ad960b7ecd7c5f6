// Package configtest creates configurations for tests and checks their decisions.
package configtest

import (
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// Layered loads and compiles the egressd.yaml of a folder, under its organisation.yaml if there is one.
func Layered(t *testing.T, files map[string]string) (*config.Config, *policy.Policy, error) {
	t.Helper()
	dir := testfiles.FilesIn(t, files)
	c, err := config.LoadUnder(filepath.Join(dir, config.FileName), filepath.Join(dir, "above", "organisation.yaml"))
	if err != nil {
		return nil, nil, err
	}
	p, err := c.Compile()
	return c, p, err
}

// decided returns the decision about a destination as "allow by ID (LAYER)".
func decided(t *testing.T, p *policy.Policy, sandbox, subject string) string {
	t.Helper()
	r, err := file.ParseCheck(subject)
	if err != nil {
		t.Fatal(err)
	}
	r.Sandbox.Name = sandbox
	d, _ := p.Judge(t.Context(), r)
	return d.Verdict.Action() + " by " + printable.Rule(d.Rule, string(d.Layer))
}

// A Row holds a sandbox, a destination and the expected decision.
type Row [3]string

// Expect checks the decisions of all rows.
func Expect(t *testing.T, p *policy.Policy, rows []Row) {
	t.Helper()
	for _, row := range rows {
		if got := decided(t, p, row[0], row[1]); got != row[2] {
			t.Errorf("%s for %s: %s, want %s", row[1], row[0], got, row[2])
		}
	}
}

// In writes files into a new folder and loads its egressd.yaml.
func In(t *testing.T, files map[string]string) *config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join(testfiles.FilesIn(t, files), config.FileName))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
