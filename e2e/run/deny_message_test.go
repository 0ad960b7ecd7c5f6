package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestTheOperatorsWordsReachRealClients: curl in clear and in TLS, git and ssh show whom to ask, and so does the summary of the run.
func TestTheOperatorsWordsReachRealClients(t *testing.T) {
	const words = "Ask the network team, https://wiki.example.com/egress?a=1&b"
	d := world.NewDaemon(t, "version: 1\nallow: [allowed.test]\ndeny_message: "+words+"\n")
	for client, line := range map[string]string{
		"curl":     "curl -sS -m 10 -H 'Accept: application/json' http://a.denied.test/",
		"curl TLS": "curl -sS -m 10 https://a.denied.test/",
		"git":      "git -c http.proxy= ls-remote http://a.denied.test/repo.git 2>&1",
		"ssh":      "ssh -F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes -o ConnectTimeout=10 a.denied.test true 2>&1",
		"egressd":  `curl -sS -m 10 http://a.denied.test/ >/dev/null; id=$(curl -sS http://egressd.internal/denied | head -1 | cut -d' ' -f1); curl -sS http://egressd.internal/denied/$id`,
	} {
		r := runAs(t, d, "", line+"\n")
		shown := strings.ReplaceAll(r.out, `\u0026`, "&")
		if !strings.Contains(shown, words) {
			t.Errorf("%s shows %q", client, r.out)
		}
		if !strings.Contains(r.talk, "egressd: the operator says: "+words+"\n") {
			t.Errorf("after %s the summary is %q", client, r.talk)
		}
	}
}
