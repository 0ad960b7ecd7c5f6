package inspect

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
)

// A loopbackNames resolves every name to 127.0.0.1.
type loopbackNames struct{}

func (loopbackNames) Cached(string) ([]netip.Addr, []string, bool) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, true
}

func (loopbackNames) Lookup(context.Context, string) ([]netip.Addr, []string, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, nil
}

// openFlow opens a flow to a port of allowed.test, which may carry everything but a canary.
func openFlow(t *testing.T, port string) (*egress.Gate, *egress.Flow, policy.Destination) {
	t.Helper()
	log, err := audit.Create(filepath.Join(t.TempDir(), "audit"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	everybody, err := sandbox.NewDirectory(nil)
	if err != nil {
		t.Fatal(err)
	}
	gate := egress.New(egress.Config{Log: log, Sandboxes: everybody, Resolver: loopbackNames{}})
	parsed, err := file.Parse("test.yaml", []byte("version: 1\nallow: [\"allowed.test:*\"]\nunsafe_allow: [\"127.0.0.1:*\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	if err := gate.SetPolicy(t.Context(), p, "test"); err != nil {
		t.Fatal(err)
	}
	canaries, err := secret.NewCanaries([]secret.Canary{{Name: "aws-key", Text: []byte("AKIAQ3EGCANARY77+x/Z9kLm")}})
	if err != nil {
		t.Fatal(err)
	}
	gate.SetCanaries(canaries)
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
