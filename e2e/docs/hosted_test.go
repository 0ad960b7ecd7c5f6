package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/testfiles"
)

// TestThePoliciesOfHostedSandboxesHold serves the policy of a page, and connects as the platform of the page does, from another
// network. Allowed hosts answer, others are denied, and a client that proves nothing gets no answer from any host.
func TestThePoliciesOfHostedSandboxesHold(t *testing.T) {
	w := openWorld(t)
	const token = "s3cret-of-the-agent"
	for page, row := range map[string]struct{ at, without string }{ // where the proxy is, with and without a credential
		"hosted-sandboxes.md": {
			at:      "-x https://agent:" + token + "@egress.example.com:3443 --resolve egress.example.com:3443:" + lab.GatewayIPv4,
			without: "-x https://egress.example.com:3443 --resolve egress.example.com:3443:" + lab.GatewayIPv4,
		},
	} {
		t.Run(page, func(t *testing.T) {
			policy := testfiles.Block(t, "how-to/"+page, "yaml", "#")
			policy = strings.Replace(policy, `"tls:0.0.0.0:3443"`, `"tls:0.0.0.0:3443", "127.0.0.1:3128"`, 1) // Run waits for two listeners
			d := world.NewDaemonIn(t, w, policy)
			if err := os.WriteFile(filepath.Join(d.Dir, "agent.token"), []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
			t.Cleanup(func() { d.Stop(t) })
			curl := "curl -sS -m20 --noproxy '' --cacert " + w.Origin.Ca.File(t) + " --proxy-cacert " + filepath.Join(d.Dir, "egressd", "ca", "ca.pem") + " "
			for command, want := range map[string]string{
				curl + row.at + " https://registry.npmjs.org/left-pad": `{"name":"left-pad"}`,
				curl + row.at + " http://registry.npmjs.org/left-pad":  `{"name":"left-pad"}`,
				curl + row.at + " http://example.com/":                 `"class":"default-deny"`,
				curl + row.at + " https://example.com/":                "response 403",
				curl + row.without + " https://registry.npmjs.org/":    "response 407",
				curl + row.without + " http://registry.npmjs.org/":     "egress_denied",
			} {
				if out, _ := d.Shell(t.TempDir(), "", command+" 2>&1"); !strings.Contains(out, want) {
					t.Errorf("%s: %s, want %s", command, out, want)
				}
			}
		})
	}
}
