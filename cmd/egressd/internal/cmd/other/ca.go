package other

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/spf13/cobra"
)

func newCA() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Show, export or replace the local certificate authority",
		Long: `If a rule looks at requests, egressd decrypts TLS with its own certificate authority,
which programs in the sandbox have to trust. The authority is made on first use.
Its key never leaves its folder; no sandbox may see that folder.

Without a command, ca shows the certificate: subject, SHA-256 fingerprint, expiry date
and path. It makes the authority if there is none.`,
		Example: `  egressd ca
  egressd ca --pem > egressd-ca.pem
  egressd ca bundle -o bundle.pem
  eval "$(egressd env --ca "$PWD/bundle.pem")"`,
	}
	o := &caOptions{}
	var asPEM bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return cli.RunGroup(cmd, args)
		}
		return o.show(cmd.OutOrStdout(), cmd.ErrOrStderr(), asPEM)
	}
	cmd.Flags().BoolVar(&asPEM, "pem", false, "print the certificate in PEM")
	cli.ConfigFlag(cmd, &o.config)
	cli.JSONFlag(cmd, &o.json)
	cli.Inherit(cmd, "config", "json")
	cmd.AddCommand(newCABundleCommand(o), newCARotateCommand(o))
	return cmd
}

func newCABundleCommand(o *caOptions) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write the CA bundle that a sandbox has to trust",
		Long: `Bundle prints the system's certificate authorities, egressd's own, and those of
tls.extra_roots, in PEM. Put the file where programs in the sandbox look for theirs;
standard error says which variable or command each kind of program needs.`,
		Example: `  egressd ca bundle -o bundle.pem
  docker run -v "$PWD/bundle.pem:/etc/ssl/certs/ca-certificates.crt:ro" IMAGE`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.bundle(cmd.OutOrStdout(), cmd.ErrOrStderr(), path)
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "write the bundle to `FILE`, readable by everybody")
	return cmd
}

