package other

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR [PAGES]",
		Short:  "Write the manual pages into a directory, and the reference in Markdown into another",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return hint.Misused(fmt.Errorf("it takes a directory or two, and has %d", len(args)), "egressd man build/man")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return hint.Failed(err, "egressd man DIR, where DIR can be made")
			}
			if len(args) == 2 {
				if err := writePages(cmd.Root(), args[1]); err != nil {
					return err
				}
			}
			return writeManPages(cmd.Root(), args[0])
		},
	}
}

// writeManPages writes a page for cmd and one for every command below it that
// is not hidden. The pages depend on the command tree alone.
func writeManPages(cmd *cobra.Command, dir string) error {
	cmd.InitDefaultHelpFlag()
	name := filepath.Join(dir, pageName(cmd)+".1")
	if err := os.WriteFile(name, manPage(cmd), 0o644); err != nil {
		return hint.Failed(err, "egressd man DIR, where DIR can be written")
	}
	for _, below := range documented(cmd) {
		if err := writeManPages(below, dir); err != nil {
			return err
		}
	}
	return nil
}

// documented returns the commands below cmd that have a page, sorted by name.
func documented(cmd *cobra.Command) []*cobra.Command {
	all := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool { return !cli.Documented(c) })
	slices.SortFunc(all, func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manPage(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 \"\" egressd \"egressd manual\"\n", strings.ToUpper(roff(pageName(cmd))))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(synopsis(cmd)))
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", roffText(text))
	manFlags(&b, "OPTIONS", cmd.NonInheritedFlags())
	manFlags(&b, "GLOBAL OPTIONS", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(cmd.Example))
	}
	manSeeAlso(&b, cmd)
	return b.Bytes()
}

func synopsis(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return cmd.Use + " COMMAND"
	}
	return cmd.UseLine()
}

func manFlags(b *bytes.Buffer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(name+" "+value)), roff(usage))
	})
}

func manSeeAlso(b *bytes.Buffer, cmd *cobra.Command) {
	var pages []string
	if cmd.HasParent() {
		pages = append(pages, pageName(cmd.Parent()))
	}
	for _, below := range documented(cmd) {
		pages = append(pages, pageName(below))
	}
	for i, p := range pages {
		pages[i] = ".BR " + roff(p) + " (1)"
	}
	if len(pages) > 0 {
		fmt.Fprintf(b, ".SH SEE ALSO\n%s\n", strings.Join(pages, ",\n"))
	}
}

// roff escapes text so that no part of it is taken for a request.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// roffText is text in paragraphs: an empty line begins a new one, an indented
// line stands as it is.
func roffText(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		l = strings.TrimRight(l, "\n")
		switch {
		case l == "":
			b.WriteString(".PP\n")
		case strings.HasPrefix(l, " "):
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(l))
		default:
			fmt.Fprintln(&b, roff(l))
		}
	}
	return b.String()
}
