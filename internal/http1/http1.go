// Package http1 parses and writes HTTP/1.1 messages (RFC 9112) for a forward
// proxy that writes every message anew and relays none.
//
// Requests are read strictly: whatever two parsers could read in two ways is an
// error, and nothing is repaired. Responses are read as the RFC says. The package opens no connection, follows no
// redirect, makes no host canonical and takes no decision.
//
//	req, err := http1.ReadRequest(br, limits)
//	target, err := http1.ParseTarget(req.Method, req.Target)
//	framing, err := req.Body()
//	body := http1.NewBodyReader(br, framing, limits)
//	…
//	head := http1.AppendRequest(nil, req.Method, target.RequestURI(), fields)
package http1

import "errors"

// ErrShort says that a message head is good so far but not complete.
var ErrShort = errors.New("http1: the message head is not complete")

// A MalformedError says why a message is refused.
type MalformedError struct {
	Problem string // never holds what the peer sent
	Status  int    // how a server answers a request with this problem: 400, 417, 431 or 505
	Host    bool   // the problem is in the host or port that was asked for
	Large   bool   // responses only: the head is larger than it may be
	Field   string // of such a head, the name of the longest field; a token that the peer chose
}

func (e *MalformedError) Error() string { return "http1: malformed message: " + e.Problem }

func malformed(problem string) error { return &MalformedError{Problem: problem, Status: 400} }

func malformedHost(problem string) error {
	return &MalformedError{Problem: problem, Status: 400, Host: true}
}

func tooLarge(problem string) error { return &MalformedError{Problem: problem, Status: 431} }

// Limits bound a message head, and the trailer section of a chunked body.
type Limits struct {
	Bytes  int // of the head with its empty line; 0 means 64 KiB
	Fields int // field lines; 0 means 256

	// Grow is asked before a response's head takes n bytes more memory than the reader's buffer. nil means yes.
	Grow func(n int) bool
}

func (l Limits) bytes() int {
	if l.Bytes <= 0 {
		return 64 << 10
	}
	return l.Bytes
}

func (l Limits) fields() int {
	if l.Fields <= 0 {
		return 256
	}
	return l.Fields
}

// A Request is the head of a request, as it was sent: the target is not
// looked into, see [ParseTarget]. Its strings share one copy of the head.
type Request struct {
	Method string // a token, case as sent: methods are case-sensitive
	Target string // without spaces and control characters; a path may hold bytes above 0x7f
	Minor  int    // 0 for HTTP/1.0, 1 for HTTP/1.1
	Fields Fields
}

// A Response is the head of a response. Its strings share one copy of the head.
type Response struct {
	Status int // 100 to 999
	Reason string
	Minor  int // 0 for HTTP/1.0, 1 for HTTP/1.1
	Fields Fields
}

// Persistent reports whether the client expects to send another request on
// the connection (RFC 9112, section 9.3). HTTP/1.0 clients of a proxy do not.
func (r *Request) Persistent() bool {
	return r.Minor == 1 && !r.Fields.HasToken("Connection", "close") && !r.Fields.HasToken("Proxy-Connection", "close")
}

// Persistent reports whether the server keeps the connection open after a
// response whose end is known.
func (r *Response) Persistent() bool {
	return r.Minor == 1 && !r.Fields.HasToken("Connection", "close")
}

// ErrExpectation is the error of a request with an expectation that nobody meets (RFC 9110 section 10.1.1).
var ErrExpectation = &MalformedError{Problem: "an expectation other than 100-continue", Status: 417}

// ExpectsContinue reports whether the client waits for 100 (Continue) before
// it sends the body. Any other expectation is an error with status 417.
func (r *Request) ExpectsContinue() (bool, error) {
	expect := r.Fields.Values("Expect")
	switch {
	case len(expect) == 0:
		return false, nil
	case len(expect) == 1 && equalFold(expect[0], "100-continue"):
		return r.Minor == 1, nil
	default:
		return false, ErrExpectation
	}
}
