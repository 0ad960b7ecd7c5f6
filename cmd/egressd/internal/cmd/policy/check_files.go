package policy

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// A finding is one thing that policy check has to say.
type finding struct {
	Severity string `json:"severity"` // error, warning, lint
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Message  string `json:"message"`
}

func findingsOf(severity string, problems []policy.Problem) (all []finding) {
	for _, p := range problems {
		all = append(all, finding{severity, p.File, p.Line, p.Column, p.Message})
	}
	return all
}

func (f *finding) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, f)
	}
	_, err := fmt.Fprintf(w, "%s:%d:%d: %s: %s\n", printable.Text(f.File), f.Line, f.Column, f.Severity, printable.Text(f.Message))
	return err
}

// check prints what is wrong in the policy file, or in the files and folders at paths.
func (o *policyOptions) check(stdout io.Writer, paths []string) error {
	find := o.checkConfig
	if paths = o.policyFile(paths); len(paths) > 0 {
		find = func() ([]finding, error) {
			return checkRego(rego.Options{Layer: policy.Organisation}, paths)
		}
	}
	all, err := find()
	if err != nil {
		return hint.Unsure(err)
	}
	code := cli.ExitOK
	for i := range all {
		if err := all[i].print(stdout, o.json); err != nil {
			return err
		}
		if all[i].Severity != "warning" {
			code = cli.ExitFailed
		}
	}
	if code != cli.ExitOK {
		return cli.Status(code)
	}
	if len(all) == 0 && !o.json {
		_, err = fmt.Fprintln(stdout, "nothing found")
	}
	return err
}

// checkRego finds what is wrong in files and folders of Rego.
func checkRego(asked rego.Options, paths []string) ([]finding, error) {
	sources, err := config.ReadRego(paths)
	if err != nil {
		return nil, hint.Misused(err, "egressd policy check FILE, or a folder with .rego files; for a request: egressd policy check https://example.com/")
	}
	return checkSources(asked, sources, paths[0])
}

// checkSources finds what is wrong in Rego that was read from where.
func checkSources(asked rego.Options, sources []rego.Source, where string) ([]finding, error) {
	err := loads(asked, sources)
	if err == nil {
		err = asked.CheckTests(sources)
	}
	all, err := asFindings(err, where)
	return append(all, findingsOf("lint", rego.Lint(sources))...), err
}

// policyFile takes a policy file, or a folder with one, as --config does. It returns the
// paths that are left, which are of Rego alone.
func (o *policyOptions) policyFile(paths []string) []string {
	if len(paths) != 1 {
		return paths
	}
	file, ok := policyAt(paths[0])
	if !ok {
		return paths
	}
	o.config = file
	return nil
}

// loads compiles files of which nobody says whose they are: those of package egress,
// and with them or alone those of any sandbox or project.
func loads(asked rego.Options, sources []rego.Source) error {
	if names, egress := rego.Sandboxes(sources); !egress && len(names) == 1 { // named for it alone
		asked.Package, asked.Layer = "egress."+names[0], policy.PerSandbox
	} else {
		asked.Sandboxes = names
	}
	asked.Patient = true
	_, err := rego.Load(sources, asked)
	return err
}

// checkConfig finds what is wrong in the policy file and the Rego that it names.
func (o *policyOptions) checkConfig() ([]finding, error) {
	cfg, err := o.load()
	if err != nil {
		return asFindings(err, "")
	}
	parts, err := cfg.RegoParts(nil)
	if err != nil {
		return nil, err
	}
	var overruled []policy.Problem
	p, err := cfg.Compile()
	if err == nil {
		overruled, err = cfg.Overruled(p), config.CheckTests(parts)
	}
	all, err := asFindings(err, cfg.Path)
	all = append(all, findingsOf("error", cfg.File.OpenListeners())...)
	all = append(all, findingsOf("warning", cfg.File.Unset())...)
	all = append(all, findingsOf("warning", cfg.Doubts())...)
	all = append(all, findingsOf("warning", cfg.Remarks())...)
	all = append(all, findingsOf("warning", overruled)...)
	all = append(all, findingsOf("warning", cfg.UnnamedTests())...)
	all = append(all, projectFindings(cfg)...)
	for _, p := range parts {
		all = append(all, findingsOf("lint", rego.Lint(p.Sources))...)
	}
	return all, err
}

// asFindings turns an error about the text of a policy into findings, and passes
// any other on. One without a place is about the whole of it: where.
func asFindings(err error, where string) ([]finding, error) {
	var problems policy.FileError
	var place *os.PathError
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &problems):
		return findingsOf("error", problems), nil
	case where == "", errors.As(err, &place):
		return nil, err
	}
	return []finding{{"error", where, 1, 1, err.Error()}}, nil
}

// projectFindings are the same for policy check.
func projectFindings(c *config.Config) (all []finding) {
	for _, p := range c.Projects {
		if text := p.Warning(c); text != "" {
			all = append(all, finding{"warning", p.Path(), 1, 1, fmt.Sprintf("it is of sandbox %s and %s", p.Sandbox, text)})
		}
	}
	return all
}
