package policycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/spf13/cobra"
)

// signOptions are how a bundle is signed.
type signOptions struct {
	key, keyID, scope, algorithm string
	valid                        time.Duration
}

func (o *signOptions) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&o.valid, "valid", 0, "how long the signature is valid, such as 720h (default: forever)")
	cmd.Flags().StringVar(&o.keyID, "key-id", "", "key id by which an OPA server finds the key (default: a fingerprint)")
	cmd.Flags().StringVar(&o.scope, "scope", "", "scope of the signature; the verifier must name the same")
	cmd.Flags().StringVar(&o.algorithm, "algorithm", "", "signature algorithm, such as PS256 for an RSA key (default: from the key)")
}

func (o *signOptions) given() bool {
	return o.valid != 0 || o.keyID != "" || o.scope != "" || o.algorithm != ""
}

func (o *signOptions) apply(stderr io.Writer, packed []byte, now time.Time) ([]byte, error) {
	if o.valid != 0 && o.valid < time.Second {
		return nil, hint.Misused(fmt.Errorf("a signature cannot be good for %s", o.valid), "--valid 720h, for thirty days")
	}
	key, err := durable.Read(o.key, config.MaxKeyBytes)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("read the private key: %w", err), "egressd policy keygen, for a new one")
	}
	warnOfLooseKey(stderr, o.key)
	signed, err := rego.SignBundle(packed, rego.SignOptions{
		KeyPEM: key, Algorithm: o.algorithm, KeyID: o.keyID, Scope: o.scope, Now: now, Valid: o.valid,
	})
	if err != nil {
		return nil, hint.Failed(err, "egressd policy sign --help")
	}
	return signed, nil
}

func warnOfLooseKey(stderr io.Writer, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		fmt.Fprintf(stderr, "egressd: warning: %s can be read or written by others (mode %04o)\n", printable.Text(path), info.Mode().Perm())
		fmt.Fprintf(stderr, "egressd: hint: chmod 600 %s\n", printable.Text(shell.Word(path)))
	}
}

func newPolicySignCommand() *cobra.Command {
	var o signOptions
	var output string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sign BUNDLE --key KEY",
		Short: "Sign a bundle",
		Long: `Sign adds an OPA signature over every file to a bundle, and replaces an old one. It
refuses a bundle that egressd could not read, or whose policy does not load.`,
		Example: `  egressd policy sign bundle.tar.gz --key policy.key.pem --valid 720h
  egressd policy sign bundle.tar.gz --key policy.key.pem --key-id team-net -o signed.tar.gz`,
		Args: cli.OneArgument("a bundle", "egressd policy sign bundle.tar.gz --key KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return signFile(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], output, &o, asJSON)
		},
	}
	cmd.Flags().StringVar(&o.key, "key", "", "private `KEY`: PEM, not encrypted")
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE` to write (default: replace the bundle)")
	o.flags(cmd)
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func signFile(stdout, stderr io.Writer, path, output string, o *signOptions, asJSON bool) error {
	if o.key == "" {
		return hint.Misused(errors.New("there is no key to sign with"), "egressd policy sign "+shell.Word(path)+" --key KEY, or egressd policy keygen")
	}
	if output == "" {
		output = path
	}
	packed, err := durable.Read(path, config.MaxBundleBytes)
	if err != nil {
		return hint.Misused(fmt.Errorf("read the bundle: %w", err), "egressd policy build -o "+shell.Word(path))
	}
	b, err := rego.ReadBundle(packed, nil, time.Time{})
	if err == nil {
		err = loads(rego.Options{Layer: policy.Organisation}, b.Sources)
	}
	if err != nil {
		return hint.Failed(fmt.Errorf("the bundle is not signed, because its policy does not load: %w", err), "correct that, then egressd policy build -o "+shell.Word(path))
	}
	if packed, err = o.apply(stderr, packed, time.Now()); err != nil {
		return err
	}
	if err := putFile(output, packed, 0o644); err != nil {
		return hint.Failed(fmt.Errorf("write the bundle: %w", err), "egressd policy sign -o FILE, where FILE can be written")
	}
	fmt.Fprintf(stderr, "egressd: signed %s\n", printable.Text(output))
	if asJSON {
		return cli.PrintJSON(stdout, cli.Written{Path: output, Written: true})
	}
	return nil
}