func newCARotateCommand(o *caOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the authority with a new one",
		Long: `Rotate makes a new authority with a new key. It keeps the old certificate until that
expires, and deletes the old key. A running egressd serve uses the old authority
until SIGHUP or a restart. Every sandbox needs the new bundle.`,
		Example: "  egressd ca rotate && egressd ca bundle -o bundle.pem",
		Args:    cli.NoArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.rotate(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	return cmd
}

// caOptions are the flags of egressd ca, which the commands below it inherit.
type caOptions struct {
	config string
	json   bool
}

// suffix is what commands in hints need to mean the same authority.
func (o *caOptions) suffix() string { return source.ConfigFlag(o.config) }

// dir finds the authority without a policy where there is none: trust is often
// set up first.
func (o *caOptions) dir() (string, error) {
	cfg, err := config.Load(o.config)
	if _, ok := errors.AsType[*config.NotFoundError](err); ok {
		return config.DefaultCADir()
	}
	if err != nil {
		return "", err
	}
	return cfg.CADir()
}

// An authorityView is what is to be known of an authority.
type authorityView struct {
	Subject   string    `json:"subject"`
	SHA256    string    `json:"sha256"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	Path      string    `json:"path"`
	PEM       string    `json:"pem,omitempty"`
}

func viewAuthority(a *certs.Authority, dir string) authorityView {
	c := a.Certificate()
	return authorityView{
		Subject: c.Subject.String(), SHA256: fingerprint(c.Raw), NotBefore: c.NotBefore, NotAfter: c.NotAfter,
		Path: filepath.Join(dir, certs.CertificateFile),
	}
}

// fingerprint is written as openssl and browsers write it.
func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
}

func (v authorityView) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "subject      %s\nsha256       %s\nvalid        %s to %s\ncertificate  %s\n",
		printable.Text(v.Subject), v.SHA256, v.NotBefore.Format(time.DateOnly), v.NotAfter.Format(time.DateOnly), printable.Text(v.Path))
	return err
}

func (o *caOptions) show(stdout, stderr io.Writer, asPEM bool) error {
	dir, err := o.dir()
	if err != nil {
		return err
	}
	a, err := authority.Open(dir, stderr)
	if err != nil {
		return err
	}
	view := viewAuthority(a, dir)
	switch {
	case o.json && asPEM:
		view.PEM = string(a.PEM())
		return cli.PrintJSON(stdout, view)
	case o.json:
		return cli.PrintJSON(stdout, view)
	case asPEM:
		_, err := stdout.Write(a.PEM())
		return err
	default:
		return view.print(stdout)
	}
}

func (o *caOptions) rotate(stdout, stderr io.Writer) error {
	dir, err := o.dir()
	if err != nil {
		return err
	}
	a, err := certs.Rotate(dir)
	if err != nil {
		return authority.Explain(err)
	}
	fmt.Fprintln(stderr, "egressd: a daemon that runs goes on with the old authority until SIGHUP or its next start")
	fmt.Fprintln(stderr, "egressd: a sandbox trusts the new one when it has the new bundle")
	hint.Sayf(stderr, "egressd ca bundle%s -o FILE", o.suffix())
	if o.json {
		return cli.PrintJSON(stdout, viewAuthority(a, dir))
	}
	return viewAuthority(a, dir).print(stdout)
}

// A bundleView is what bundle tells a script.
type bundleView struct {
	Path        string            `json:"path,omitempty"`
	SystemRoots string            `json:"system_roots"`
	Variables   map[string]string `json:"variables,omitempty"`
	PEM         string            `json:"pem,omitempty"`

	extra bool // it has authorities of tls.extra_roots
}

// extraRoots returns the certificates of tls.extra_roots: programs whose tunnels are not inspected verify such
// upstreams themselves.
func (o *caOptions) extraRoots() (all []byte, err error) {
	cfg, err := config.Load(o.config)
	if missing := new(config.NotFoundError); errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	texts, err := cfg.ExtraRoots()
	if err != nil {
		return nil, err
	}
	for i, text := range texts {
		certificates, err := certs.OnlyCertificates(text)
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("%s: %w", cfg.File.TLS.ExtraRoots[i], err), "correct tls.extra_roots in "+cfg.Path)
		}
		all = append(all, certificates...)
	}
	return all, nil
}

func (o *caOptions) bundle(stdout, stderr io.Writer, path string) error {
	dir, err := o.dir()
	if err != nil {
		return err
	}
	extra, err := o.extraRoots()
	if err != nil {
		return err
	}
	roots, system, err := certs.SystemRoots()
	if err != nil {
		return hint.Failed(err, "install the package ca-certificates; or egressd ca"+o.suffix()+" --pem, which is egressd's own alone")
	}
	a, err := authority.Open(dir, stderr)
	if err != nil {
		return err
	}
	text := slices.Concat(authority.Bundle(system, a.PEM()), extra)
	if path == "" {
		return o.printBundle(stdout, stderr, bundleView{SystemRoots: roots, PEM: string(text), extra: len(extra) > 0})
	}
	if path, err = filepath.Abs(path); err != nil {
		return hint.Failed(err, "egressd ca bundle -o FILE, with a full path")
	}
	if err := durable.Replace(path, text, 0o644); err != nil {
		return hint.Failed(err, "egressd ca bundle -o FILE, where FILE can be written")
	}
	return o.printBundle(stdout, stderr, bundleView{Path: path, SystemRoots: roots, Variables: environ.ByName(environ.ForTrust(path)), extra: len(extra) > 0})
}

func (o *caOptions) printBundle(stdout, stderr io.Writer, v bundleView) error {
	if o.json {
		return cli.PrintJSON(stdout, v)
	}
	if v.Path != "" {
		of := v.SystemRoots
		if v.extra {
			of += " and of tls.extra_roots"
		}
		fmt.Fprintf(stderr, "egressd: wrote %s: the authorities of %s, and egressd's\n", printable.Text(v.Path), of)
	}
	printTrust(stderr, v.Path, o.suffix())
	_, err := io.WriteString(stdout, v.PEM)
	return err
}
