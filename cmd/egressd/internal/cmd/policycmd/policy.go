package policycmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/spf13/cobra"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Test, check, explain, import and sign policies",
		Long: `These commands work on the policy file, the organisation's file, trusted projects
and the Rego that they name. With a PATH they work on that policy file, on the
policy file in that folder, or on Rego files and folders alone. They name the file
that they judge, send nothing and need no daemon.`,
		Example: `  egressd policy test
  egressd policy check policy/
  egressd policy fmt -w policy/`,
		RunE: cli.RunGroup,
	}
	cmd.AddCommand(newPolicyTestCommand(), newPolicyCheckCommand(), newPolicyFmtCommand(), newPolicyInitCommand(),
		newPolicyBuildCommand(), newPolicyKeygenCommand(), newPolicySignCommand(), newPolicyVerifyCommand(),
		newPolicyExplainCommand(), newPolicyListCommand(), newPolicyStatusCommand(), newPolicyLibraryCommand(),
		newPolicyImportCommand(), newPolicyExportCommand(), newPolicyPresetsCommand())
	return cmd
}

func newPolicyCheckCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "check [PATH…]",
		Short: "Find errors and likely mistakes in a policy",
		Long: `Check reads the policy file and its Rego as egressd serve would, and runs the tests
in the file. It prints errors, warnings (allowed, but seldom meant) and lints
(conditions that also hold for hosts of other people). With a PATH it checks that
policy file, the policy file in that folder, or Rego files and folders alone.

Exit codes: 0 nothing, or only warnings; 1 an error or a lint; 2 it could not be
checked.`,
		Example: `  egressd policy check
  egressd policy check --config ./egressd.yaml --json
  egressd policy check policy/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.stderr = cmd.ErrOrStderr()
			return o.check(cmd.OutOrStdout(), args)
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JSONFlag(cmd, &o.json)
	return cmd
}

type policyOptions struct {
	config string
	above  string // the organisation's file, where a test has another
	json   bool
	stderr io.Writer // where the file that is judged is named; nil: nowhere
}

func (o *policyOptions) load() (*config.Config, error) {
	c, err := config.LoadUnder(o.config, cmp.Or(o.above, config.OrganisationPath))
	if err == nil {
		c.Patient = true
	}
	if err == nil && o.stderr != nil && !o.json {
		sayJudged(o.stderr, c, o.config != "")
	}
	return c, err
}

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
		return nil, hint.Misused(err, "egressd policy check FILE, or a folder with .rego files")
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

func newPolicyFmtCommand() *cobra.Command {
	var write, diff, rewrite bool
	cmd := &cobra.Command{
		Use:   "fmt [-w|-d] [--rewrite-v0] PATH…",
		Short: "Format Rego files",
		Long: `Fmt prints the Rego files at PATH in the layout of "opa fmt". -d shows only the
changes, -w writes the files. --rewrite-v0 rewrites modules of Rego v0, as they were
written before OPA 1.0.

Exit codes: 0 done (with -d: nothing to change); 1 with -d: something to change;
2 a file could not be read or is not Rego.`,
		Example: `  egressd policy fmt -d policy/
  egressd policy fmt -w policy/egress.rego
  egressd policy fmt -w --rewrite-v0 policy/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			format := rego.Format
			if rewrite {
				format = rego.Rewrite
			}
			return formatFiles(cmd.OutOrStdout(), args, format, write, diff)
		},
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the files instead of printing them")
	cmd.Flags().BoolVarP(&diff, "diff", "d", false, "print only the changes")
	cmd.Flags().BoolVar(&rewrite, "rewrite-v0", false, "rewrite modules of Rego v0")
	return cmd
}

func formatFiles(stdout io.Writer, paths []string, format func(rego.Source) ([]byte, error), write, diff bool) error {
	switch {
	case len(paths) == 0:
		return hint.Misused(errors.New("there is nothing to format"), "egressd policy fmt policy/")
	case write && diff:
		return hint.Misused(errors.New("-w writes the changes and -d only shows them"), "egressd policy fmt -d "+shell.Word(paths[0]))
	}
	sources, err := config.ReadRego(paths)
	if err != nil {
		return hint.Misused(err, "egressd policy fmt FILE, or a folder with .rego files")
	}
	sources = slices.DeleteFunc(sources, func(s rego.Source) bool { return filepath.Ext(s.Name) != ".rego" })
	if len(sources) == 0 {
		return hint.Misused(errors.New("there is no file that ends in .rego"), "egressd policy fmt FILE, or a folder with .rego files")
	}
	changed := false
	for _, s := range sources {
		text, err := format(s)
		if err != nil {
			return hint.Misused(err, "correct that, then egressd policy fmt "+shell.Word(s.Name))
		}
		changed = changed || string(text) != string(s.Text)
		if err := putFormatted(stdout, s, text, write, diff); err != nil {
			return err
		}
	}
	if diff && changed {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}

func putFormatted(stdout io.Writer, s rego.Source, text []byte, write, diff bool) error {
	same := string(text) == string(s.Text)
	switch {
	case (write || diff) && same:
		return nil
	case write:
		if _, err := config.ReplaceFile(s.Name, s.Text, text); err != nil {
			return hint.Failed(err, "egressd policy fmt -d "+shell.Word(s.Name))
		}
		return nil
	case diff:
		_, err := io.WriteString(stdout, edit.UnifiedDiff(s.Name, s.Name, string(s.Text), string(text)))
		return err
	}
	_, err := stdout.Write(text)
	return err
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
