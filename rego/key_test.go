package rego

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/policy"
)

func typicalRequest() *policy.Request {
	return &policy.Request{
		Sandbox: policy.Sandbox{Name: "ci", Kind: "token", Labels: map[string]string{"team": "a"}}, Via: policy.ViaConnect, Protocol: policy.ProtocolTLS, Time: time.Unix(1795000000, 0),
		Destination: policy.Destination{Host: "a.example.com", Port: 443, Addrs: []netip.Addr{netip.MustParseAddr("93.184.216.34")}, Aliases: []string{"b.example.com"}},
		TLS:         &policy.ClientHello{ServerName: "a.example.com", ALPN: []string{"h2"}, JA4: "t13d"},
		HTTP:        &policy.HTTPRequest{Method: "GET", Path: "/", Query: "q=1", Header: map[string][]string{"X-A": {"1"}}, BodySize: 1},
		DNS:         &policy.DNSQuery{Name: "a.example.com", Type: "A"},
		Process:     &policy.Process{PID: 1, Exe: "/bin/sh", Argv: []string{"sh"}},
		Usage:       new(policy.Usage),
		Approved:    []policy.Approval{{Layer: policy.User, Rule: "r", Question: "q"}},
	}
}

// hiddenFields are the fields of a request that no policy in Rego sees.
var hiddenFields = map[string]string{
	"Sandbox.Template":    "says whose quotas count",
	"Sandbox.Attachment":  "tells networks of one sandbox apart",
	"Sandbox.Container":   "is for the record",
	"Protocol":            "is seen as which parts are there",
	"TLS.NoName":          "equals no host",
	"TLS.Malformed":       "is refused whatever a policy says",
	"TLS.Inspected":       "is for the record",
	"HTTP.Body":           "is seen where it is JSON, see TestABodyIsAskedForWhereItDecides",
	"HTTP.Authority":      "is compared with the destination by package policy",
	"HTTP.Upgrade":        "is decided by package policy",
	"HTTP.OtherProtocol":  "is decided by package policy",
	"HTTP.ReplacesMethod": "stands in no field that goes up",
	"HTTP.Nodes":          "are looked up by rules of the file about GraphQL",
	"HTTP.LFS":            "is for rules of the file about git, and the record",
	"HTTP.Own":            "is for rules of the file about GraphQL, and the record",
	"Destination.Aliases": "are judged by rules of the file",
	"Destination.Asked":   "is for the record",
	"Destination.Local":   "is for the record",
	"Approved":            "is looked up by rule",
}

// TestEachFieldOfARequestIsInTheInputOrHidden changes each field of a request.
func TestEachFieldOfARequestIsInTheInputOrHidden(t *testing.T) {
	const all = ^inputFields(0)
	typical := input(typicalRequest(), all)
	for name, r := range fieldtest.Each(typicalRequest) {
		seen := input(r, all).Value.Compare(typical.Value) != 0
		if _, hidden := hiddenFields[name]; seen == hidden {
			t.Errorf("%s: in the input is %t", name, seen)
		}
	}
}

// TestRequestsThatDifferHaveTwoKeys changes each field of a request, and asks for the key of
// policies that read one field of the input and of one that reads all that may be cached.
func TestRequestsThatDifferHaveTwoKeys(t *testing.T) {
	const uncached = readsTime | readsUsage | readsHeaders | readsQuery | readsBody
	reads := []inputFields{^uncached & (1<<len(fieldPaths) - 1)}
	for i := range fieldPaths {
		reads = append(reads, 1<<i)
	}
	for _, known := range reads {
		typical, cached := appendKey(nil, typicalRequest(), known, 0)
		if cached != (known&uncached == 0) {
			t.Errorf("%b: cached is %t", known, cached)
		}
		for name, r := range fieldtest.Each(typicalRequest) {
			if name == "Destination.Addr" {
				continue // Host says it as well
			}
			seen := name == "Approved" || input(r, known).Value.Compare(input(typicalRequest(), known).Value) != 0
			if key, _ := appendKey(nil, r, known, 0); cached && seen && bytes.Equal(key, typical) {
				t.Errorf("%b: a request with another %s has the key of the first", known, name)
			}
		}
	}
}
