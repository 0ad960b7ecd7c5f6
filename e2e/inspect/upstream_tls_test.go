package inspect

import (
	"bufio"
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestUpstreamCertificates has a request meet every flaw. The client, which
// trusts egressd, reads why it was not passed on; nothing of it was.
func TestUpstreamCertificates(t *testing.T) {
	world.Covers(t, "MI-23")
	d := world.Start(t, world.PolicyText(t, "P1"))
	before := d.Descriptors()
	for label := range world.Flaws() {
		for _, way := range []string{world.WayInside, world.WayInsideH2} {
			t.Run(label+" "+way, func(t *testing.T) { refusesUpstream(t, d, label+".looked-at.allowed.test", way) })
		}
	}
	d.Healthy(t, before)
}

func refusesUpstream(t *testing.T, d *world.Daemon, host, way string) {
	v := &world.Vector{
		ID: "MI-23", Says: "a flawed upstream", Policy: "P1", Inside: host + ":443",
		Send:   []string{"GET /x HTTP/1.1\r\nHost: " + host + "\r\n\r\n"},
		Expect: world.Expectation{Status: []int{502}},
	}
	s := d.Observe(t, v, way, "")
	if len(s.Answers) != 1 || s.Answers[0].Status != 502 || s.Answers[0].Problem().Class != string(policy.NetworkTLS) {
		t.Fatalf("answered %+v, %v", s.Answers, s.Err)
	}
	untrusted := slices.Contains([]string{"expired", "other-host", "self-signed", "stranger", "rsa1024", "constrained"}, strings.Split(host, ".")[0])
	if p := s.Answers[0].Problem(); untrusted && (p.Retryable || p.Reason == "") {
		t.Errorf("the client is told to try again, or not why: %+v", p)
	}
	if s.Heard != "" {
		t.Errorf("upstream received %q", s.Heard)
	}
	why := func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Outcome == record.Outcome(policy.NetworkTLS)
	}
	if !slices.ContainsFunc(s.Records, why) {
		t.Errorf("no record says why: %+v", s.Records)
	}
	if s.Held > 0 || !s.Alive {
		t.Errorf("%d sockets are left, alive: %v", s.Held, s.Alive)
	}
}

// TestNeverInspected reaches a host with a flawed certificate that the policy
// keeps shut: it is the client that judges it.
func TestNeverInspected(t *testing.T) {
	world.Covers(t, "MI-23")
	text := strings.Replace(world.PolicyText(t, "P1"), "extra_roots: [lab.pem]", `extra_roots: [lab.pem], never: ["*.opaque.allowed.test"]`, 1)
	text = strings.Replace(text, "  - allowed.test\n", "  - allowed.test\n  - \"*.opaque.allowed.test\"\n", 1)
	d := world.Start(t, text)
	c, _, err := d.OpenTunnel("self-signed.opaque.allowed.test:443", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inner := tls.Client(c, &tls.Config{ServerName: "self-signed.opaque.allowed.test", InsecureSkipVerify: true})
	if _, err := inner.Write([]byte("GET /x HTTP/1.1\r\nHost: self-signed.opaque.allowed.test\r\nConnection: close\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if cn := inner.ConnectionState().PeerCertificates[0].Issuer.CommonName; cn != "lab" {
		t.Errorf("the certificate was made by %q", cn)
	}
	if a, err := world.ReadAnswer(bufio.NewReader(inner), "GET"); err != nil || a.Status != 200 {
		t.Errorf("status %d, %v", a.Status, err)
	}
	inner.Close()
	if r := d.CloseRecord(t, c.LocalAddr().String()); r.TLS == nil || r.TLS.Inspected {
		t.Errorf("recorded %+v", r.TLS)
	}
}
