package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/record"
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

// TestEachIDOfE2BIsASandbox serves the policy for E2B, and connects by SOCKS5 as E2B does: for an address, with
// the id of a sandbox in the user.
func TestEachIDOfE2BIsASandbox(t *testing.T) {
	w := openWorld(t)
	const token, address = "s3cret-of-the-platform", "151.101.1.70" // an address that no host of the world has
	policy := testfiles.Block(t, "how-to/hosted-sandboxes.md", "yaml", "## E2B")
	policy = strings.Replace(policy, `"0.0.0.0:1080"`, `"0.0.0.0:1080", "127.0.0.1:3128"`, 1) // Run waits for two listeners
	d := world.NewDaemonIn(t, w, policy)
	d.PutFile(t, "build.token", token)
	d.PutFile(t, "review.token", token+"-2")
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	curl := "curl -sS -m20 --noproxy '' --cacert " + w.Origin.Ca.File(t) + " --socks5 " + lab.GatewayIPv4 + ":1080 "
	get := " --resolve registry.npmjs.org:443:" + address + " https://registry.npmjs.org/left-pad"
	for _, row := range []struct{ user, sandbox, class string }{
		{"build-0b9a7f42-5c1d-4e53-9a55-1f9d3d0c2a11:" + token, "build-0b9a7f42-5c1d-4e53-9a55-1f9d3d0c2a11", ""},
		{"build-i7Zq:" + token, "build-i7Zq", ""},
		{"review-i7Zq:" + token + "-2", "review-i7Zq", "default-deny"},
		{"review-i7Zq:" + token, "", "unknown-sandbox"},
	} {
		mark := d.LogMark(t)
		out, _ := d.Shell(t.TempDir(), "", curl+"--proxy-user "+row.user+get+" 2>&1")
		if strings.Contains(out, `{"name":"left-pad"}`) != (row.class == "") {
			t.Errorf("%s: %s", row.user, out)
		}
		recorded := func() bool {
			all, _ := d.Log.Since(mark)
			return slices.ContainsFunc(all, func(r record.Record) bool {
				return r.Kind != record.KindDNS && r.Decision != nil && r.Sandbox == row.sandbox && r.Decision.Class == row.class
			})
		}
		if !world.Eventually(world.Settling, recorded) {
			all, _ := d.Log.Since(mark)
			t.Errorf("%s: no record of sandbox %q, class %q, in %+v", row.user, row.sandbox, row.class, all)
		}
	}
}
