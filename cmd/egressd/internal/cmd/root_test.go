package cmd

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/docs"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/spf13/cobra"
)

func TestNegationsAreNoFlags(t *testing.T) {
	for args, want := range map[string]string{
		"log -host:a.test -f":        "log !host:a.test -f",
		"log by host -host:x --json": "log by host !host:x --json",
		"log -n 3 -f x":              "log -n 3 -f x",
		"log -- -host:x":             "log -- -host:x",
		"log --dir=a:b":              "log --dir=a:b",
		"run -p 80:80 -- x -host:y":  "run -p 80:80 -- x -host:y",
		"":                           "",
	} {
		if got := strings.Join(negated(strings.Fields(args)), " "); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

func TestARemovedCommandSaysWhatToTypeInstead(t *testing.T) {
	names := slices.Collect(maps.Keys(removedCommands))
	for line, want := range map[string]string{
		"watch verdict:deny": "egressd log -f", "log key --run last": "egressd log verify --print-key", "grants revoke GK3Q7XA": "egressd allow --undo",
		"policy explain https://a.test/": "egressd check -v", "approve 01KB6ZQ4SZ --once": "egressd answer ID yes",
	} {
		names = append(names, line)
		if err := removed(strings.Fields(line)); err == nil || !strings.Contains(hint.Next(err), want) {
			t.Errorf("%s: %v, hint %q", line, err, hint.Next(err))
		}
	}
	for _, line := range names {
		var out, talk bytes.Buffer
		if code := Run(strings.Fields(line), &out, &talk); code != 2 || out.Len() > 0 || !strings.Contains(talk.String(), "egressd: hint: egressd ") {
			t.Errorf("%s: exit code %d, %q, %q", line, code, out.String(), talk.String())
		}
	}
}

// TestEachWordThatIsPrintedInsteadExists looks up the commands and flags that removedCommands names.
func TestEachWordThatIsPrintedInsteadExists(t *testing.T) {
	command := regexp.MustCompile(`egressd( [a-z]+)+`)
	flag := regexp.MustCompile(`--([a-z-]+)`)
	for name, instead := range removedCommands {
		if _, err := lookUp(strings.Fields(name)); err == nil {
			t.Errorf("%s is a command", name)
		}
		for _, part := range strings.Split(instead, ", ") {
			found := command.FindString(part)
			if found == "" {
				continue
			}
			c, err := lookUp(strings.Fields(found)[1:])
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, f := range flag.FindAllStringSubmatch(part, -1) {
				if c.Flag(f[1]) == nil {
					t.Errorf("%s: %s has no flag --%s", name, c.CommandPath(), f[1])
				}
			}
		}
	}
}

// lookUp finds the command that words begin with.
func lookUp(words []string) (*cobra.Command, error) {
	c, rest, err := Tree().Find(words)
	if err == nil && (c.HasSubCommands() && len(rest) > 0 && c.Name() == "policy" || !c.HasParent()) {
		err = fmt.Errorf("there is no command %s", words)
	}
	if err == nil && slices.Equal(rest, words[1:]) && len(words) > 1 && (c.Name() == "log" || c.Name() == "ca") {
		err = fmt.Errorf("there is no command %s", words)
	}
	return c, err
}

func TestVersionIsAFlagAsWell(t *testing.T) {
	var flag, command, talk bytes.Buffer
	if code := Run([]string{"--version"}, &flag, &talk); code != 0 || talk.Len() > 0 {
		t.Errorf("exit code %d: %s", code, talk.String())
	}
	Run([]string{"version"}, &command, &talk)
	if flag.String() != command.String() || flag.Len() == 0 {
		t.Errorf("--version says %q, and version %q", flag.String(), command.String())
	}
}

// TestHintsNameTopicsThatExist: a hint that sends a reader to egressd help finds a page, and no page has the name of a command.
func TestHintsNameTopicsThatExist(t *testing.T) {
	names := docs.Names()
	for _, name := range names {
		if slices.Contains(cli.CommandNames(Tree()), name) {
			t.Errorf("egressd help %s shows the command, and never the page", name)
		}
	}
	said := regexp.MustCompile(`egressd help ([a-z0-9-]+)`)
	page := regexp.MustCompile(`"[^"\n]*docs/(?:how-to|reference|explanation|tutorial)/[a-z-]+\.md`)
	found := 0
	root := testfiles.Path(t)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && path != root || e.Name() == "node_modules" || e.Name() == "build" || e.Name() == "docs" || e.Name() == "e2e"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range said.FindAllStringSubmatch(string(text), -1) {
			found++
			if m[1] != topicsWord && !slices.Contains(names, m[1]) && !slices.Contains(cli.CommandNames(Tree()), m[1]) {
				t.Errorf("%s: %s: there is no such page", path, m[0])
			}
		}
		for _, m := range page.FindAllString(string(text), -1) {
			t.Errorf("%s: %s: packages install no pages; say egressd help TOPIC", path, m)
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d hints, %v", found, err)
	}
}
