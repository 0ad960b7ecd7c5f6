package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newTrust(f *policyFlags) *cobra.Command {
	var o trustOptions
	cmd := &cobra.Command{
		Use:   "trust DIR|FILE",
		Short: "Trust the policy file inside a repository",
		Long: `A sandbox with the key project reads DIR/.egressd/project.yaml as one more layer of its
policy. Programs in the sandbox can write that file, so egressd applies it only in
the exact version that you trusted.

Trust shows the file, or what changed since you last trusted it, and which of its
rules open something. With --yes it stores a copy, which counts as long as the
repository has the same version. --digest makes sure that you trust what you saw.

When the file changes, its allow rules stop counting until you trust the new version.
Its deny rules still count. A revoked file has no effect.

A policy file that lies in the working tree of a program under egressd run can be
changed by that program. Then no run reads it until you look at it, and accept it
with policy trust --yes FILE.

Exit codes: 0 done, or trusted already; 1 shown and not trusted; 2 it could not be
read.`,
		Example: `  egressd policy trust ~/src/app
  egressd policy trust --yes --digest sha256:2c26b46b68ff ~/src/app
  egressd policy trust --yes egressd.yaml
  egressd policy trust --list
  egressd policy trust --revoke ~/src/app`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	cmd.Flags().BoolVar(&o.yes, "yes", false, "trust the current version")
	cmd.Flags().StringVar(&o.digest, "digest", "", "with --yes: trust it only if its digest begins with `DIGEST`")
	cmd.Flags().BoolVar(&o.list, "list", false, "list trusted repositories")
	cmd.Flags().BoolVar(&o.revoke, "revoke", false, "stop trusting DIR")
	return cmd
}

type trustOptions struct {
	config, digest          string
	yes, list, revoke, json bool
}

func (o *trustOptions) run(stdout, stderr io.Writer, args []string) error {
	if err := o.check(args); err != nil {
		return err
	}
	store, err := config.OpenTrustStore()
	if err != nil {
		return hint.Misused(err, "HOME=/home/NAME egressd policy trust DIR")
	}
	if o.list {
		return o.printAll(stdout, stderr, store)
	}
	if o.revoke {
		return revokeTrust(stderr, store, o.config, args[0])
	}
	if info, err := os.Stat(args[0]); err == nil && info.Mode().IsRegular() {
		return o.accept(stderr, args[0])
	}
	v, err := o.look(store, args[0])
	if err != nil {
		return err
	}
	if o.digest != "" && !strings.HasPrefix(v.Digest, o.digest) {
		return hint.Failed(fmt.Errorf("%s is not what was shown: its digest is %s", v.Dir, v.Digest), "egressd policy trust "+shell.Word(v.Dir)+", to see what it is now")
	}
	if err := v.print(stdout, stderr, o.json); err != nil {
		return err
	}
	return o.settle(stderr, store, v)
}

// minDigest is how much of a digest has to be given: nobody makes another tree with
// the same beginning.
const minDigest = len("sha256:") + 32

func (o *trustOptions) check(args []string) error {
	switch {
	case o.list && (len(args) > 0 || o.revoke || o.yes):
		return hint.Misused(errors.New("--list stands alone"), "egressd policy trust --list")
	case o.list:
		return nil
	case len(args) != 1:
		return hint.Misused(errors.New("trust wants one working tree"), "egressd policy trust DIR, or egressd policy trust --list")
	case o.revoke && (o.yes || o.digest != ""):
		return hint.Misused(errors.New("--revoke takes trust away, and --yes gives it"), "egressd policy trust --revoke "+shell.Word(args[0]))
	case o.digest != "" && (!o.yes || len(o.digest) < minDigest):
		return hint.Misused(errors.New("--digest goes with --yes, and is sha256: and at least 32 digits"), "egressd policy trust "+shell.Word(args[0]))
	}
	return nil
}

func (o *trustOptions) settle(stderr io.Writer, store config.TrustStore, v *trustView) error {
	switch {
	case v.State == config.ProjectTrusted:
		fmt.Fprintf(stderr, "egressd: %s is trusted already, as it is\n", printable.Text(v.Dir))
		return nil
	case !o.yes:
		again := "egressd policy trust --yes --digest " + v.Digest[:minDigest] + source.ConfigFlag(o.config) + " "
		hint.Sayf(stderr, "to trust it as shown: %s%s", again, shell.Word(v.Dir))
		return cli.Status(cli.ExitFailed)
	}
	p := &config.Pin{Dir: v.Dir, Digest: v.Digest, Trusted: time.Now().UTC().Truncate(time.Second), Files: v.tree}
	if err := store.Put(p); err != nil {
		return hint.Failed(fmt.Errorf("keep what is trusted: %w", err), "the same again, as a user who may write in "+string(store))
	}
	fmt.Fprintf(stderr, "egressd: trusted %s (%.19s…)\n", printable.Text(v.Dir), v.Digest)
	return nil
}

// accept lets runs read a policy file that a program could have changed.
func (o *trustOptions) accept(stderr io.Writer, path string) error {
	if !o.yes {
		hint.Sayf(stderr, "look at it, then egressd policy trust --yes %s", shell.Word(path))
		return cli.Status(cli.ExitFailed)
	}
	notes, err := config.OpenTreePolicies()
	if err == nil {
		err = notes.Accept(path)
	}
	if err != nil {
		return hint.Failed(err, "the same again, as the user who runs egressd")
	}
	fmt.Fprintf(stderr, "egressd: trusted %s as it is\n", printable.Text(path))
	return nil
}

// look reads a working tree and what becomes of it.
func (o *trustOptions) look(store config.TrustStore, arg string) (*trustView, error) {
	cfg, err := config.Load(o.config)
	if err != nil {
		return nil, err
	}
	dir, sandboxes := cfg.TreesAt(arg)
	was, err := store.Find(dir)
	if err != nil {
		return nil, hint.Misused(err, "egressd policy trust --revoke "+shell.Word(arg))
	}
	found, err := config.ReadTree(dir, nil)
	if err != nil {
		return nil, hint.Misused(unreadable(dir, err), "write "+filepath.Join(dir, config.TreeFolder, config.TreeFile)+", or correct it")
	}
	file, err := found.Parse(dir)
	if err != nil {
		return nil, hint.Misused(err, "correct "+filepath.Join(dir, config.TreeFolder, config.TreeFile))
	}
	if err := found.Legible(); err != nil {
		return nil, hint.Misused(fmt.Errorf("%s: %w", filepath.Join(dir, config.TreeFolder), err), "remove it, then egressd policy trust "+shell.Word(arg))
	}
	v := &trustView{Dir: dir, State: config.ProjectUntrusted, Digest: found.Digest(), tree: found, Whose: sandboxes, Rules: []ruleView{}}
	if was != nil {
		v.State = config.ProjectChanged
		if was.Files.Equal(found) {
			v.State = config.ProjectTrusted
		}
	}
	v.Files = changesOf(was, found)
	if len(sandboxes) == 0 {
		v.notes = append(v.notes, fmt.Sprintf("no sandbox of %s has it as its project; write project: %s there", cfg.Path, shell.Word(dir)))
		return v, nil
	}
	v.Sandbox = sandboxes[0]
	return v, foresee(cfg, v, file)
}

func unreadable(dir string, err error) error {
	switch {
	case errors.As(err, new(policy.FileError)):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no project in %s: %w", dir, err)
	}
	return fmt.Errorf("%s: %w", filepath.Join(dir, config.TreeFolder), err)
}

// foresee says what each rule would open if the tree were trusted. The tests are run,
// too: those of a trusted project refuse a reload when they are red.
func foresee(c *config.Config, v *trustView, project *file.File) error {
	next := *c
	p := &config.Project{Dir: v.Dir, State: config.ProjectTrusted, File: project, Pin: &config.Pin{Dir: v.Dir, Files: v.tree}}
	next.Projects = []*config.Project{}
	for _, name := range v.Whose {
		one := *p
		one.Sandbox = name
		next.Projects = append(next.Projects, &one)
	}
	compiled, err := next.Compile()
	if err != nil {
		return err
	}
	if text := p.Warning(&next); text != "" {
		v.notes = append(v.notes, "it "+text)
	}
	for _, rule := range project.Allow {
		v.Rules = append(v.Rules, loosestView(rule.ID, rule.Pattern, compiled, v.Whose))
	}
	presets, err := file.PresetRules(project.Presets...)
	if err != nil {
		return err
	}
	for _, rule := range presets {
		v.Rules = append(v.Rules, loosestView(rule.ID, rule.Pattern, compiled, v.Whose))
	}
	if len(project.Rego) > 0 {
		v.notes = append(v.notes, "what its Rego opens is for you to read: no list of it can be made")
	}
	return nil
}

func revokeTrust(stderr io.Writer, store config.TrustStore, configFile, arg string) error {
	dir, err := filepath.Abs(arg)
	if err != nil {
		return hint.Misused(err, "egressd policy trust --list")
	}
	if cfg, err := config.Load(configFile); err == nil { // the name that it has there; it can be revoked without
		dir, _ = cfg.TreesAt(arg)
	}
	there, err := store.Remove(dir)
	switch {
	case err != nil:
		return hint.Failed(fmt.Errorf("revoke: %w", err), "the same again, as a user who may write in "+string(store))
	case !there:
		return hint.Failed(fmt.Errorf("%s is not trusted", dir), "egressd policy trust --list")
	}
	fmt.Fprintf(stderr, "egressd: %s is trusted no longer\n", printable.Text(dir))
	return nil
}

// A pinView is what is said about one working tree in a list.
type pinView struct {
	Dir     string              `json:"dir"`
	State   config.ProjectState `json:"state"`
	Digest  string              `json:"digest"`
	Trusted time.Time           `json:"trusted"`
}

func (o *trustOptions) printAll(stdout, stderr io.Writer, store config.TrustStore) error {
	pins, problem := store.All()
	slices.SortFunc(pins, func(a, b *config.Pin) int { return strings.Compare(a.Dir, b.Dir) })
	for _, p := range pins {
		one := config.Project{Dir: p.Dir, Pin: p}
		state, _ := one.Now()
		var err error
		if o.json {
			err = cli.PrintJSON(stdout, pinView{p.Dir, state, p.Digest, p.Trusted})
		} else {
			_, err = fmt.Fprintf(stdout, "%-8s %.19s…  %s  %s\n", state, p.Digest, p.Trusted.Format(time.RFC3339), printable.Text(p.Dir))
		}
		if err != nil {
			return err
		}
	}
	if problem != nil {
		return hint.Failed(problem, "egressd policy trust DIR, after removing what is wrong there")
	}
	if len(pins) == 0 && !o.json {
		fmt.Fprintln(stderr, "egressd: nothing is trusted")
	}
	return nil
}
