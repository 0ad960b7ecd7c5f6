package file

import (
	"errors"
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// ParseCheck reads what "egressd check" and "tests" are asked about: an http or
// https URL, with a method in front or GET, or a host with a port or 443. The
// request has no sandbox, no time, no usage, and no addresses.
func ParseCheck(text string) (policy.Request, error) {
	method, subject, ok := strings.Cut(text, " ")
	if !ok {
		method, subject = "", text
	}
	if scheme, rest, ok := strings.Cut(subject, "://"); ok {
		return parseCheckURL(method, scheme, rest)
	}
	if method != "" {
		return policy.Request{}, fmt.Errorf("%q has a method but no URL; write https:// in front of the host", printable(text))
	}
	destination, err := parseCheckHost(subject, "443")
	return policy.Request{Via: policy.ViaConnect, Destination: destination}, err
}

func parseCheckURL(method, scheme, rest string) (policy.Request, error) {
	r := policy.Request{Via: policy.ViaConnect}
	port := "443"
	switch scheme {
	case "https":
	case "http":
		r.Via, port = policy.ViaHTTP, "80"
	default:
		return policy.Request{}, fmt.Errorf("%q is neither http nor https; write one of them, or the host and its port", printable(scheme))
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	var err error
	if r.Destination, err = parseCheckHost(rest[:end], port); err != nil {
		return policy.Request{}, err
	}
	r.HTTP, err = parseCheckRequest(method, rest[end:])
	if err != nil {
		return policy.Request{}, err
	}
	return r, nil
}

func parseCheckRequest(method, rest string) (*policy.HTTPRequest, error) {
	if method == "" {
		method = "GET"
	}
	switch {
	case !policy.PlainMethod(method):
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
	return &policy.HTTPRequest{Method: method, Path: target.Path, Query: target.Query, BodySize: -1}, nil
}

// parseCheckHost adds the default port where none is written.
func parseCheckHost(text, port string) (policy.Destination, error) {
	if text == "" {
		return policy.Destination{}, errors.New("there is no host; write a host like example.com, or a URL")
	}
	bracketed := strings.HasPrefix(text, "[")
	switch {
	case bracketed && strings.HasSuffix(text, "]"), !strings.Contains(text, ":"):
		text += ":" + port
	case !bracketed && strings.Count(text, ":") > 1:
		text = "[" + text + "]:" + port
	}
	return policy.ParseDestination(text)
}
