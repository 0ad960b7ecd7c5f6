package policy

import (
	"bytes"
	"github.com/egressd/egressd/rego/bundle"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/rego"
)

// TestWhatFailsIsNotSigned signs a bundle that somebody else has built. A policy that would fail is refused, and the
// file stays as it is.
func TestWhatFailsIsNotSigned(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.pem")
	private, _, err := newKeys("ES256")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, private, 0o600); err != nil {
		t.Fatal(err)
	}
	for text, signs := range map[string]bool{
		`deny contains {"rule": "x"} if input.http.method == "BREW"`:              true,
		`deny contains {"rule": "x", "msg": "no"} if input.http.method == "BREW"`: false,
		`allow contains {"rule": "x"} if host.any(input.tls.sni, ["a.test:443"])`: false,
	} {
		packed, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n" + text + "\n")}}, bundle.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "bundle.tar.gz")
		if err := os.WriteFile(path, packed, 0o600); err != nil {
			t.Fatal(err)
		}
		err = signFile(io.Discard, io.Discard, path, path, &signOptions{key: key}, false)
		after, readErr := os.ReadFile(path)
		if (err == nil) != signs || readErr != nil || bytes.Equal(packed, after) == signs {
			t.Errorf("%s: %v, %v", text, err, readErr)
		}
	}
}
