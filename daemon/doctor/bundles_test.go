package doctor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/rego/bundle"
)

// TestABundleThatDoesNotCountIsAFinding has a bundle that counts, one that has expired, and one of another key.
func TestABundleThatDoesNotCountIsAFinding(t *testing.T) {
	dir := t.TempDir()
	private, public := testpki.KeyPair(t)
	other, _ := testpki.KeyPair(t)
	packed, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n\nallow contains \"all\" if false\n")}}, bundle.BuildOptions{Revision: "one"})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("key.pem", public)
	path := write("egressd.yaml", []byte("version: 1\nrego: [{bundle: policy.tar.gz, key: key.pem}]\n"))
	for _, row := range []struct {
		says string
		key  []byte
		when time.Time
		good bool
	}{
		{"one that counts", private, time.Now(), true},
		{"one that has expired", private, time.Now().Add(-2 * time.Hour), false},
		{"one of another key", other, time.Now(), false},
	} {
		signed, err := bundle.Sign(packed, bundle.SignOptions{KeyPEM: row.key, Now: row.when, Valid: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		write("policy.tar.gz", signed)
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		all := bundleFindings(c)
		if len(all) != 1 || (all[0].Fix == "") != row.good {
			t.Errorf("%s: %+v", row.says, all)
		}
	}
}
