package policy

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
	"github.com/egressd/egressd/rego/bundle"
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
	cmd.Flags().StringVar(&o.algorithm, "algorithm", "", "signature algorithm, such as PS256 for an RSA key (default: from the key); of new keys: ES256 or EdDSA")
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
		return nil, hint.Misused(fmt.Errorf("read the private key: %w", err), "egressd policy build --keygen NAME, for a new one")
	}
	warnOfLooseKey(stderr, o.key)
	signed, err := bundle.Sign(packed, bundle.SignOptions{
		KeyPEM: key, Algorithm: o.algorithm, KeyID: o.keyID, Scope: o.scope, Now: now, Valid: o.valid,
	})
	if err != nil {
		return nil, hint.Failed(err, "egressd policy build --help")
	}
	return signed, nil
}

func warnOfLooseKey(stderr io.Writer, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		fmt.Fprintf(stderr, "egressd: warning: %s can be read or written by others (mode %04o)\n", printable.Text(path), info.Mode().Perm())
		hint.Sayf(stderr, "chmod 600 %s", shell.Word(path))
	}
}

// signFile signs the bundle at path, and writes it to output.
func signFile(stdout, stderr io.Writer, path, output string, o *signOptions, asJSON bool) error {
	if o.key == "" {
		return hint.Misused(errors.New("there is no key to sign with"), "egressd policy build --sign KEY "+shell.Word(path)+"; for a key: egressd policy build --keygen NAME")
	}
	packed, err := durable.Read(path, config.MaxBundleBytes)
	if err != nil {
		return hint.Misused(fmt.Errorf("read the bundle: %w", err), "egressd policy build -o "+shell.Word(path))
	}
	b, err := bundle.Read(packed, nil, time.Time{})
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
		return hint.Failed(fmt.Errorf("write the bundle: %w", err), "egressd policy build --sign KEY -o FILE, where FILE can be written")
	}
	fmt.Fprintf(stderr, "egressd: signed %s\n", printable.Text(output))
	if asJSON {
		return cli.PrintJSON(stdout, cli.Written{Path: output, Written: true})
	}
	return nil
}
