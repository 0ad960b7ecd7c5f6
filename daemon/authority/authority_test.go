package authority

import (
	"bytes"
	"strings"
	"testing"
)

func TestBundle(t *testing.T) {
	const system, ours = "# a root\n-----BEGIN A-----\n-----END A-----\n\n\n", "-----BEGIN B-----\n-----END B-----\n"
	joined := Bundle([]byte(system), []byte(ours))
	if want := "# a root\n-----BEGIN A-----\n-----END A-----\n\n# egressd\n" + ours; string(joined) != want {
		t.Errorf("got %q, want %q", joined, want)
	}
	if again := Bundle(joined, []byte(ours)); !bytes.Equal(again, joined) {
		t.Errorf("what the system trusts already stands twice: %q", again)
	}
	if unended := Bundle([]byte(strings.TrimSpace(system)), []byte(ours)); !bytes.Equal(unended, joined) {
		t.Errorf("without a newline at the end of the system's: %q", unended)
	}
}
