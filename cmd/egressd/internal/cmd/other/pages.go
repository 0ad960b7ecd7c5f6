package other

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writePages writes the command-line reference in Markdown: one page for each group of egressd --help.
// The pages depend on the command tree alone.
func writePages(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return hint.Failed(err, "egressd man DIR FOLDER, where FOLDER can be made")
	}
	for _, group := range root.Groups() {
		var b bytes.Buffer
		fmt.Fprintf(&b, "# Command line: %s\n\n", lowerFirst(strings.TrimSuffix(group.Title, ":")))
		b.WriteString("<!-- Generated from the commands by make man. Do not edit. -->\n\n")
		for _, cmd := range documented(root) {
			if cmd.GroupID == group.ID {
				pageSections(&b, cmd)
			}
		}
		text := append(bytes.TrimRight(b.Bytes(), "\n"), '\n')
		if err := os.WriteFile(filepath.Join(dir, group.ID+".md"), text, 0o644); err != nil {
			return hint.Failed(err, "egressd man DIR FOLDER, where FOLDER can be written")
		}
	}
	return nil
}

func pageSections(b *bytes.Buffer, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	fmt.Fprintf(b, "## %s\n\n", cmd.CommandPath())
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(b, "```\n%s\n```\n\n%s\n", synopsis(cmd), pageText(text))
	pageFlags(b, cmd)
	if cmd.Example != "" {
		fmt.Fprintf(b, "```\n%s\n```\n\n", strings.TrimRight(unindented(cmd.Example), "\n"))
	}
	for _, below := range documented(cmd) {
		pageSections(b, below)
	}
}

func pageFlags(b *bytes.Buffer, cmd *cobra.Command) {
	var rows []string
	row := func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", strings.TrimSpace(name+" "+value), markdown(usage)))
	}
	cmd.NonInheritedFlags().VisitAll(row)
	cmd.InheritedFlags().VisitAll(row)
	if len(rows) > 0 {
		fmt.Fprintf(b, "| flag | meaning |\n|---|---|\n%s\n", strings.Join(slices.Compact(rows), ""))
	}
}

// pageText is text in paragraphs, in which indented lines are code.
func pageText(text string) string {
	var b strings.Builder
	inCode := false
	fence := func(on bool) {
		if inCode != on {
			b.WriteString("```\n")
			inCode = on
		}
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		indented := strings.HasPrefix(line, " ")
		if line != "" {
			if indented && !inCode {
				b.WriteString("\n")
			}
			fence(indented)
		}
		if indented {
			line = strings.TrimPrefix(line, "  ")
		} else {
			line = markdown(line)
		}
		b.WriteString(line + "\n")
	}
	fence(false)
	return b.String()
}

// unindented removes the two spaces before each line of an example.
func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}

// markdown escapes text so that Markdown shows it as it is.
func markdown(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "_", `\_`, "<", "&lt;", "[", `\[`).Replace(text)
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
