package waysin

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/miekg/dns"
)

// inquiryPolicy allows the name of egressd itself, and everything else, so that nothing but egressd keeps the name from leaving.
const inquiryPolicy = "version: 1\ndefault: allow\nallow: [allowed.test]\n"

// TestEgressdAnswersItsSandboxes asks egressd by each way in for a proxy what the sandbox may reach. Nothing leaves.
func TestEgressdAnswersItsSandboxes(t *testing.T) {
	d := world.Start(t, inquiryPolicy)
	const url = "http://egressd.internal/allowed"
	for says, flags := range map[string]string{
		"absolute form": "", "CONNECT": "-p ", "SOCKS5": "-x socks5h://$LAB_PROXY ", "case and dot": "-p --connect-to ::EGRESSD.internal.:80 ",
	} {
		mark := d.World.Mark(t)
		out, err := d.Shell(t.TempDir(), "", "curl -sS -i --max-time 10 -H 'Accept: application/json' "+flags+url)
		if err != nil || !strings.Contains(out, "HTTP/1.1 200 OK") || !strings.Contains(out, `"what":"allowed.test"`) || !strings.Contains(out, "nosniff") {
			t.Errorf("%s: %v, %q", says, err, out)
		}
		d.World.Silent(t, mark)
	}
	for says, line := range map[string]string{
		"TLS":                    "curl -sS -i --max-time 10 https://egressd.internal/ 2>&1",
		"another port":           "curl -sS -i --max-time 10 http://egressd.internal:8080/",
		"another port by SOCKS5": "curl -sS -i --max-time 10 -x socks5h://$LAB_PROXY http://egressd.internal:22/ 2>&1",
		"below":                  "curl -sS -i --max-time 10 http://x.egressd.internal/",
	} {
		mark := d.World.Mark(t)
		out, _ := d.Shell(t.TempDir(), "", line)
		if !strings.Contains(out, "403") && !strings.Contains(out, "(97)") || strings.Contains(out, `"what"`) {
			t.Errorf("%s: %q", says, out)
		}
		d.World.Silent(t, mark)
	}
	if found := refusals(t, d, 0, policy.InquiryHost); len(found) != 3 || found[0].Decision.Class != "address-denied" || found[0].Dst.Class != "self" {
		t.Errorf("recorded %+v", found)
	}
}

// TestNobodyElseAnswersForEgressd names egressd on connections to elsewhere, and others on connections to egressd.
func TestNobodyElseAnswersForEgressd(t *testing.T) {
	d := world.Start(t, inquiryPolicy)
	for says, row := range map[string]struct{ to, host, want string }{
		"a tunnel to an allowed host":      {"allowed.test:80", "egressd.internal", "421"},
		"a tunnel to an address":           {"93.184.216.34:80", "egressd.internal", "200"}, // by egressd, as for a captured connection
		"another host in egressd's tunnel": {"egressd.internal:80", "allowed.test", "421"},
		"another port in egressd's tunnel": {"egressd.internal:80", "egressd.internal:8080", "200"}, // the connection decides
	} {
		c, status, err := d.OpenTunnel(row.to, "")
		if err != nil || status != 200 {
			t.Errorf("%s: CONNECT gave %d, %v", says, status, err)
			continue
		}
		c.SetDeadline(time.Now().Add(world.Patience))
		c.Write([]byte("GET /allowed HTTP/1.1\r\nHost: " + row.host + "\r\nConnection: close\r\n\r\n"))
		head := make([]byte, 64)
		n, _ := c.Read(head)
		if got := string(head[:n]); !strings.HasPrefix(got, "HTTP/1.1 "+row.want) && !strings.HasPrefix(got, "HTTP/1.1 403") || strings.Contains(got, "origin ") {
			t.Errorf("%s: %q", says, got)
		}
		c.Close()
	}
	out, _ := d.Shell(t.TempDir(), "", "curl -sS -i --max-time 10 -H 'Host: egressd.internal' http://allowed.test/")
	if !strings.Contains(out, "origin 93.184.216.34:80") && !strings.Contains(out, "origin [") { // the target decides, and Host is written anew
		t.Errorf("the field in an absolute form: %q", out)
	}
	for _, field := range []string{"Origin: http://evil.test", "Sec-Fetch-Site: cross-site"} {
		out, _ := d.Shell(t.TempDir(), "", "curl -sS -i --max-time 10 -H '"+field+"' http://egressd.internal/requests -d '{}'")
		if !strings.Contains(out, "403 ") {
			t.Errorf("a page of another site (%s): %q", field, out)
		}
	}
}

// TestEgressdAnswersCapturedConnections resolves the name at egressd's name server, and connects there without a proxy.
func TestEgressdAnswersCapturedConnections(t *testing.T) {
	eachCapture(t, world.PolicyText(t, "P0"), func(t *testing.T, d *world.Daemon) {
		w := d.World
		mark := w.Mark(t)
		c, err := w.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(world.Patience))
		conn := &dns.Conn{Conn: c}
		if err := conn.WriteMsg(new(dns.Msg).SetQuestion("EGRESSD.internal.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		m, err := conn.ReadMsg()
		if err != nil || len(m.Answer) != 1 {
			t.Fatalf("%v, %v", m, err)
		}
		for _, to := range []string{m.Answer[0].(*dns.A).A.String(), "93.184.216.34"} {
			got, _ := world.TalkTo(w.Sandbox, net.JoinHostPort(to, "80"), "GET /allowed HTTP/1.1\r\nHost: egressd.internal\r\nConnection: close\r\n\r\n", world.Patience)
			if !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "allowed.test") || strings.Contains(got, "origin ") {
				t.Errorf("%s: %q", to, got)
			}
		}
		got, _ := world.TalkTo(w.Sandbox, "93.184.216.34:80", "GET /allowed HTTP/1.1\r\nHost: egressd.internal:81\r\nConnection: close\r\n\r\n", world.Patience)
		if strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("another port: %q", got)
		}
		w.Silent(t, mark, "10.99.0.1")
	})
}
