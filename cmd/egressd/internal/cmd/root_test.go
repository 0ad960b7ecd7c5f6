package cmd

import (
	"bytes"
	"strings"
	"testing"
)

func TestNegationsAreNoFlags(t *testing.T) {
	for args, want := range map[string]string{
		"log -host:a.test -f":        "log !host:a.test -f",
		"log summary -host:x --json": "log summary !host:x --json",
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
	for line, want := range map[string][]string{
		"watch":              {"egressd log -f", "egressd ui"},
		"watch verdict:deny": {"egressd log -f", "egressd ui"},
	} {
		var out, talk bytes.Buffer
		if code := Run(strings.Fields(line), &out, &talk); code != 2 || out.Len() > 0 {
			t.Errorf("%s: exit code %d, %q", line, code, out.String())
		}
		for _, command := range want {
			if !strings.Contains(talk.String(), command) {
				t.Errorf("%s: no %s in %q", line, command, talk.String())
			}
		}
	}
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
