// Package cmd is the command line of egressd: the root command and its groups.
//
// Data goes to standard output and talk to standard error. Each error is followed by a hint, which says what
// to type next.
package cmd

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/answers"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/daemoncmd"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/logcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/other"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/policycmd"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/sandboxes"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/start"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/internal/version"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Run executes one command line, and returns the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	root := rootFor(args)
	root.SetArgs(negated(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Report(stderr, root.Execute())
}

// rootFor returns the command tree that a command line needs. For run it has only run, so that the program
// starts sooner.
func rootFor(args []string) *cobra.Command {
	if len(args) > 0 && args[0] == "run" {
		root := newRoot()
		root.AddCommand(start.NewRun())
		return root
	}
	return Tree()
}

// Tree returns the whole command tree. Help, completion scripts and manual pages come from it alone.
func Tree() *cobra.Command {
	root := newRoot()
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"start", "Start:", start.Commands()},
		{"sandboxes", "Containers and other sandboxes:", sandboxes.Commands()},
		{"daemon", "Control a running egressd serve:", daemoncmd.Commands()},
		{"answers", "Allow, deny, approve:", answers.Commands()},
		{"policy", "Policy:", policycmd.Commands()},
		{"log", "Log:", logcmd.Commands()},
		{otherGroup, "Other:", other.Commands()},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		root.AddCommand(g.commands...)
	}
	root.SetHelpCommandGroupID(otherGroup)
	root.SetCompletionCommandGroupID(otherGroup)
	addCompletion(root)
	root.InitDefaultHelpCmd()
	if c, _, err := root.Find([]string{"help"}); err == nil {
		c.Short = "Show the help of a command"
	}
	return root
}

const otherGroup = "other"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "egressd",
		Short: "A local egress firewall for sandboxes",
		Long: `egressd is a local egress firewall for sandboxes in which untrusted code runs:
AI agents, CI jobs, build scripts. It decides by your policy what such a program may
reach, dials only what it decided, and keeps a log of what left and what was denied.`,
		Example: `  egressd init                       write a starter policy
  egressd run -- npm test            run a program behind it
  egressd log --run last             see what was allowed and denied
  egressd allow HOST --save          allow one more host
  egressd serve                      run it for containers and many sandboxes`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          runRoot,
	}
	root.PersistentPreRunE = outside
	root.Version = version.This().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version")
	root.SetFlagErrorFunc(cli.FlagError)
	return root
}

func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Short = "Print a completion script for your shell"
		c.Args = cli.OneArgument("a shell", "egressd completion bash")
		c.RunE = func(_ *cobra.Command, args []string) error {
			return hint.Misused(fmt.Errorf("there is no completion for %q", args[0]), "egressd completion bash, or zsh, fish, powershell")
		}
	}
}

// removedCommands says of commands that egressd had what to type instead.
var removedCommands = map[string]string{
	"watch": "egressd log -f, which follows the log in a terminal, or egressd ui, which shows it in a browser",
}

// outsideOnly are the commands whose policy and log the sandbox hides, by the first word.
var outsideOnly = []string{"allow", "deny", "grants", "questions", "approve", "reject", "status", "ps", "cut", "reload", "check", "trust", "suggest", "replay", "log", "runs", "why", "ui"}

// outside returns an error inside of egressd run if cmd is one of outsideOnly. There it would find no policy and no log, and
// its own advice would not help. With --dir it reads a log that its user knows.
func outside(cmd *cobra.Command, args []string) error {
	path := strings.Fields(cmd.CommandPath())
	dir := cmd.Flags().Lookup("dir")
	if len(path) < 2 || !slices.Contains(outsideOnly, path[1]) || dir != nil && dir.Changed || !exits.IsInside() {
		return nil
	}
	words := path
	for _, arg := range args {
		words = append(words, shell.Word(arg))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		words = append(words, "--"+f.Name)
		if f.Value.Type() != "bool" {
			words = append(words, shell.Word(f.Value.String()))
		}
	})
	return hint.Failed(errors.New("this is inside of an egressd run, and its policy and log are outside"), "ask the person who started it to type, outside: "+strings.Join(words, " "))
}

// runRoot prints the help for a bare "egressd", and an error for a command that does not exist.
func runRoot(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("there is no command %q", args[0])
	if instead := removedCommands[args[0]]; instead != "" {
		return hint.Misused(err, instead)
	}
	if near := spelling.Nearest(args[0], cli.CommandNames(cmd)); near != "" {
		return hint.Misused(err, "did you mean egressd "+near+"?")
	}
	return hint.Misused(err, "egressd help")
}

// negated writes "-host:x" as "!host:x" for commands that take filters, because cobra would read a flag.
// After "--" it changes nothing.
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
