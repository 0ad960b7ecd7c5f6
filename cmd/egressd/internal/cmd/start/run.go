//go:build linux

package start

import (
	"errors"
	"os"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/run"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
)

// NewRun returns egressd run. It is exported because the root command has it alone for a command line of run.
func NewRun() *cobra.Command {
	var o run.Options
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARGUMENT…]",
		Short: "Run a program that can reach only what your policy allows",
		Long: `Run starts a program in a network of its own. Everything that it sends arrives at
egressd; there is no other way out. Run needs no root, no daemon and no proxy
variables, and programs cannot bypass it by ignoring them.

egressd answers DNS with placeholder addresses. It allows or denies each TCP
connection by your policy, and refuses all UDP except DNS. The run has its own
log: egressd log --run last. If an egressd serve of yours listens at listen.enter
of the same policy file, that daemon decides and records, unless you add --alone.

Without a policy file, --allow HOST and --preset NAME open these and nothing else.
--preset starter is what egressd init begins with. Proxy variables are not passed on,
since the program needs no proxy.

Denied HTTPS is answered with the reason: the program trusts an authority made for the
run. Only denials are answered with it; --no-ca leaves it out. If the program still runs
two seconds after a destination is denied for the first time, run says so on standard
error. The last lines name each denied place, with the command that allows it.

The program keeps your terminal, files and job control. It sees your files, but
egressd's policy, log and keys are hidden or read-only, and so are sockets and
devices that lead out, such as Docker's, D-Bus or an ssh agent; --host-socket
keeps one of them reachable, and --ssh-key one key of an agent for signing. With --fs everything except the working directory
is read-only, /tmp and /run are empty, and changes to HOME are dropped at the
end; commits go to the repository of the working directory wherever it lies, and
--share PATH shares more. Use --hide for keys and other files that the program must
not read.

Bubblewrap, srt, Podman and the sandbox of Codex need mounts of their own: add
--fs or --nested.

If a rule asks a person, run stops the program and asks on the terminal: o allows once, h
for an hour, s for this run (24 h at most), n denies. Without a terminal it denies at once;
egressd serve can ask for it (listen.enter).

On a terminal, run offers at its end to allow what it denied, one key each. It
never offers private addresses, or a request with a canary.

run ends what the program leaves behind: by SIGTERM, and by SIGKILL five seconds
later. With --wait, run waits for it.

Exit codes: those of the program; if signal N ended the program, run ends by it,
too, which shells show as 128+N; 125 no sandbox could be made; 126 the program cannot be executed; 127 there is no such
program; 86 with --fail-on-deny: it succeeded, but egressd denied a request.`,
		Example: `  egressd run -- npm test
  egressd run --allow docs.example.com --preset npm -- npm test
  egressd run --fail-on-deny --summary run.json -- make check
  egressd run -p 3000 --host-port 5432 -- npm run dev
  egressd run --learn -- npm ci && egressd policy suggest --run last
  egressd run -- bash`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(o.Share) > 0 && !o.Apart {
				return exits.AsSandbox(hint.Misused(errors.New("--share is for --fs: without it the program can change all your files"), "egressd run --fs --share "+o.Share[0]+" -- COMMAND"))
			}
			began := time.Now()
			end, err := run.Run(cmd.Context(), cmd.ErrOrStderr(), args, o)
			if !o.Quiet {
				offer(os.Stdin, cmd.ErrOrStderr(), end.Fixes, began)
			}
			if err != nil {
				return exits.AsSandbox(err)
			}
			exits.DieOf(end.Signal)
			if end.Code != 0 {
				return cli.Status(end.Code)
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return exits.AsSandbox(cli.FlagError(cmd, err)) })
	cli.ConfigFlag(cmd, &o.Config)
	cmd.Flags().StringSliceVar(&o.Allow, "allow", nil, "allow `HOST` for this run, as egressd allow takes it; without a policy file, nothing else")
	cmd.Flags().StringSliceVar(&o.Presets, "preset", nil, "add the rules of the preset `NAME` for this run, such as npm")
	cmd.Flags().StringVar(&o.Name, "name", "", "`NAME` of the sandbox in rules and in the log (default: the name of the working directory)")
	cmd.Flags().StringArrayVarP(&o.Publish, "publish", "p", nil, "publish `[HOSTPORT:]PORT` of the sandbox on the host's 127.0.0.1; auto: each port that the program opens, after a question")
	cmd.Flags().StringArrayVar(&o.HostPorts, "host-port", nil, "let the program reach this `PORT` of the host's 127.0.0.1")
	cmd.Flags().BoolVar(&o.FailOnDeny, "fail-on-deny", false, "exit 86 if the program succeeds but egressd denied a request")
	cmd.Flags().BoolVar(&o.Wait, "wait", false, "keep the sandbox until background processes of the program have ended, too")
	cmd.Flags().BoolVar(&o.Learn, "learn", false, "allow public hosts that no rule mentions, and record them for egressd policy suggest")
	cmd.Flags().BoolVar(&o.Apart, "fs", false, "make the file system read-only, except the working directory")
	cmd.Flags().StringArrayVar(&o.Share, "share", nil, "with --fs, let the program change the file or folder at `PATH`, too")
	cmd.Flags().BoolVar(&o.Nested, "nested", false, "allow nested sandboxes such as bubblewrap; the program can then replace the policy of later runs")
	cmd.Flags().BoolVar(&o.NoCA, "no-ca", false, "add no authority to the CA bundle; denied HTTPS then ends with a TLS alert")
	cmd.Flags().StringVar(&o.Summary, "summary", "", "write what the run came to into `FILE`, as one JSON object")
	cmd.Flags().BoolVarP(&o.Quiet, "quiet", "q", false, "print errors only")
	cmd.Flags().BoolVar(&o.Alone, "alone", false, "ignore a running egressd serve; use a policy and a log for this run alone")
	cmd.Flags().BoolVar(&o.Redirect, "redirect", false, "capture connections with NAT even if the kernel has tproxy")
	cmd.Flags().StringArrayVar(&o.Hide, "hide", nil, "hide the file or folder at `PATH`, such as ~/.ssh, from the program")
	cmd.Flags().StringArrayVar(&o.HostSockets, "host-socket", nil, "keep the socket or device at `PATH` reachable, such as Docker's; it may lead out of the sandbox")
	cmd.Flags().StringArrayVar(&o.SSHKeys, "ssh-key", nil, "let the program sign with the `KEY` of your ssh agent, by its fingerprint or comment")
	cmd.MarkFlagsMutuallyExclusive("fs", "host-socket")
	_ = cmd.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(file.Presets(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("allow", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("name", cli.CompleteSandboxes(&o.Config))
	return cmd
}
