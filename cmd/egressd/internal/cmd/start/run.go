package start

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/run"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
)

// NewRun returns egressd run. It is exported because the root command has it alone for a command line of run.
func NewRun() *cobra.Command {
	var o run.Options
	var policy string
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
			if policy != "" {
				o.Config = policy
			}
			code, err := run.Run(cmd.Context(), cmd.ErrOrStderr(), args, o)
			if err == nil && code != 0 {
				return cli.Status(code)
			}
			return exits.AsSandbox(err)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return exits.AsSandbox(cli.FlagError(cmd, err)) })
	cli.ConfigFlag(cmd, &o.Config)
	cmd.Flags().StringVar(&policy, "policy", "", "the same as --config")
	cmd.Flags().StringVar(&o.Name, "name", "", "the `NAME` of the sandbox, in rules and in the log (default: that of the working directory)")
	cmd.Flags().StringArrayVarP(&o.Publish, "publish", "p", nil, "a `[HOSTPORT:]PORT` of the sandbox that is reached on the host's loopback")
	cmd.Flags().StringArrayVar(&o.HostPorts, "host-port", nil, "a `PORT` of the host's loopback that the sandbox reaches on its own")
	cmd.Flags().BoolVar(&o.FailOnDeny, "fail-on-deny", false, "exit with 86 where the program succeeded but something was denied")
	cmd.Flags().BoolVar(&o.Learn, "learn", false, "let pass what no rule speaks of, and record it for egressd suggest")
	cmd.Flags().BoolVar(&o.Apart, "fs", false, "keep the file system from the program, but for the working directory")
	cmd.Flags().BoolVar(&o.Nested, "nested", false, "let the program make mount namespaces, as bubblewrap does, by which it can replace the policy of later runs")
	cmd.Flags().BoolVarP(&o.Quiet, "quiet", "q", false, "say nothing but errors")
	cmd.Flags().BoolVar(&o.Alone, "alone", false, "do without an egressd serve that takes networks in by the same policy")
	cmd.Flags().BoolVar(&o.Redirect, "redirect", false, "capture connections by NAT also where the kernel has tproxy")
	cmd.Flags().StringArrayVar(&o.Hide, "hide", nil, "keep the file or folder at `PATH`, such as ~/.ssh, from the program")
	cmd.Flags().StringArrayVar(&o.HostSockets, "host-socket", nil, "leave the program the socket at `PATH`, though it leads out, as that of Docker does")
	cmd.MarkFlagsMutuallyExclusive("config", "policy")
	cmd.MarkFlagsMutuallyExclusive("fs", "host-socket")
	_ = cmd.RegisterFlagCompletionFunc("name", cli.CompleteSandboxes(&o.Config))
	return cmd
}
