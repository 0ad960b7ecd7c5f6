// Package cmd is the command line of egressd: the root command and its groups.
//
// Data goes to standard output and talk to standard error. Each error is followed by a hint, which says what
// to type next.
package cmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/answers"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/daemon"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/log"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/other"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd/policy"
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
	if err := removed(args); err != nil {
		return cli.Report(stderr, err)
	}
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
		{"sandboxes", "Sandboxes, such as containers:", sandboxes.Commands()},
		{"daemon", "Daemon, a running egressd serve:", daemon.Commands()},
		{"answers", "Answers to what programs ask for:", answers.Commands()},
		{"policy", "Policy:", policy.Commands()},
		{"log", "Log:", log.Commands()},
		{otherGroup, "Other:", other.Commands()},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		root.AddCommand(g.commands...)
	}
	root.SetHelpCommandGroupID(otherGroup)
	root.CompletionOptions.DisableDefaultCmd = true
	setHelp(root)
	return root
}

const otherGroup = "other"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "egressd",
		Short: "A local egress firewall for sandboxes",
		Long: `egressd is a local egress firewall for sandboxes in which untrusted code runs:
AI agents, CI jobs, build scripts. It decides by your policy what such a program may
reach, dials only what it decided, and keeps a log of what left and what was denied.

Not in the list: check URL (policy check, for short), docker run IMAGE, and pod-init
and pod-run for Kubernetes. Each has its --help. egressd help topics lists pages of
the documentation, such as egressd help troubleshoot.`,
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
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if err := together(cmd); err != nil {
			return cmd.FlagErrorFunc()(cmd, err)
		}
		return outside(cmd, args)
	}
	root.Version = version.This().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if words := cmd.Flags().Args(); !cmd.HasParent() && len(words) > 0 { // the flag is one of the command that was meant
			return runRoot(cmd, words)
		}
		return cli.FlagError(cmd, err)
	})
	return root
}

// outsideOnly are the commands whose policy and log the sandbox hides, with those below them, and doctor, which would find
// fault with what a sandbox is for. The other commands of policy also work on files of the working directory.
var outsideOnly = []string{"allow", "deny", "answer", "status", "cut", "reload", "check", "policy check", "policy suggest", "policy replay", "policy trust", "log", "why", "ui", "doctor"}

// exclusive is the key under which cobra keeps the groups of flags that exclude each other.
const exclusive = "cobra_annotation_mutually_exclusive"

// together returns an error if two flags are given that exclude each other. It names them; cobra would name all groups.
func together(cmd *cobra.Command) (err error) {
	first := map[string]string{}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		for _, group := range f.Annotations[exclusive] {
			if other := first[group]; other != "" && err == nil {
				err = fmt.Errorf("--%s and --%s do not go together", other, f.Name)
			}
			first[group] = f.Name
		}
	})
	return err
}

// outside returns an error inside of egressd run if cmd is one of outsideOnly. Inside, cmd would find no policy and no log,
// and its advice would not help. A log that --dir names and a policy that policy check is given are those of its user.
func outside(cmd *cobra.Command, args []string) error {
	path := strings.Fields(cmd.CommandPath())
	line := strings.Join(path[1:], " ") + " "
	dir, config := cmd.Flags().Lookup("dir"), cmd.Flags().Lookup("config")
	switch {
	case !slices.ContainsFunc(outsideOnly, func(words string) bool { return strings.HasPrefix(line, words+" ") }),
		dir != nil && dir.Changed,
		cmd.Name() == "check" && (config.Changed || slices.ContainsFunc(args, isThere)),
		!exits.IsInside():
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

// isThere reports whether a word is the path of a file or folder.
func isThere(word string) bool {
	_, err := os.Stat(word)
	return err == nil
}

// runRoot prints the help for a bare "egressd", and an error for a command that does not exist.
func runRoot(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("there is no command %q", args[0])
	if near := spelling.Nearest(args[0], cli.CommandNames(cmd)); near != "" {
		return hint.Misused(err, "did you mean egressd "+near+"?")
	}
	return hint.Misused(err, "egressd help")
}

// negated writes "-host:x" as "!host:x" for commands that take filters, because cobra would read a flag.
// After "--" it changes nothing.
func negated(args []string) []string {
	if len(args) == 0 || args[0] != "log" && !(args[0] == "policy" && len(args) > 1 && (args[1] == "suggest" || args[1] == "replay")) {
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
