package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/http1"
)

// A Test is one line of "tests": a verdict, and a request that it is for.
type Test struct {
	// Want is Allow, Deny or Ask. A host alone, without a request, counts as
	// allowed where some of its requests are.
	Want    Verdict
	Text    string
	Request Request

	at place
}

func parseTest(text string) (Test, error) {
	word, rest, _ := strings.Cut(text, " ")
	test := Test{Text: text}
	switch word {
	case "allow":
		test.Want = Allow
	case "deny":
		test.Want = Deny
	case "ask":
		test.Want = Ask
	default:
		return Test{}, fmt.Errorf("%q does not begin with allow, deny or ask; write one, then a request like GET https://example.com/", printable(text))
	}
	var err error
	test.Request, err = ParseCheck(rest)
	return test, err
}

// ParseCheck reads what "egressd check" and "tests" are asked about: an http or
// https URL, with a method in front or GET, or a host with a port or 443. The
// request has no sandbox, no time, no usage, and no addresses.
func ParseCheck(text string) (Request, error) {
	method, subject, ok := strings.Cut(text, " ")
	if !ok {
		method, subject = "", text
	}
	if scheme, rest, ok := strings.Cut(subject, "://"); ok {
		return parseCheckURL(method, scheme, rest)
	}
	if method != "" {
		return Request{}, fmt.Errorf("%q has a method but no URL; write https:// in front of the host", printable(text))
	}
	destination, err := parseCheckHost(subject, "443")
	return Request{Via: ViaConnect, Destination: destination}, err
}

func parseCheckURL(method, scheme, rest string) (Request, error) {
	r := Request{Via: ViaConnect}
	port := "443"
	switch scheme {
	case "https":
	case "http":
		r.Via, port = ViaHTTP, "80"
	default:
		return Request{}, fmt.Errorf("%q is neither http nor https; write one of them, or the host and its port", printable(scheme))
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	var err error
	if r.Destination, err = parseCheckHost(rest[:end], port); err != nil {
		return Request{}, err
	}
	r.HTTP, err = parseCheckRequest(method, rest[end:])
	if err != nil {
		return Request{}, err
	}
	return r, nil
}

func parseCheckRequest(method, rest string) (*HTTPRequest, error) {
	if method == "" {
		method = "GET"
	}
	switch {
	case !plainMethod(method):
		return nil, fmt.Errorf("%q is not a method; write it as requests do, like GET", printable(method))
	case method == "CONNECT":
		return nil, errors.New("CONNECT opens a tunnel and has no URL; write the host and its port")
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("a fragment is never sent; leave out # and what follows")
	}
	if i := strings.IndexFunc(rest, func(c rune) bool { return c <= ' ' || c >= 0x7f }); i >= 0 {
		return nil, errors.New("the URL has a space or a byte that is not ASCII; write it percent-encoded")
	}
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	target, err := http1.ParseTarget(method, rest) // as serve reads it
	var odd *http1.MalformedError
	switch {
	case errors.As(err, &odd):
		return nil, fmt.Errorf("the URL has %s, which serve takes for no request; write one slash, and %% as %%25", odd.Problem)
	case err != nil:
		return nil, err
	}
	return &HTTPRequest{Method: method, Path: target.Path, Query: target.Query, BodySize: -1}, nil
}

// parseCheckHost adds the default port where none is written.
func parseCheckHost(text, port string) (Destination, error) {
	if text == "" {
		return Destination{}, errors.New("there is no host; write a host like example.com, or a URL")
	}
	bracketed := strings.HasPrefix(text, "[")
	switch {
	case bracketed && strings.HasSuffix(text, "]"), !strings.Contains(text, ":"):
		text += ":" + port
	case !bracketed && strings.Count(text, ":") > 1:
		text = "[" + text + "]:" + port
	}
	return ParseDestination(text)
}

// Judge decides a request of [ParseCheck] as serve comes to it: an https URL as
// a tunnel, and with its method and path only where that is inspected. judged
// is what of r was decided last.
func (p *Policy) Judge(ctx context.Context, r Request) (d Decision, judged Request) {
	if r.HTTP == nil || r.inClear() {
		return p.Decide(ctx, &r), r
	}
	judged = r
	judged.HTTP = nil
	if d = p.Decide(ctx, &judged); d.Verdict != Inspect {
		return d, judged
	}
	judged.HTTP, judged.Protocol = r.HTTP, ProtocolHTTP
	judged.TLS = &ClientHello{Inspected: true}
	if !r.Destination.Addr.IsValid() {
		judged.TLS.ServerName = r.Destination.Host
	}
	return p.Decide(ctx, &judged), judged
}

// testAttempts is how often a policy may fail at a test: one that was cut off because the
// machine was busy with something else says nothing about its rules.
const testAttempts = 3

// run decides what the test asks and returns an error that says what is red.
func (t *Test) run(ctx context.Context, p *Policy) error {
	r := t.Request
	r.Usage = new(Usage) // as at the start of a sandbox
	var d Decision
	for range testAttempts {
		if d, _ = p.Judge(ctx, r); d.Class != PolicyError {
			break
		}
	}
	got := d.Verdict
	if got == Inspect {
		got = Allow
	}
	if got == t.Want {
		return nil
	}
	return fmt.Errorf("the test %q is red: expected %s, came %s by rule %s, layer %s (%s); correct the test or that rule",
		t.Text, t.Want, got, d.Rule, d.Layer, d.Reason)
}
