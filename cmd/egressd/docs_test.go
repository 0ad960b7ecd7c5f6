//go:build linux

package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
	"github.com/spf13/cobra"
)

// TestPoliciesOfTheDocsLoad has every policy of the documentation compile, with its tests green. A part of
// a policy gets the version that it lacks.
func TestPoliciesOfTheDocsLoad(t *testing.T) {
	pages := testfiles.Pages(t)
	evaluators := docsRego(t, pages)
	found := 0
	for name, page := range pages {
		for _, text := range blocks(page, "yaml") {
			if !strings.Contains(text, "version:") {
				text = "version: 1\n" + text
			}
			parsed, err := file.Parse(name, []byte(text))
			if err == nil {
				_, err = parsed.Compile(file.Environment{Evaluators: evaluators, Shadow: evaluators})
			}
			if err != nil {
				t.Errorf("docs/%s: %v\n%s", name, err, text)
			}
			found++
		}
	}
	if found < 20 {
		t.Errorf("the documentation holds %d policies", found)
	}
}

// docsRego loads every module of the documentation, except the adapter of rego-recipes.md: a test of package rego
// loads that one beside a policy for Envoy.
func docsRego(t *testing.T, pages map[string]string) (all []policy.Evaluator) {
	t.Helper()
	for name, page := range pages {
		if name == "how-to/rego-recipes.md" {
			continue
		}
		for _, text := range blocks(page, "rego") {
			e, err := rego.Load([]rego.Source{{Name: name + ".rego", Text: []byte(text)}}, rego.Options{})
			if err != nil {
				t.Fatalf("docs/%s: %v\n%s", name, err, text)
			}
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		t.Fatal("the documentation holds no module")
	}
	return all
}

func blocks(page, kind string) (all []string) {
	for _, b := range testfiles.CodeBlocks(page) {
		if b.Kind == kind {
			all = append(all, b.Text)
		}
	}
	return all
}

func TestTheDocsNameEveryFilterAndCommand(t *testing.T) {
	var all strings.Builder
	for _, page := range testfiles.Pages(t) {
		all.WriteString(page)
	}
	for _, key := range logs.FilterKeys {
		if !strings.Contains(all.String(), "`"+key+":`") {
			t.Errorf("no page names the filter %s:", key)
		}
	}
	for _, name := range cli.CommandNames(cmd.Tree()) {
		if name != "help" && !strings.Contains(all.String(), "egressd "+name) {
			t.Errorf("no page names egressd %s", name)
		}
	}
}

// TestCommandsOfTheDocsExist looks up each egressd command that a page shows, and each of its flags.
func TestCommandsOfTheDocsExist(t *testing.T) {
	root := cmd.Tree()
	found := 0
	for name, page := range testfiles.Pages(t) {
		if strings.HasPrefix(name, "reference/cli/") {
			continue
		}
		for _, line := range shownCommands(page) {
			found++
			if err := existing(root, line); err != nil {
				t.Errorf("docs/%s: %q: %v", name, line, err)
			}
		}
	}
	if found < 100 {
		t.Errorf("the documentation shows %d commands", found)
	}
}

func TestACommandThatDoesNotExistIsFound(t *testing.T) {
	for line, wrong := range map[string]bool{
		"egressd run --learn -- npm ci --omit dev": false,
		"egressd log verify --key K":               false,
		"egressd log host:x.test":                  false,
		"egressd docker run --rm -it node npm":     false,
		"egressd run --learned -- npm ci":          true,
		"egressd chekc x.test":                     true,
		"egressd policy tset":                      true,
		"egressd log verify --keys K":              true,
	} {
		if err := existing(cmd.Tree(), line); err != nil != wrong {
			t.Errorf("%q: %v", line, err)
		}
	}
}

var (
	inline = regexp.MustCompile("`([^`]+)`")
	typed  = regexp.MustCompile(`(?:^|[|;&(] ?|(?:sudo|exec|nice|egressd) )(egressd [a-z-][^|;&)#]*)`)
)

// notCommands are code spans that begin as a command does: a line of the file "ages", and a name in a table.
var notCommands = map[string]bool{"egressd ages 1": true, "egressd rego": true}

// shownCommands returns the command lines of egressd in a page: those in code spans, and those in blocks
// that a reader types.
func shownCommands(page string) (all []string) {
	for _, block := range testfiles.CodeBlocks(page) {
		if block.Kind != "console" && block.Kind != "sh" {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(block.Text, "\\\n", " ")) {
			line = strings.TrimSpace(line)
			command, isCommand := strings.CutPrefix(strings.TrimPrefix(line, "# "), "$ ")
			if block.Kind == "console" && !isCommand && !strings.HasPrefix(line, "# egressd") {
				continue
			}
			for _, match := range typed.FindAllStringSubmatch(command, -1) {
				all = append(all, match[1])
			}
		}
	}
	for _, match := range inline.FindAllStringSubmatch(testfiles.Prose(page), -1) {
		if command := match[1]; strings.HasPrefix(command, "egressd ") && !notCommands[command] {
			all = append(all, command)
		}
	}
	return all
}

// existing returns an error if a command line of egressd names a command or a flag that does not exist.
func existing(root *cobra.Command, line string) error {
	words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n[]|…\"'", r) })
	for len(words) > 0 && words[0] == "egressd" { // as in docker compose exec egressd egressd log
		words = words[1:]
	}
	at := root
	for len(words) > 0 {
		below := child(at, words[0])
		if below == nil {
			break
		}
		at, words = below, words[1:]
	}
	if at.HasSubCommands() && at.Name() != "log" && len(words) > 0 && !strings.HasPrefix(words[0], "-") && words[0] != strings.ToUpper(words[0]) {
		return fmt.Errorf("%s has no command %q", at.CommandPath(), words[0])
	}
	if at.DisableFlagParsing {
		return nil
	}
	at.InitDefaultHelpFlag()
	for _, word := range words {
		if word == "--" {
			return nil
		}
		name, isLong := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(strings.TrimRight(name, ".,:)"), "=")
		switch {
		case isLong && at.Flag(name) == nil && root.Flag(name) == nil:
			return fmt.Errorf("%s has no flag --%s", at.CommandPath(), name)
		case !isLong && len(word) == 2 && word[0] == '-' && word[1] >= 'A' && at.Flags().ShorthandLookup(word[1:]) == nil:
			return fmt.Errorf("%s has no flag %s", at.CommandPath(), word)
		}
	}
	return nil
}

func child(at *cobra.Command, name string) *cobra.Command {
	for _, c := range at.Commands() {
		if c.Name() == name || c.HasAlias(name) {
			return c
		}
	}
	return nil
}
