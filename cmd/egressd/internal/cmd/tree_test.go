package cmd

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEachCommandHasAManualPage writes the pages, and looks for one of each command that the help lists and for no other.
func TestEachCommandHasAManualPage(t *testing.T) {
	dir := t.TempDir()
	if code := Run([]string{"man", dir}, io.Discard, os.Stderr); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	pages := readFolder(t, dir)
	for _, path := range listed(Tree()) {
		title := strings.ReplaceAll(path, " ", "-")
		name := title + ".1"
		if start := ".TH " + strings.ToUpper(strings.ReplaceAll(title, "-", `\-`)) + " 1 "; !bytes.HasPrefix(pages[name], []byte(start)) {
			t.Errorf("%s does not begin with %s", name, start)
		}
		delete(pages, name)
	}
	for name := range pages {
		t.Errorf("%s is about no command that the help lists", name)
	}
}

// listed returns the paths of cmd and of the commands below it that the help lists.
func listed(cmd *cobra.Command) []string {
	paths := []string{cmd.CommandPath()}
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			paths = append(paths, listed(below)...)
		}
	}
	return paths
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
	if code := Run([]string{"man", "--pages", generated, t.TempDir()}, io.Discard, os.Stderr); code != 0 {
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
