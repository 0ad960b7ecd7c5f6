package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/spf13/cobra"
)

func newEnv() *cobra.Command {
	var o envOptions
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the proxy variables for egressd serve",
		Long: `Env prints the environment variables that send programs through egressd serve:
curl, wget, git, pip, npm, yarn, Node, cargo, Go and others.

A program can ignore these variables, so they are no boundary. egressd run is.
Java, ssh and programs that speak raw TCP read none of them.

For each of the credentials in the policy file, env prints the variables of its tools, with
a placeholder of the sandbox that --sandbox names. A placeholder is no secret.

With --ca, env also prints the variables by which programs find the certificates
that they trust.`,
		Example: `  eval "$(egressd env)"
  docker run --rm $(egressd env --for docker --listen 172.17.0.1:3128) IMAGE
  egressd env --for json --sandbox ci
  eval "$(egressd env --ca "$PWD/bundle.pem")"`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.format, "for", "sh", "`FORMAT` to print: sh, docker or json")
	cmd.Flags().StringVar(&o.listen, "listen", "", "`ADDR` at which the program reaches the proxy (default: the first proxy listener of the policy)")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "`NAME` of the sandbox; its token goes into the variables")
	cmd.Flags().StringVar(&o.ca, "ca", "", "full path of the CA bundle `FILE` inside the sandbox, as written by egressd ca bundle")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"sh", "docker", "json"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.config))
	return cmd
}

type envOptions struct {
	config, format, listen, sandbox, ca string
	json                                bool
}

var envFormats = []string{"sh", "docker", "json"}

func (o *envOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if o.json {
		o.format = "json"
	}
	if !slices.Contains(envFormats, o.format) {
		return hint.Misused(fmt.Errorf("--for %s: the formats are %s", o.format, strings.Join(envFormats, ", ")), "egressd env --for sh")
	}
	if err := o.checkCA(); err != nil {
		return err
	}
	address, user, err := config.ProxyAt(o.config, o.listen, o.sandbox)
	if err != nil {
		return err
	}
	vars, host, err := environ.ForProxy(address, user)
	if err != nil {
		return err
	}
	o.explain(stderr, address)
	if o.format == "docker" && environ.ReachesOnlyHere(host) {
		fmt.Fprintf(stderr, "egressd: inside a container %s is the container itself\n", address)
		hint.Sayf(stderr, "egressd env --for docker --listen ADDR, where ADDR is reachable from the container")
	}
	if o.ca != "" {
		vars = append(vars, environ.ForTrust(o.ca)...)
	}
	placeholders, err := o.placeholders(ctx, stderr)
	if err != nil {
		return err
	}
	vars = append(vars, placeholders...)
	return printVariables(stdout, o.format, vars)
}

// placeholders are the variables in which programs find what stands for credentials.
func (o *envOptions) placeholders(ctx context.Context, stderr io.Writer) (vars []environ.Variable, err error) {
	c, err := config.Load(o.config)
	var none *config.NotFoundError
	switch {
	case errors.As(err, &none): // the variables of the proxy need no policy
		return nil, nil
	case err != nil:
		return nil, err
	}
	complain := func(err error) {
		fmt.Fprintf(stderr, "egressd: warning: %v; its variables are left out\n", err)
	}
	all, err := daemon.VariablesOf(ctx, c, cmp.Or(o.sandbox, sandbox.Default), complain)
	for _, v := range all {
		vars = append(vars, environ.Variable(v))
	}
	return vars, err
}

// checkCA refuses a path that means something else in another folder, or that
// a shell would split where it reads the output for docker. Whether there is
// such a file is for the sandbox to know.
func (o *envOptions) checkCA() error {
	switch {
	case o.ca == "":
		return nil
	case !filepath.IsAbs(o.ca) || printable.Text(o.ca) != o.ca:
		return hint.Misused(fmt.Errorf("--ca %s: the path has to be a full one, of printable characters", o.ca), `egressd env --ca "$PWD/bundle.pem"`)
	case o.format == "docker" && shell.Word(o.ca) != o.ca:
		return hint.Misused(fmt.Errorf("--ca %s: a shell would not leave this path in one piece", o.ca), "mount the bundle at a plain path, such as /etc/ssl/egressd.pem")
	default:
		return nil
	}
}

// explain says what else a program needs at a listener.
func (o *envOptions) explain(stderr io.Writer, address string) {
	switch {
	case strings.HasPrefix(address, file.UnixListener):
		fmt.Fprintln(stderr, "egressd: of what reads these variables, only curl takes a unix socket for a proxy")
		hint.Sayf(stderr, "egressd env --listen 127.0.0.1:3128, where other programs are to go through the proxy")
	case strings.HasPrefix(address, file.TLSListener) && o.ca == "":
		fmt.Fprintln(stderr, "egressd: a program that reaches the proxy over TLS has to trust its certificate")
		hint.Sayf(stderr, "egressd ca bundle -o FILE, then egressd env --ca FILE")
	}
}

func printVariables(w io.Writer, format string, vars []environ.Variable) error {
	if format == "json" {
		return cli.PrintJSON(w, environ.ByName(vars))
	}
	for _, v := range vars {
		text := "export " + v.Name + "=" + shell.Quote(v.Value)
		if format == "docker" {
			text = "-e " + v.Name + "=" + strings.TrimSuffix(v.Value, ",[::1]") // which a shell could take for a pattern of files
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}
