//go:build linux

package proxy

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// TestAReasonOfARuleReachesTheClient in JSON, in a page, in git's text and in what ssh prints.
func TestAReasonOfARuleReachesTheClient(t *testing.T) {
	const why = "uploads need a ticket"
	w := newWorld(t, "version: 1\nallow: [allowed.test]\ndeny: [{host: denied.test, reason: '<"+why+">', id: no}, {host: '93.184.216.34:*', reason: "+why+"}]\n", nil)
	request := "GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n"
	for agent, want := range map[string]string{
		"User-Agent: git/2.40\r\n": "Reason: <" + why + ">\n", "Accept: text/html\r\n": "Reason: &lt;" + why + "&gt;",
	} {
		if got := w.dial(t).send(request + agent + "\r\n").rest(); !strings.Contains(got, want) {
			t.Errorf("%q: %s", agent, got)
		}
	}
	_, body, _ := strings.Cut(w.dial(t).send(request+"\r\n").rest(), "\r\n\r\n")
	var problem struct{ Reason, Rule string }
	if err := json.Unmarshal([]byte(body), &problem); err != nil || problem.Rule != "no" || problem.Reason != "<"+why+">" {
		t.Errorf("%v: %s", err, body)
	}
	ssh := w.captured(t, netip.MustParseAddrPort("93.184.216.34:22"))
	if got := ssh.send("SSH-2.0-OpenSSH_9.7\r\n").rest(); !strings.Contains(got, why) {
		t.Errorf("ssh reads %q", got)
	}
}
