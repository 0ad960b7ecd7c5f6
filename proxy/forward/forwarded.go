package forward

import (
	"context"
	"errors"
	"strings"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A Platform is the proxy of a platform, which passes on the requests of its sandboxes, also those that were inside TLS
// (forwardURL of Vercel Sandbox). Four fields of each request say where it goes. They count only beside a token that
// Verify takes.
type Platform struct {
	// Verify returns the claims of a token. Its errors are for replies and records.
	Verify func(ctx context.Context, token string) (*sandbox.Claims, error)

	// TLS returns the tunnel in which one request of h for https is decided and sent.
	TLS func(h *Client, r policy.Request) InspectedTunnel
}

// The fields of a platform's request.
const (
	forwardedToken  = "Vercel-Sandbox-Oidc-Token"
	forwardedScheme = "Vercel-Forwarded-Scheme"
	forwardedHost   = "Vercel-Forwarded-Host"
	forwardedPort   = "Vercel-Forwarded-Port"
	forwardedPath   = "Vercel-Forwarded-Path"
)

var (
	ErrForwardedConnect = errors.New("a CONNECT, which listen.forwarded does not take")
	ErrForwardedSOCKS   = errors.New("SOCKS, which listen.forwarded does not take")
	errForwardedTwice   = errors.New("a field of the platform stands more than once")
	errForwardedTarget  = errors.New("the request target is no path, as that of forwardURL is")
	errForwardedLacks   = errors.New("the request lacks Vercel-Forwarded-Scheme, -Host, -Port or -Path")
	errForwardedScheme  = errors.New("Vercel-Forwarded-Scheme is neither http nor https")
	errForwardedPath    = errors.New("Vercel-Forwarded-Path is no path")
	errNoToken          = errors.New("the request has no token of the platform")
)

// A forwardedTo is what a platform's request says of the one that the sandbox sent.
type forwardedTo struct {
	token       string // empty: there was none
	secure      bool   // for https
	destination policy.Destination
	target      http1.Target
}

// parseForwarded reads the fields of a platform's request. It believes nothing: the caller verifies the token.
func parseForwarded(req *http1.Request) (to forwardedTo, err error) {
	if own, err := http1.ParseTarget(req.Method, req.Target); err != nil || own.Form != http1.Origin {
		return forwardedTo{}, errForwardedTarget
	}
	values := map[string]string{}
	for _, name := range []string{forwardedToken, forwardedScheme, forwardedHost, forwardedPort, forwardedPath} {
		switch all := req.Fields.Values(name); {
		case len(all) > 1:
			return forwardedTo{}, errForwardedTwice
		case len(all) == 1:
			values[name] = all[0]
		case name != forwardedToken:
			err = errForwardedLacks
		}
	}
	if to.token = values[forwardedToken]; err != nil {
		return to, err
	}
	switch values[forwardedScheme] {
	case "https":
		to.secure = true
	case "http":
	default:
		return to, errForwardedScheme
	}
	if to.destination, err = policy.ParseDestination(values[forwardedHost] + ":" + values[forwardedPort]); err != nil {
		return to, err
	}
	path := values[forwardedPath]
	if !strings.HasPrefix(path, "/") {
		return to, errForwardedPath
	}
	to.target, err = http1.ParseTarget(req.Method, path)
	return to, err
}

// stripForwarded removes the fields of a platform. As in [http1.StripClaims], an underscore counts as a hyphen. It
// reuses f.
func stripForwarded(f http1.Fields) http1.Fields {
	out := f[:0]
	for _, field := range f {
		name := strings.ToLower(strings.ReplaceAll(field.Name, "_", "-"))
		if !strings.HasPrefix(name, "vercel-forwarded-") && name != strings.ToLower(forwardedToken) {
			out = append(out, field)
		}
	}
	return out
}

// forwarded reads where a platform's request goes. The requests of one connection may be of several sandboxes. Each
// request for https therefore has a tunnel of its own.
func (v *h1Conn) forwarded(x *exchange) error {
	v.tunnel = nil
	to, err := parseForwarded(&x.req)
	if err != nil {
		return err
	}
	x.token, x.target, x.dst = to.token, to.target, to.destination
	if !to.secure {
		return nil
	}
	v.closeUpstream()
	hello := &policy.ClientHello{Inspected: true}
	if !x.dst.Addr.IsValid() {
		hello.ServerName = x.dst.Host
	}
	v.tunnel = v.Platform.TLS(v.Client, policy.Request{Via: v.Via, Destination: x.dst, Protocol: policy.ProtocolHTTP, TLS: hello})
	return nil
}

// prove verifies the token of a platform's request. The error is a [*egress.Refusal].
func (v *h1Conn) prove(ctx context.Context, x *exchange) error {
	err := errNoToken
	if x.token != "" {
		v.Peer.Claims, err = v.Platform.Verify(ctx, x.token)
	}
	if err == nil {
		return nil
	}
	why := err.Error()
	if errors.Is(err, context.Canceled) {
		why = "the client left while the keys for its token were fetched"
	}
	refusal := v.Forwarder.Gate.Refuse(v.Peer, v.Via, redact(http1.AppendRequest(nil, x.req.Method, x.req.Target, nil)), policy.UnknownSandbox, why)
	refusal.Method = x.req.Method
	return refusal
}

// forwardedAnswer is the answer to a refused request of a platform. There is no proxy that the program could
// authenticate to, as 407 says.
func forwardedAnswer(class policy.Class) Answer {
	if class == policy.UnknownSandbox {
		return Answer{Status: 403}
	}
	return AnswerTo(class)
}
