//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheBodyOfAppendIsReplaced has the source of the log, as it is now, go through what
// bench builds the row "off" from.
func TestTheBodyOfAppendIsReplaced(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "audit", "append.go"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := replaceBody(source, "AppendAll", forgetting)
	if err != nil {
		t.Fatal(err)
	}
	head := "func (l *Log) AppendAll(records [][]byte) (first int64, n int, err error) " + forgetting
	if !strings.Contains(string(text), head) || strings.Contains(string(text), "l.enqueue(record)") {
		t.Errorf("the replaced source is\n%s", text)
	}
	if _, err := replaceBody(source, "nonesuch", forgetting); err == nil {
		t.Error("what is not there is replaced")
	}
}

func TestWithoutItsSourceThereIsNoEgressdWithoutALog(t *testing.T) {
	_, err := forgetful(t.TempDir(), t.TempDir())
	var gone *absence
	if !errors.As(err, &gone) || !strings.Contains(gone.hint, "-source") {
		t.Errorf("error %v, want an absence that names -source", err)
	}
}
