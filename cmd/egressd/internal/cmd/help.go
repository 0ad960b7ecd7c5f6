package cmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/docs"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/spf13/cobra"
)

// topicsWord lists the topics.
const topicsWord = "topics"

// setHelp has the help command show pages of the documentation beside the help of commands. A command counts before a topic.
func setHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	c, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	c.Use, c.Hidden = "help [COMMAND | TOPIC]", true
	c.Short = "Show the help of a command, or a page of the documentation"
	c.Long = `Help shows the help of a command, or a page of the documentation by its name.
egressd help topics lists the pages.`
	c.Example = `  egressd help run
  egressd help troubleshoot
  egressd help policy-file | less`
	c.ValidArgsFunction = completeHelp
	c.Run, c.RunE = nil, func(cmd *cobra.Command, args []string) error { return help(cmd, args) }
}

func help(cmd *cobra.Command, args []string) error {
	root := cmd.Root()
	if found, rest, err := root.Find(args); err == nil && (len(args) == 0 || found != root) && len(rest) == 0 {
		found.InitDefaultHelpFlag()
		found.InitDefaultVersionFlag()
		return found.Help()
	}
	name := strings.Join(args, "-")
	if name == topicsWord {
		listTopics(cmd.OutOrStdout())
		return nil
	}
	if text, ok := docs.Page(strings.TrimSuffix(name, ".md")); ok {
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	err := fmt.Errorf("there is no command and no topic %q", strings.Join(args, " "))
	if near := spelling.Nearest(name, append(cli.CommandNames(root), docs.Names()...)); near != "" {
		return hint.Misused(err, "did you mean egressd help "+near+"?")
	}
	return hint.Misused(err, "egressd help topics")
}

func listTopics(w io.Writer) {
	for _, shelf := range docs.Shelves() {
		fmt.Fprintf(w, "%s:\n", shelf.Name)
		for _, t := range shelf.Topics {
			fmt.Fprintf(w, "  %-27s %s\n", t.Name, strings.ReplaceAll(t.Title, "`", ""))
		}
	}
}

func completeHelp(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	at, _, err := cmd.Root().Find(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []string
	for _, c := range at.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, c.Name())
		}
	}
	if len(args) == 0 {
		all = append(append(all, topicsWord), docs.Names()...)
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}
