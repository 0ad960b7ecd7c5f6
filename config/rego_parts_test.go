package config_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/policy"
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
	c := configtest.In(t, map[string]string{"egressd.yaml": "version: 1\nrego: [egress.rego, {bundle: b.tar.gz}]\n", "egress.rego": "package egress\ndeny contains {\"rule\": \"a\"}\n"})
	if _, err := c.Compile(); err == nil || !strings.Contains(err.Error(), "rego[1]") {
		t.Errorf("a bundle: %v; want an error that names rego[1]", err)
	}
}

// TestAnApprovalCountsForOneOfTwoPoliciesOfALayer: both ask by a rule of the same name, and so may a list.
func TestAnApprovalCountsForOneOfTwoPoliciesOfALayer(t *testing.T) {
	const asks = "ask contains {\"rule\": \"upload\"}\n"
	for name, files := range map[string]map[string]string{
		"two of a sandbox": {
			"egressd.yaml": "version: 1\nallow: [a.test]\nrego: [all.rego]\nsandboxes: [{name: ci, source: [10.9.0.0/16], rego: [ci.rego]}]\n",
			"all.rego":     "package egress.ci\n" + asks, "ci.rego": "package egress.ci\n" + asks,
		},
		"a list and a policy of the user": {
			"egressd.yaml":            "version: 1\nask: [{host: a.test, id: upload}]\nrego: [all.rego]\nsandboxes: [{name: ci, source: [10.9.0.0/16]}]\n",
			"all.rego":                "package egress\n" + asks,
			"above/organisation.yaml": "version: 1\n",
		},
	} {
		_, p, err := configtest.Layered(t, files)
		if err != nil {
			t.Fatal(name, err)
		}
		r := policy.Request{Sandbox: policy.Sandbox{Name: "ci"}, Via: policy.ViaConnect, Destination: policy.Destination{Host: "a.test", Port: 443}}
		for _, question := range []string{"Q1", "Q2"} {
			d := p.Decide(t.Context(), &r)
			if d.Verdict != policy.Ask || d.Rule != "upload" {
				t.Fatalf("%s, before %s is answered: %s by %s", name, question, d.Verdict, d.Rule)
			}
			r.Approved = append(r.Approved, policy.Approval{Layer: d.Layer, Source: d.Source, Rule: d.Rule, Question: question})
		}
		if d := p.Decide(t.Context(), &r); d.Verdict != policy.Allow || d.Question != "Q1 Q2" {
			t.Errorf("%s: after both are answered: %s by %s, questions %s", name, d.Verdict, d.Rule, d.Question)
		}
	}
}
