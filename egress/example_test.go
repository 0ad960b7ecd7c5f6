package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// only allows one destination.
type only struct{ policy.Destination }

func (o only) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	if r.Destination.Host == o.Host && r.Destination.Port == o.Port {
		return policy.Decision{Verdict: policy.Allow, Rule: "only", Layer: policy.User}, nil
	}
	return policy.Decision{Verdict: policy.Abstain}, nil
}

// A program that accepts connections of sandboxes opens a flow for each, dials by it, and closes it.
func Example() {
	upstream, stop := greeter()
	defer stop()
	gate, end, err := newGate(only{upstream})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	ctx := context.Background()
	peer := sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:40000")}
	flow, err := gate.Open(ctx, peer, policy.Request{Via: policy.ViaConnect, Destination: upstream})
	if err != nil {
		fmt.Println(err) // a *egress.Refusal: show it to the client
		return
	}
	conn, err := flow.Dial(ctx)
	if err != nil {
		fmt.Println(err)
		flow.Close(egress.End{Outcome: "failed"})
		return
	}
	greeting, _ := io.ReadAll(conn)
	flow.Close(egress.End{Down: int64(len(greeting)), Outcome: "closed"})
	fmt.Printf("%s\n", greeting)

	elsewhere, _ := policy.ParseDestination("evil.test:443")
	_, err = gate.Open(ctx, peer, policy.Request{Via: policy.ViaConnect, Destination: elsewhere})
	var refusal *egress.Refusal
	fmt.Println(errors.As(err, &refusal), refusal.Decision.Class)
	// Output:
	// hello
	// true default-deny
}

// newGate makes a gate with an audit log of its own.
func newGate(evaluator policy.Evaluator) (gate *egress.Gate, end func(), err error) {
	dir, err := os.MkdirTemp("", "egress-example")
	if err != nil {
		return nil, nil, err
	}
	log, err := audit.Create(filepath.Join(dir, "audit"), audit.Options{})
	if err != nil {
		return nil, nil, err
	}
	everyone, err := sandbox.NewDirectory(nil)
	if err != nil {
		return nil, nil, err
	}
	gate = egress.New(egress.Config{Log: log, Sandboxes: everyone})
	end = func() {
		gate.Shut()
		gate.CloseLeft()
		gate.Records.Settle()
		_ = log.Close()
		_ = os.RemoveAll(dir)
	}
	return gate, end, gate.SetPolicy(context.Background(), policy.New(evaluator), "example")
}

// greeter is a server that greets one connection.
func greeter() (at policy.Destination, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "hello")
			c.Close()
		}
	}()
	at, _ = policy.ParseDestination(l.Addr().String())
	return at, func() { l.Close() }
}
