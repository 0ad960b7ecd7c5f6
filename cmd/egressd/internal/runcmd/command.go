// Package runcmd is egressd run: one program in a network of its own.
package runcmd

import (
	"errors"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
)

// New returns the command that runs one program.
func New() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARGUMENT…]",
		Short: "Run one program in a network of its own",
		Long: `Run starts a program in a network in which everything that it sends arrives at
egressd: names, connections to any address and port, and datagrams. Nothing else
exists there. It takes no root, no daemon and no proxy variables; the program
and all that it starts cannot get out again.

Names are answered with addresses that stand for them; connections are decided
by the policy file as requests through the proxy are; datagrams but for names
are refused. Each run has a log of its own: egressd log --run last; but where an
egressd serve answers at listen.enter of the policy file, that one decides and
records, unless --alone is given.

The program keeps its terminal, its files and its job control. Its exit code is
that of run; beside it, 128+N says that signal N ended the program, 125 that the
sandbox could not be made, 126 that the program cannot be executed, 127 that
there is none, and, with --fail-on-deny, 86 that the program succeeded but
something was denied.

The files of the machine are those of the user: what the policy and egressd
itself keep there is hidden or fixed, and so are the sockets that somebody listens
on, such as Docker, D-Bus, tmux or an agent for ssh, and devices that lead out,
unless --host-socket names them. With --fs all but the working directory is read-only, temporary folders and /run are the program's own,
without any socket of the machine, and what is written to HOME is gone at the
end. What else can be read, such as keys, --hide keeps from it. See the manual.

Sandboxes that need mounts of their own (bubblewrap, srt, Podman) run inside with
--fs, or with --nested.`,
		Example: `  egressd run -- npm test
  egressd run --fail-on-deny -- make check
  egressd run -p 3000 --host-port 5432 -- npm run dev
  egressd run --learn -- npm ci && egressd suggest --run last
  egressd run -- bash`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.run(cmd.Context(), cmd.ErrOrStderr(), args)
			var answer cli.Status
			if errors.As(err, &answer) {
				return err
			}
			return exits.AsSandbox(err)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return exits.AsSandbox(cli.FlagError(cmd, err)) })
	cli.ConfigFlag(cmd, &o.config)
	cmd.Flags().StringVar(&o.policy, "policy", "", "the same as --config")
	cmd.Flags().StringVar(&o.name, "name", "", "the `NAME` of the sandbox, in rules and in the log (default: that of the working directory)")
	cmd.Flags().StringArrayVarP(&o.publish, "publish", "p", nil, "a `[HOSTPORT:]PORT` of the sandbox that is reached on the host's loopback")
	cmd.Flags().StringArrayVar(&o.hostPorts, "host-port", nil, "a `PORT` of the host's loopback that the sandbox reaches on its own")
	cmd.Flags().BoolVar(&o.failOnDeny, "fail-on-deny", false, "exit with 86 where the program succeeded but something was denied")
	cmd.Flags().BoolVar(&o.learn, "learn", false, "let pass what no rule speaks of, and record it for egressd suggest")
	cmd.Flags().BoolVar(&o.apart, "fs", false, "keep the file system from the program, but for the working directory")
	cmd.Flags().BoolVar(&o.nested, "nested", false, "let the program make mount namespaces, as bubblewrap does, by which it can replace the policy of later runs")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "say nothing but errors")
	cmd.Flags().BoolVar(&o.alone, "alone", false, "do without an egressd serve that takes networks in by the same policy")
	cmd.Flags().BoolVar(&o.redirect, "redirect", false, "capture connections by NAT also where the kernel has tproxy")
	cmd.Flags().StringArrayVar(&o.hide, "hide", nil, "keep the file or folder at `PATH`, such as ~/.ssh, from the program")
	cmd.Flags().StringArrayVar(&o.doors, "host-socket", nil, "leave the program the socket at `PATH`, though it leads out, as that of Docker does")
	cmd.MarkFlagsMutuallyExclusive("config", "policy")
	cmd.MarkFlagsMutuallyExclusive("fs", "host-socket")
	_ = cmd.RegisterFlagCompletionFunc("name", cli.CompleteSandboxes(&o.config))
	return cmd
}

type options struct {
	config, policy, name        string
	publish, hostPorts          []string
	failOnDeny, quiet, redirect bool
	learn                       bool
	doors                       []string // sockets of the machine that the program may have
	hide                        []string // files and folders that it may not
	apart                       bool
	alone                       bool // do without a daemon that answers
	nested                      bool // mount namespaces in the sandbox
}
