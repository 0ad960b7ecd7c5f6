package config_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/config/configtest"
)

func TestPlainFilesAndFoldersAreOnePart(t *testing.T) {
	c := configtest.In(t, map[string]string{
		"egressd.yaml":  "version: 1\nrego: [egress.rego, more/]\n",
		"egress.rego":   "package egress\nallow contains {\"rule\": \"a\"} if data.hosts[input.destination.host]\n",
		"more/data.yml": "hosts: {a.test: true}\n",
	})
	parts, err := c.RegoParts(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(parts) != 1 || len(parts[0].Sources) != 2 || parts[0].At != "rego[0]" || parts[0].Sandbox != "" {
		t.Errorf("the parts are %+v; want one with both files", parts)
	}
	if _, err := c.Compile(); err != nil || len(c.Rules) != 1 {
		t.Errorf("compiled %d evaluators, %v; want one", len(c.Rules), err)
	}
}

func TestPartsThatNobodyMakesAreRefused(t *testing.T) {
	for name, entry := range map[string]string{
		"a bundle": "{bundle: b.tar.gz}", "a bundle for another gate": "{bundle: b.tar.gz, input: envoy}",
	} {
		c := configtest.In(t, map[string]string{"egressd.yaml": "version: 1\nrego: [egress.rego, " + entry + "]\n", "egress.rego": "package egress\ndeny contains {\"rule\": \"a\"}\n"})
		if _, err := c.Compile(); err == nil || !strings.Contains(err.Error(), "rego[1]") {
			t.Errorf("%s: %v; want an error that names rego[1]", name, err)
		}
	}
}

// TestAnotherInputIsAPartOfItsOwn has a policy for Envoy beside one for egressd.
func TestAnotherInputIsAPartOfItsOwn(t *testing.T) {
	c := configtest.In(t, map[string]string{
		"egressd.yaml":  "version: 1\nrego: [egress.rego, {path: authz, input: envoy}, more.rego, {path: bridge, input: authbridge}]\n",
		"egress.rego":   "package egress\nallow contains {\"rule\": \"a\"}\n",
		"more.rego":     "package egress\nallow contains {\"rule\": \"b\"}\n",
		"authz/a.rego":  "package envoy.authz\ndefault allow := false\n",
		"bridge/b.rego": "package authbridge.outbound\ndefault request := false\n",
	})
	parts, err := c.RegoParts(nil)
	if err != nil || len(parts) != 3 || len(parts[0].Sources) != 2 || parts[1].Options.Input != "envoy" || parts[2].Options.Input != "authbridge" {
		t.Errorf("the parts are %+v, %v", parts, err)
	}
	if _, err := c.Compile(); err != nil || len(c.Rules) != 3 || !c.Inspects() {
		t.Errorf("compiled %d evaluators, %v", len(c.Rules), err)
	}
}
