package daemon

import (
	"io"
	"os"
	"testing"
)

// started returns a daemon that serves by the policy file at path, and says what it has to say
// to talk. It is closed at the end of the test, which stops it before where it has to be stopped.
func started(t *testing.T, talk io.Writer, path string) *Daemon {
	t.Helper()
	d, err := New(talk, path, Tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// writeFile writes a file that only this user may read.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
