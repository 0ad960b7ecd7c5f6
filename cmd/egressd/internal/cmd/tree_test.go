package cmd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestEachCommandHasAManualPage writes the pages, and looks for one of each documented command and for no other.
func TestEachCommandHasAManualPage(t *testing.T) {
	dir := t.TempDir()
	if code := Run([]string{"man", dir}, io.Discard, os.Stderr); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	pages := readFolder(t, dir)
	for _, path := range documented(Tree()) {
		title := strings.ReplaceAll(path, " ", "-")
		name := title + ".1"
		if start := ".TH " + strings.ToUpper(strings.ReplaceAll(title, "-", `\-`)) + " 1 "; !bytes.HasPrefix(pages[name], []byte(start)) {
			t.Errorf("%s does not begin with %s", name, start)
		}
		delete(pages, name)
	}
	for name := range pages {
		t.Errorf("%s is about no documented command", name)
	}
}

// documented returns the paths of cmd and of the documented commands below it.
func documented(cmd *cobra.Command) []string {
	paths := []string{cmd.CommandPath()}
	for _, below := range cmd.Commands() {
		if cli.Documented(below) {
			paths = append(paths, documented(below)...)
		}
	}
	return paths
}

// Limits of the tree: commands at the top and in all that the help lists, and flags that one of them or an unlisted one adds.
const (
	mostAtTop    = 20
	mostCommands = 50
	mostFlags    = 230
)

// sameAs are second names of commands, which count once.
var sameAs = map[string]string{"egressd check": "policy check", "egressd log show": "why"}

// TestTheTreeIsSmall compares the tree with testdata/tree.txt, and counts it. A command that help does not list stands in
// brackets. The flags of a command are those that it does not inherit, without --help.
func TestTheTreeIsSmall(t *testing.T) {
	root := Tree()
	var b strings.Builder
	top, all, flags := 0, 0, 0
	var walk func(cmd *cobra.Command, depth int, hidden bool)
	walk = func(cmd *cobra.Command, depth int, hidden bool) {
		if same := sameAs[cmd.CommandPath()]; same != "" {
			fmt.Fprintf(&b, "%s(%s)  as %s\n", strings.Repeat("  ", depth), cmd.Name(), same)
			return
		}
		var names []string
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		flags += len(names)
		name := cmd.Name()
		if hidden {
			name = "(" + name + ")"
		} else if depth > 0 {
			all++
		}
		if depth == 1 && !hidden {
			top++
		}
		fmt.Fprintln(&b, strings.TrimRight(strings.Repeat("  ", depth)+name+"  "+strings.Join(names, " "), " "))
		for _, below := range cmd.Commands() {
			walk(below, depth+1, hidden || below.Hidden)
		}
	}
	walk(root, 0, false)
	fmt.Fprintf(&b, "\n%d commands at the top, %d in all, %d flags\n", top, all, flags)
	golden := filepath.Join("testdata", "tree.txt")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || b.String() != string(want) {
		t.Errorf("%s has another tree (UPDATE=1 go test writes it): %v\n%s", golden, err, &b)
	}
	if top > mostAtTop || all > mostCommands || flags > mostFlags {
		t.Errorf("there are %d commands at the top, %d in all and %d flags", top, all, flags)
	}
}

func readFolder(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = text
	}
	return files
}

// TestCommandLineReferenceIsCurrent compares docs/reference/cli with what the commands say now.
func TestCommandLineReferenceIsCurrent(t *testing.T) {
	kept, generated := filepath.Join("..", "..", "..", "..", "docs", "reference", "cli"), t.TempDir()
	if code := Run([]string{"man", t.TempDir(), generated}, io.Discard, os.Stderr); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	want, have := readFolder(t, generated), readFolder(t, kept)
	if len(want) != len(Tree().Groups()) {
		t.Errorf("there are %d pages for %d groups", len(want), len(Tree().Groups()))
	}
	for name, text := range want {
		if !bytes.Equal(have[name], text) {
			t.Errorf("docs/reference/cli/%s is not what the commands say; in the root folder: make man", name)
		}
	}
	for name := range have {
		if want[name] == nil {
			t.Errorf("docs/reference/cli/%s is about no group; remove it", name)
		}
	}
}

// TestEveryCommandIsExplained has every command and flag say what it is for,
// and every name fit into the completion of a shell.
func TestEveryCommandIsExplained(t *testing.T) {
	for _, cmd := range Tree().Commands() {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || strings.ContainsAny(cmd.Name(), " :") {
			t.Errorf("%s: %q is not a short line without a full stop", cmd.Name(), cmd.Short)
		}
		if !cmd.SilenceErrors && !cmd.Root().SilenceErrors {
			t.Errorf("%s prints its errors itself", cmd.Name())
		}
	}
}

// TestEachCommandHasAGroup holds the help to the folders of the groups, with run in front.
func TestEachCommandHasAGroup(t *testing.T) {
	root := Tree()
	for _, c := range root.Commands() {
		if c.Name() != "help" && !root.ContainsGroup(c.GroupID) {
			t.Errorf("%s has the group %q", c.Name(), c.GroupID)
		}
	}
	if first := root.Groups()[0]; first.ID != "start" {
		t.Errorf("the first group is %s", first.ID)
	}
}
