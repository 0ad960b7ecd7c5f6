package inspect

import (
	"context"
	"net"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
)

// A forwarded is one request for https whose TLS with the sandbox a platform's proxy has ended already. It is a flow of
// its own, and has its own TLS with the upstream.
type forwarded struct {
	*tunnel
	request policy.Request // without its HTTP part
}

// Forwarded returns the tunnel of one request of h for https. r is what the policy is asked, without the HTTP part.
func (s *Inspector) Forwarded(h *forward.Client, r policy.Request) forward.InspectedTunnel {
	return &forwarded{&tunnel{Client: h, inspector: s, inspection: s.inspection.Load(), dst: r.Destination}, r}
}

// Request implements [forward.InspectedTunnel].
func (f *forwarded) Request(ctx context.Context, h *policy.HTTPRequest) (*egress.Flow, error) {
	r := f.request
	r.HTTP = h
	flow, err := f.Forwarder.Gate.Open(ctx, f.Peer, r)
	if err != nil {
		return nil, err
	}
	f.flow = flow
	return flow, nil
}

// Redial implements [forward.InspectedTunnel]. Each request has a connection of its own.
func (f *forwarded) Redial(ctx context.Context, request *egress.Flow) (net.Conn, error) {
	if f.inspection == nil {
		return nil, request.Failed(policy.NetworkTLS, "egressd has no authorities to verify the destination by")
	}
	raw, err := request.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c, err := f.handshakeUpstream(ctx, raw, []string{h1})
	if err != nil {
		return nil, f.tlsFailed(err)
	}
	return c, nil
}
