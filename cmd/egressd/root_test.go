package main

import (
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
