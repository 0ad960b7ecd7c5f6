package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestOneFileForTwoRings loads one policy file on machines of two rings, and on one whose label is misspelt.
func TestOneFileForTwoRings(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	for name, text := range map[string]string{
		"egressd.yaml": `version: 1
labels: {ring: "${RING}"}
rego:
  - {path: canary.rego, when: {labels: {ring: canary}}}
  - {path: stable.rego, when: {labels: {ring: stable}}}
`,
		"canary.rego": "package egress\n\nallow contains {\"rule\": \"canary\"} if input.destination.host == \"canary.test\"\n",
		"stable.rego": "package egress\n\nallow contains {\"rule\": \"stable\"} if input.destination.host == \"stable.test\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ids := map[string]string{}
	for _, ring := range []string{"canary", "stable"} {
		t.Setenv("RING", ring)
		c, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Compile()
		if err != nil {
			t.Fatal(err)
		}
		ids[p.RulesID()] = ring
		for _, host := range []string{"canary", "stable"} {
			to, err := policy.ParseDestination(host + ".test:443")
			if err != nil {
				t.Fatal(err)
			}
			d := p.Decide(t.Context(), &policy.Request{Via: policy.ViaConnect, Destination: to})
			if (d.Verdict == policy.Allow) != (host == ring) {
				t.Errorf("ring %s: %s is %v", ring, host, d.Verdict)
			}
		}
		if all, at := c.Sources(); len(all) != 1 || at[0] != map[string]string{"canary": "rego[0]", "stable": "rego[1]"}[ring] {
			t.Errorf("ring %s: %v at %v", ring, all, at)
		}
	}
	if len(ids) != 2 {
		t.Errorf("two rings have the same rules: %v", ids)
	}
	t.Setenv("RING", "canray")
	if _, err := Load(path); err == nil {
		t.Error("a machine of neither ring has a policy")
	}
}
