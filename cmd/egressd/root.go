package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/admincmd"
	"github.com/egressd/egressd/cmd/egressd/internal/askcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/containercmd"
	"github.com/egressd/egressd/cmd/egressd/internal/doctorcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/grantcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/initcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/logcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/policycmd"
	"github.com/egressd/egressd/cmd/egressd/internal/runcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/trustcmd"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/internal/version"
	"github.com/spf13/cobra"
)

// rootCommandFor returns as much of the command tree as a command line needs. A program
// that is run does not wait for commands that are none of its business.
func rootCommandFor(args []string) *cobra.Command {
	if len(args) > 0 && args[0] == "run" {
		root := newRoot()
		root.AddCommand(runcmd.New())
		return root
	}
	return newRootCommand()
}

// newRootCommand returns the whole command tree. It is the one source of the
// help, the completion scripts and the manual pages.
func newRootCommand() *cobra.Command {
	root := newRoot()
	addCommands(root)
	return root
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "egressd",
		Short: "Decide and record what a sandbox may send out",
		Long: `egressd is a local egress firewall for sandboxes in which untrusted code runs.
Everything a sandbox sends out goes through it: it decides by policy, dials
only what it decided, and keeps a log of what left and what was stopped.`,
		Example: `  egressd init                       write a starter policy
  egressd serve                      run the proxy
  eval "$(egressd env)"              send this shell's programs through it
  egressd check https://pypi.org/    what would happen
  egressd log                        what did happen`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          rootRun,
	}
	root.Version = version.This().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "say which egressd this is, as egressd version does")
	root.SetFlagErrorFunc(cli.FlagError)
	return root
}

func addCommands(root *cobra.Command) {
	root.AddCommand(
		runcmd.New(),
		newServeCommand(),
		containercmd.NewEnter(),
		containercmd.NewAttach(),
		containercmd.NewDocker(),
		containercmd.NewPodInit(),
		containercmd.NewPodRun(),
		admincmd.NewStatus(),
		admincmd.NewPs(),
		admincmd.NewCut(),
		admincmd.NewReload(),
		askcmd.NewQuestions(),
		askcmd.NewApprove(),
		askcmd.NewReject(),
		doctorcmd.NewSelftest(),
		doctorcmd.New(),
		initcmd.New(),
		newEnvCommand(),
		policycmd.NewCheck(),
		logcmd.NewWhy(),
		grantcmd.NewAllow(),
		grantcmd.NewDeny(),
		grantcmd.NewGrants(),
		newSuggestCommand(),
		newReplayCommand(),
		logcmd.New(),
		newCACommand(),
		policycmd.New(),
		trustcmd.New(),
		newVersionCommand(),
		newManCommand(),
	)
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args = cli.OneArgument("a shell", "egressd completion bash")
		c.RunE = func(_ *cobra.Command, args []string) error {
			return hint.Misused(fmt.Errorf("there is no completion for %q", args[0]), "egressd completion bash, or zsh, fish, powershell")
		}
	}
}

// rootRun is what a bare "egressd" does, and what a command that does not
// exist comes to.
func rootRun(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("there is no command %q", args[0])
	if near := spelling.Nearest(args[0], cli.CommandNames(cmd)); near != "" {
		return hint.Misused(err, "did you mean egressd "+near+"?")
	}
	return hint.Misused(err, "egressd help")
}

// negated writes "-host:x" as "!host:x" where it is an argument of a command that takes a filter,
// before it is taken for a flag. Behind "--" there are no flags.
func negated(args []string) []string {
	if len(args) == 0 || !slices.Contains([]string{"log", "suggest", "replay"}, args[0]) {
		return args
	}
	args = slices.Clone(args)
	for i, word := range args {
		if word == "--" {
			break
		}
		key, _, found := strings.Cut(word, ":")
		if name, dashed := strings.CutPrefix(key, "-"); found && dashed && len(name) > 1 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") == "" {
			args[i] = "!" + word[1:]
		}
	}
	return args
}
