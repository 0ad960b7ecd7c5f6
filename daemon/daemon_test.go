package daemon

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/sandbox"
)

// TestAReloadChangesAllOrNothing edits the policy file of a daemon in ways that
// may not take effect, and in one that does.
func TestAReloadChangesAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	write := func(listen, rest string) {
		text := fmt.Sprintf("version: 1\nlisten: {proxy: [%q]}\naudit: {dir: %q}\nupstream: {dns: [\"127.0.0.1:9\"]}\n%s", listen, filepath.Join(dir, "audit"), rest)
		writeFile(t, path, text)
	}
	write("127.0.0.1:0", "allow: [a.example]\n")
	d := started(t, io.Discard, path)
	defer d.stop(0)
	before := d.Gate.Digest()
	for says, edit := range map[string][2]string{
		"other listeners":           {"[::1]:0", "allow: [a.example]\n"},
		"a listener for a sandbox":  {"127.0.0.1:0", "allow: [a.example]\nsandboxes: [{name: w, listen: \"unix:/nowhere/w.sock\"}]\n"},
		"a token that is not there": {"127.0.0.1:0", "allow: [a.example]\nsandboxes: [{name: ci, token_file: absent}]\n"},
		"a red test":                {"127.0.0.1:0", "allow: [a.example]\ntests: [\"deny a.example\"]\n"},
		"a key that does not exist": {"127.0.0.1:0", "alow: [a.example]\n"},
	} {
		write(edit[0], edit[1])
		if err := d.reloads.apply(context.Background(), "test"); err == nil {
			t.Errorf("%s: taken", says)
		}
		if d.Gate.Digest() != before || d.sandboxes.Credentials(sandbox.Peer{Listener: edit[0]}) {
			t.Errorf("%s: something changed", says)
		}
	}
	write("127.0.0.1:0", "allow: [b.example]\n")
	if err := d.reloads.apply(context.Background(), "test"); err != nil || d.Gate.Digest() == before || !strings.HasPrefix(d.Gate.Digest(), "sha256:") {
		t.Errorf("a good edit: %v, %s", err, d.Gate.Digest())
	}
}
