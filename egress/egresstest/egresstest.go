// Package egresstest opens gates and flows for the tests of packages that use them.
package egresstest

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
)

// Loopback resolves every name to 127.0.0.1.
type Loopback struct{}

// Cached implements [egress.Resolver].
func (Loopback) Cached(string) ([]netip.Addr, []string, bool) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, true
}

// Lookup implements [egress.Resolver].
func (Loopback) Lookup(context.Context, string) ([]netip.Addr, []string, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, nil
}

// Open opens a gate with a policy file's text in force. It has a log of its own, and knows no sandbox by name.
func Open(t testing.TB, text string, config egress.Config) *egress.Gate {
	t.Helper()
	return OpenIn(t, filepath.Join(t.TempDir(), "audit"), text, config)
}

// OpenIn is [Open] with the folder of the log, which is not there yet.
func OpenIn(t testing.TB, dir, text string, config egress.Config) *egress.Gate {
	t.Helper()
	log, err := audit.Create(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	everybody, err := sandbox.NewDirectory(nil)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := file.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	config.Log, config.Sandboxes = log, everybody
	gate := egress.New(config)
	if err := gate.SetPolicy(t.Context(), p, "test"); err != nil {
		t.Fatal(err)
	}
	return gate
}

// OpenFlow opens a flow to a port of allowed.test, which is loopback.
func OpenFlow(t testing.TB, port string) (*egress.Gate, *egress.Flow, policy.Destination) {
	t.Helper()
	gate := Open(t, "version: 1\nallow: [\"allowed.test:*\"]\nunsafe_allow: [\"127.0.0.1:*\"]\n", egress.Config{Resolver: Loopback{}})
	dst, err := policy.ParseDestination("allowed.test:" + port)
	if err != nil {
		t.Fatal(err)
	}
	flow, err := gate.Open(t.Context(), sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:40000")}, policy.Request{Via: policy.ViaConnect, Destination: dst})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flow.Close(egress.End{Outcome: "closed"}) })
	return gate, flow, dst
}
