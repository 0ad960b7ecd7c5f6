package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego/bundle"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/spf13/cobra"
)

func newBuild(f *policyFlags) *cobra.Command {
	var o policyBuildOptions
	cmd := &cobra.Command{
		Use:   "build [PATH…|BUNDLE]",
		Short: "Pack Rego into a bundle and sign it; make keys, and helpers for opa",
		Long: `Build packs the Rego of the policy file, or files and folders at PATH, into an OPA
bundle. It first runs the checks of policy check and the tests of policy test, and
writes nothing if one fails. The same files give the same bundle.

Names in the bundle begin at the folder that holds all files. All data becomes one
data.json. Tests are left out unless you add --tests.

--sign adds an OPA signature over every file. With a BUNDLE in place of paths, build
signs that one, and replaces an old signature. It refuses a bundle that egressd could
not read, or whose policy does not load.

--keygen NAME makes a key pair: NAME.key.pem, readable only by you and not encrypted,
and NAME.pub.pem. It replaces no file. ECDSA on P-256 (ES256) works with every OPA.
With --algorithm EdDSA they are Ed25519 keys, which work with egressd and the opa
command, but not with an OPA server's configuration.

--library DIR writes what other Rego tools need to read an egressd policy: its functions
(host.any, path.matches, …) in plain Rego, the schema of the input, and the allowed
parts of the language. With a PATH it also writes the short names by which those
packages call the functions. Keep DIR out of the folders that the key rego names. The
folder is rewritten, and must hold nothing else.

  opa test policy/ library/
  opa check --strict --schema library/input.schema policy/ library/
  opa build --capabilities library/egressd.capabilities -b policy/

Exit codes: 0 written; 1 the policy has a problem, or the file could not be
written; 2 it could not be checked.`,
		Example: `  egressd policy build -o bundle.tar.gz
  egressd policy build policy/ -o bundle.tar.gz --revision "$(git rev-parse HEAD)"
  egressd policy build -o bundle.tar.gz --sign policy.key.pem --valid 720h
  egressd policy build --sign policy.key.pem --valid 720h bundle.tar.gz
  egressd policy build --keygen policy
  egressd policy build --library library policy/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			switch {
			case o.keygen != "" && len(args) > 0:
				return hint.Misused(fmt.Errorf("--keygen packs nothing, and was given %q", args[0]), "egressd policy build --keygen NAME")
			case o.keygen != "":
				return makeKeys(cmd.OutOrStdout(), cmd.ErrOrStderr(), o.keygen, o.sign.algorithm, o.json)
			case o.library != "":
				return writeLibrary(cmd.ErrOrStderr(), o.config, o.library, args)
			case len(args) == 1 && isBundle(args[0]):
				if !cmd.Flags().Changed("output") {
					o.output = args[0]
				}
				return signFile(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], o.output, &o.sign, o.json)
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "bundle.tar.gz", "`FILE` to write or replace")
	cmd.Flags().StringVar(&o.bundle.Revision, "revision", "", "name of this version (default: a hash of the contents)")
	cmd.Flags().StringSliceVar(&o.bundle.Roots, "root", nil, "data `PATH` that the bundle owns, such as egress or acme/lists (default: egress and all that the files define)")
	cmd.Flags().BoolVar(&o.tests, "tests", false, "include the tests")
	cmd.Flags().StringVar(&o.sign.key, "sign", "", "sign with this private `KEY` (PEM)")
	o.sign.flags(cmd)
	cmd.Flags().StringVar(&o.keygen, "keygen", "", "make a key pair instead, with `NAME` at the start of both file names")
	cmd.Flags().StringVar(&o.library, "library", "", "write helper files for opa and other Rego tools into `DIR` instead")
	cmd.MarkFlagsMutuallyExclusive("keygen", "library", "sign")
	cmd.MarkFlagsMutuallyExclusive("keygen", "library", "output")
	return cmd
}

type policyBuildOptions struct {
	policyOptions
	output string
	bundle bundle.BuildOptions
	tests  bool
	sign   signOptions

	keygen, library string
}

// isBundle reports whether a path is written like that of a bundle.
func isBundle(path string) bool {
	return strings.HasSuffix(path, ".tar.gz") || strings.HasSuffix(path, ".tgz")
}

func (o *policyBuildOptions) run(ctx context.Context, stdout, stderr io.Writer, paths []string) error {
	if o.sign.key == "" && o.sign.given() {
		return hint.Misused(errors.New("--valid, --key-id, --scope and --algorithm are about a signature"), "egressd policy build --sign KEY, too")
	}
	paths = o.policyFile(paths)
	sources, err := o.sources(stderr, paths)
	if err != nil {
		return hint.Unsure(err)
	}
	if err := o.refuse(ctx, stderr, sources, paths); err != nil {
		return err
	}
	packed, err := o.pack(sources)
	if err != nil {
		return hint.Failed(err, "correct that, then egressd policy build")
	}
	if o.sign.key != "" {
		if packed, err = o.sign.apply(stderr, packed, time.Now()); err != nil {
			return err
		}
	}
	if err := putFile(o.output, packed, 0o644); err != nil {
		return hint.Failed(fmt.Errorf("write the bundle: %w", err), "egressd policy build -o FILE, where FILE can be written")
	}
	return o.done(stdout, packed)
}

// sources reads what is to be packed.
func (o *policyBuildOptions) sources(stderr io.Writer, paths []string) ([]rego.Source, error) {
	if len(paths) == 0 {
		return o.ofConfig(stderr)
	}
	sources, err := config.ReadRego(paths)
	if err != nil {
		return nil, hint.Misused(err, "egressd policy build FILE…, or a folder with .rego files")
	}
	return sources, nil
}

// ofConfig reads the plain files and folders of the policy file that are in force, which are
// a policy together, and says what else there is.
func (o *policyBuildOptions) ofConfig(stderr io.Writer) (sources []rego.Source, err error) {
	cfg, err := config.Load(o.config)
	if err != nil {
		return nil, err
	}
	parts, err := cfg.RegoParts(nil)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		switch {
		case p.Source.Shadow:
			fmt.Fprintf(stderr, "egressd: warning: %s is in shadow, and is not packed\n", p.At)
		case p.File == cfg.Path && config.PlainSource(p.Source) && p.Sandbox == "":
			sources = append(sources, p.Sources...)
		default:
			fmt.Fprintf(stderr, "egressd: warning: %s is a policy for itself, and is not packed\n", p.At)
		}
	}
	if len(sources) == 0 {
		return nil, hint.Misused(fmt.Errorf("%s names no Rego to pack", cfg.Path), "egressd policy build policy/")
	}
	return sources, nil
}

// packsConfig reports whether the policy file names Rego to pack.
func (o *policyBuildOptions) packsConfig() bool {
	sources, err := o.ofConfig(io.Discard)
	return err == nil && len(sources) > 0
}

// refuse prints the problems of a policy to stderr, and returns an error if there are any.
func (o *policyBuildOptions) refuse(ctx context.Context, stderr io.Writer, sources []rego.Source, paths []string) error {
	find := o.checkConfig // with the tests that stand in the file
	if len(paths) > 0 {
		find = func() ([]finding, error) {
			return checkSources(rego.Options{Layer: policy.Organisation}, sources, paths[0])
		}
	}
	all, err := find()
	if err != nil {
		return hint.Unsure(err)
	}
	for i := range all {
		if err := all[i].print(stderr, false); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(all, func(f finding) bool { return f.Severity != "warning" }) {
		return hint.Failed(errors.New("something is wrong with the policy, and nothing was packed"), "correct that, then egressd policy build")
	}
	return refuseRed(ctx, stderr, sources)
}

// refuseRed runs the tests among the files.
func refuseRed(ctx context.Context, stderr io.Writer, sources []rego.Source) error {
	views, _, err := testSources(ctx, rego.Options{}, sources)
	if err != nil {
		return hint.Unsure(err)
	}
	red := false
	var b strings.Builder
	for i := range views {
		views[i].write(&b, cli.PaletteFor(stderr))
		red = red || views[i].Outcome == rego.Fail
	}
	if len(views) == 0 {
		b.WriteString("egressd: warning: no rule of the Rego is tested\negressd: hint: write rules test_NAME into a file NAME_test.rego\n")
	}
	if _, err := io.WriteString(stderr, b.String()); err != nil {
		return err
	}
	if red {
		return hint.Failed(errors.New("a test failed, and nothing was packed"), "correct that, then egressd policy build")
	}
	return nil
}

// pack builds a bundle that loads. Its revision, where none was given, is a hash of it.
func (o *policyBuildOptions) pack(sources []rego.Source) ([]byte, error) {
	if !o.tests {
		sources = slices.DeleteFunc(slices.Clone(sources), func(s rego.Source) bool { return !s.Decides() })
	}
	sources = fromOneFolder(sources)
	packed, err := bundle.Build(sources, o.bundle)
	if err == nil && o.bundle.Revision == "" {
		sum := sha256.Sum256(packed)
		o.bundle.Revision = hex.EncodeToString(sum[:8])
		packed, err = bundle.Build(sources, o.bundle)
	}
	if err != nil {
		return nil, err
	}
	b, err := bundle.Read(packed, nil, time.Time{})
	if err == nil {
		_, err = rego.Load(b.Sources, rego.Options{Layer: policy.Organisation})
	}
	return packed, err
}

// fromOneFolder names files as seen from the folder that holds all of them, so that
// a bundle is the same wherever they lie.
func fromOneFolder(sources []rego.Source) []rego.Source {
	if len(sources) == 0 {
		return nil
	}
	folder := filepath.Dir(sources[0].Name)
	for _, s := range sources {
		for !inFolder(folder, s.Name) {
			folder = filepath.Dir(folder)
		}
	}
	all := slices.Clone(sources)
	for i, s := range all {
		if rel, err := filepath.Rel(folder, s.Name); err == nil {
			all[i].Name = filepath.ToSlash(rel)
		}
	}
	return all
}

// inFolder reports whether a path lies below a folder, both cleaned and both relative or
// both absolute.
func inFolder(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) || folder == filepath.Dir(folder)
}

// A builtView is what a script is told about a bundle that was written.
type builtView struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	packedView
}

func (o *policyBuildOptions) done(stdout io.Writer, packed []byte) error {
	b, err := bundle.Read(packed, nil, time.Time{})
	if err != nil {
		return err
	}
	if o.json {
		sum := sha256.Sum256(packed)
		v := builtView{Path: o.output, SHA256: hex.EncodeToString(sum[:]), packedView: viewOf(b)}
		v.Signed = o.sign.key != ""
		return cli.PrintJSON(stdout, v)
	}
	signed := "not signed"
	if o.sign.key != "" {
		signed = "signed"
	}
	_, err = fmt.Fprintf(stdout, "%s: revision %s, %d files, %s\n", printable.Text(o.output), printable.Text(b.Revision), len(b.Sources), signed)
	return err
}

// putFile writes a file in one step, in the place of one that is there, so that whoever
// reads it never gets half of it. A symbolic link is followed.
func putFile(path string, text []byte, mode os.FileMode) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", path)
	}
	return durable.Replace(path, text, mode)
}
