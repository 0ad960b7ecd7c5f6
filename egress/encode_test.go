package egress

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

func typicalRequest() *policy.Request {
	return &policy.Request{
		Sandbox: policy.Sandbox{Name: "ci", Kind: "token"}, Via: policy.ViaConnect, Protocol: policy.ProtocolTLS, Time: time.Now(),
		Destination: policy.Destination{Host: "a.test", Port: 443, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Aliases: []string{"b.test"}},
		TLS:         &policy.ClientHello{ServerName: "a.test", ALPN: []string{"h2"}, JA4: "t13d"},
	}
}

// unrecorded are the fields of requests and decisions that no record says.
var unrecorded = map[string]string{
	"Sandbox.Kind": "stands in the configuration", "Sandbox.Labels": "stand in the configuration",
	"Sandbox.Template": "follows from the name", "Sandbox.Attachment": "is a number of this process", "Destination.Addr": "is said by Host", "Destination.Aliases": "are other people's names",
	"Protocol": "is said by tls and http", "HTTP.Header": "may hold a secret",
	"HTTP.BodySize": "is said by bytes", "HTTP.Upgrade": "is said by status", "HTTP.Nodes": "are said by the body", "HTTP.LFS": "is said by git", "HTTP.OtherProtocol": "is said by status", "HTTP.ReplacesMethod": "is said by the reason",
	"TLS.NoName": "stands in place of ServerName", "TLS.Malformed": "is said by the class", "DNS.Name": "is of a dns record", "DNS.Type": "is of a dns record",
	"Usage": "is a sum of records", "Approved": "is said by the question", "Time": "is the log's",

	"Needs": "leads to inspection", "AnyProtocol": "is the rule's", "ECH": "is the rule's",
	"Upgrade": "is the rule's", "MaxBytesUp": "is the rule's", "BudgetRule": "refuses by its own name", "BudgetLayer": "refuses by its own name",
	"Inject": "is the rule's", "Set": "is the policy's", "Ref": "is said by git",
	"Missed": "is of an opinion, and of no decision", "Source": "tells apart rules of one name for approvals",
}

// TestEachFieldIsRecordedOrSaysWhyNot changes each field of a request and of its decision.
func TestEachFieldIsRecordedOrSaysWhyNot(t *testing.T) {
	w := newWorld(t, nil)
	asks := func() *policy.Request {
		r := typicalRequest()
		r.HTTP, r.Process = &policy.HTTPRequest{Method: "GET", Path: "/"}, &policy.Process{PID: 1, Exe: "/bin/sh", Argv: []string{"sh"}}
		return r
	}
	asked := func() *policy.Decision {
		return &policy.Decision{Verdict: policy.Ask, Class: policy.AskPending, Rule: "r", AddressClass: "private"}
	}
	line := func(r *policy.Request, d *policy.Decision) []byte {
		e := encoder{}
		e.flow(&Flow{gate: w.Gate, request: r, decision: d}, recordOf{kind: record.KindOpen})
		return e.Line
	}
	typical := line(asks(), asked())
	check := func(name string, changed []byte) {
		if _, left := unrecorded[name]; left != bytes.Equal(changed, typical) {
			t.Errorf("%s: recorded is %t\n%s", name, left, changed)
		}
	}
	for name, r := range fieldtest.Each(asks) {
		check(name, line(r, asked()))
	}
	for name, d := range fieldtest.Each(asked) {
		check(name, line(asks(), d))
	}
}

// TestACutPathIsMarked: a reader would take the beginning of a path for the path.
func TestACutPathIsMarked(t *testing.T) {
	w := newWorld(t, nil)
	for length, cut := range map[int]bool{1: false, 1000: false, record.MaxPath: true, 4000: true} {
		r := typicalRequest()
		r.HTTP = &policy.HTTPRequest{Method: "GET", Path: "/" + strings.Repeat("x", length-1)}
		e := encoder{}
		e.Open("")
		e.http(&Flow{gate: w.Gate, request: r}, 0)
		if marked := bytes.Contains(e.Line, []byte(`,"path_cut":true`)); marked != cut {
			t.Errorf("%d bytes: marked %t: %s", length, marked, e.Line)
		}
	}
}
