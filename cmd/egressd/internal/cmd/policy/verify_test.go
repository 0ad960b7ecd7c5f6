package policy

import (
	"github.com/egressd/egressd/rego/bundle"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/clitest"
	"github.com/egressd/egressd/rego"
)

func TestPolicyVerifyRefusesWhatHasExpired(t *testing.T) {
	t.Chdir(t.TempDir())
	private, public, err := newKeys("EdDSA")
	if err != nil {
		t.Fatal(err)
	}
	packed, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n")}}, bundle.BuildOptions{})
	if err == nil {
		packed, err = bundle.Sign(packed, bundle.SignOptions{KeyPEM: private, Now: time.Now().Add(-2 * time.Hour), Valid: time.Hour})
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"bundle.tar.gz": packed, "pub.pem": public} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr strings.Builder
	code := clitest.Run(newPolicy(), []string{"policy", "verify", "bundle.tar.gz", "--key", "pub.pem"}, &stdout, &stderr)
	if code != cli.ExitFailed || stdout.Len() > 0 || !strings.Contains(stderr.String(), "the signature of the bundle has expired: it was good until 20") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}
