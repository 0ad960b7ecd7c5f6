package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/rego/bundle"
	"github.com/spf13/cobra"
)

func newPush(f *policyFlags) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push BUNDLE oci://HOST/REPOSITORY:TAG --key KEY",
		Short: "Push a signed bundle to an OCI registry",
		Long: `Push puts a signed bundle into an OCI registry, from which each egressd with that
reference under rego fetches it. It first verifies the bundle with the public key, as
each machine will, and looks at what the tag names now. It pushes nothing that each
machine would refuse: a bundle of another key, an expired bundle, or an older bundle
than the registry has. To go back to an older policy, sign it again.

The login is docker's, from its config.json and the helpers that it names; DOCKER_CONFIG
names another folder with a config.json. The registry is reached over TLS alone, without
a proxy.

Exit codes: 0 pushed, or there already; 1 not pushed; 2 something could not be read.`,
		Example: `  egressd policy push bundle.tar.gz oci://registry.acme.example/security/egress:stable --key policy.pub.pem
  egressd policy push bundle.tar.gz oci://127.0.0.1:5000/egress:canary --key policy.pub.pem --ca registry.pem`,
		Args: twoArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Refuse(cmd, "config"); err != nil {
				return err
			}
			return o.push(cmd.Context(), cmd.OutOrStdout(), args[0], args[1], f.json)
		},
	}
	cmd.Flags().StringVar(&o.keyPath, "key", "", "public `KEY` (PEM) that the machines have")
	cmd.Flags().StringVar(&o.ca, "ca", "", "PEM `FILE` of authorities for the registry (default: the system's)")
	return cmd
}

func twoArguments(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return hint.Misused(fmt.Errorf("push takes a bundle and a reference, and was given %d arguments", len(args)), "egressd policy push bundle.tar.gz oci://HOST/REPOSITORY:TAG --key KEY")
	}
	return nil
}

type pushOptions struct {
	key         bundle.Key
	keyPath, ca string
}

// pushWithin is how long a push may take.
const pushWithin = 2 * time.Minute

// A pushedView is what a script is told about a bundle that was pushed.
type pushedView struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Replaced  string `json:"replaced,omitempty"` // revision
	packedView
}

func (o *pushOptions) push(ctx context.Context, stdout io.Writer, path, reference string, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, pushWithin)
	defer cancel()
	if o.keyPath == "" {
		return hint.Misused(errors.New("there is no key to verify the bundle with"), "egressd policy push "+shell.Word(path)+" "+shell.Word(reference)+" --key KEY")
	}
	var err error
	if o.key.PEM, err = durable.Read(o.keyPath, config.MaxKeyBytes); err != nil {
		return hint.Misused(fmt.Errorf("read the public key: %w", err), "egressd policy push --help")
	}
	packed, err := durable.Read(path, config.MaxBundleBytes)
	if err != nil {
		return hint.Misused(fmt.Errorf("read the bundle: %w", err), "egressd policy build -o "+shell.Word(path)+" --sign KEY")
	}
	place, err := o.registry(reference)
	if err != nil {
		return err
	}
	done, err := place.Push(ctx, packed, &o.key)
	switch {
	case errors.Is(err, bundle.ErrOlder):
		return hint.Failed(fmt.Errorf("%s is not pushed to %s: %w", path, reference, err), "egressd policy build --sign KEY "+shell.Word(path)+", if it is to replace the newer one")
	case errors.Is(err, bundle.ErrNotSigned), errors.Is(err, bundle.ErrExpired), errors.Is(err, bundle.ErrWrongKey):
		return hint.Failed(fmt.Errorf("%s is not pushed: %w", path, err), "egressd policy build --sign KEY "+shell.Word(path))
	case err != nil:
		return hint.Failed(fmt.Errorf("push to %s: %w", reference, err), "correct that, then the same command; for a login: docker login")
	}
	v := pushedView{Reference: reference, Digest: done.Digest, packedView: viewOf(done.Bundle)}
	if done.Replaced != nil {
		v.Replaced = done.Replaced.Revision
	}
	if asJSON {
		return cli.PrintJSON(stdout, v)
	}
	text := fmt.Sprintf("%s: revision %s, %s\n", printable.Text(reference), printable.Text(v.Revision), v.Digest)
	if v.Replaced != "" && v.Replaced != v.Revision {
		text += fmt.Sprintf("replaces revision %s\n", printable.Text(v.Replaced))
	}
	_, err = io.WriteString(stdout, text)
	return err
}

func (o *pushOptions) registry(reference string) (*bundle.Registry, error) {
	var ca []byte
	var err error
	if o.ca != "" {
		if ca, err = durable.Read(o.ca, config.MaxKeyBytes); err != nil {
			return nil, hint.Misused(fmt.Errorf("read the authorities: %w", err), "egressd policy push --help")
		}
	}
	login, err := bundle.LoginFromDocker()
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("docker's logins: %w", err), "DOCKER_CONFIG=DIR names a folder with another config.json")
	}
	place, err := bundle.OpenRegistry(reference, ca, login)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("%s: %w", reference, err), "egressd policy push BUNDLE oci://HOST/REPOSITORY:TAG --key KEY")
	}
	return place, nil
}
