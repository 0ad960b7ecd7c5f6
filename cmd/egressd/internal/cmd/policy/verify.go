package policy

import (
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego/bundle"
	"io"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/spf13/cobra"
)

func newVerify(f *policyFlags) *cobra.Command {
	var key bundle.Key
	var path string
	cmd := &cobra.Command{
		Use:   "verify BUNDLE --key KEY",
		Short: "Verify the signature of a bundle and list its contents",
		Long: `Verify reads a bundle as egressd serve does, checks its signature with the given
public key, and prints its revision, signing time, expiry, roots and files.

Exit codes: 0 good; 1 not good; 2 it could not be read.`,
		Example: `  egressd policy verify bundle.tar.gz --key policy.pub.pem
  egressd policy verify bundle.tar.gz --key policy.pub.pem --json`,
		Args: cli.OneArgument("a bundle", "egressd policy verify bundle.tar.gz --key KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Refuse(cmd, "config"); err != nil {
				return err
			}
			return verifyFile(cmd.OutOrStdout(), args[0], path, &key, f.json)
		},
	}
	cmd.Flags().StringVar(&path, "key", "", "public `KEY` (PEM)")
	cmd.Flags().StringVar(&key.Algorithm, "algorithm", "", "signature algorithm, such as PS256 for an RSA key (default: from the key)")
	cmd.Flags().StringVar(&key.Scope, "scope", "", "required scope of the signature")
	return cmd
}

func verifyFile(stdout io.Writer, path, keyPath string, key *bundle.Key, asJSON bool) error {
	if keyPath == "" {
		return hint.Misused(errors.New("there is no key to verify with"), "egressd policy verify "+shell.Word(path)+" --key KEY")
	}
	var err error
	if key.PEM, err = durable.Read(keyPath, config.MaxKeyBytes); err != nil {
		return hint.Misused(fmt.Errorf("read the public key: %w", err), "egressd policy verify --help")
	}
	packed, err := durable.Read(path, config.MaxBundleBytes)
	if err != nil {
		return hint.Misused(fmt.Errorf("read the bundle: %w", err), "egressd policy verify --help")
	}
	b, err := bundle.Read(packed, key, time.Now())
	if err != nil {
		return hint.Failed(fmt.Errorf("%s: %w", path, err), hintForBundle(err, path))
	}
	v := viewOf(b)
	if asJSON {
		return cli.PrintJSON(stdout, v)
	}
	return v.print(stdout, path)
}

// hintForBundle is what to type about a bundle that is refused.
func hintForBundle(err error, path string) string {
	switch {
	case errors.Is(err, bundle.ErrNotSigned), errors.Is(err, bundle.ErrExpired):
		return "do not use it; whoever made it signs it: egressd policy build --sign KEY " + shell.Word(path)
	case errors.Is(err, bundle.ErrWrongKey):
		return "do not use it; ask whoever signed it for the public key"
	}
	return "do not use it; egressd policy build makes one"
}

// A packedView is what is said about a bundle.
type packedView struct {
	Revision string     `json:"revision"`
	Roots    []string   `json:"roots"`
	Signed   bool       `json:"signed"`
	KeyID    string     `json:"key_id,omitempty"`
	Issued   *time.Time `json:"issued,omitempty"`
	Expires  *time.Time `json:"expires,omitempty"`
	Files    []fileView `json:"files"`
}

type fileView struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

func viewOf(b *bundle.Bundle) packedView {
	v := packedView{Revision: b.Revision, Roots: b.Roots, Signed: b.Signed, KeyID: b.KeyID, Issued: said(b.Issued), Expires: said(b.Expires)}
	for _, s := range b.Sources {
		v.Files = append(v.Files, fileView{s.Name, len(s.Text)})
	}
	return v
}

func said(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (v *packedView) print(w io.Writer, path string) error {
	text := fmt.Sprintf("%s: good\nrevision  %s\nkey       %s\nsigned    %s\nexpires   %s\n", printable.Text(path),
		printable.Text(v.Revision), printable.Text(v.KeyID), timeOr(v.Issued, "not said"), timeOr(v.Expires, "never"))
	for _, root := range v.Roots {
		if root == "" {
			root = "(all)"
		}
		text += fmt.Sprintf("root      %s\n", printable.Text(root))
	}
	for _, f := range v.Files {
		text += fmt.Sprintf("file      %s, %d bytes\n", printable.Text(f.Name), f.Bytes)
	}
	_, err := io.WriteString(w, text)
	return err
}

func timeOr(t *time.Time, otherwise string) string {
	if t == nil {
		return otherwise
	}
	return t.Format(time.RFC3339)
}
