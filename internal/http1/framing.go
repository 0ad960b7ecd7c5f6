package http1

import "strconv"

// A BodyKind says how the end of a body is found.
type BodyKind uint8

const (
	BodyNone       BodyKind = iota // no body
	BodyLength                     // as many bytes as Content-Length says, maybe 0
	BodyChunked                    // chunked transfer coding
	BodyUntilClose                 // responses only: until the connection ends
)

// A Framing says where a body ends.
type Framing struct {
	Kind   BodyKind
	Length int64 // bytes; 0 for BodyNone, -1 where only reading shows it
}

// Body returns the framing of the request's body (RFC 9112, section 6.3). Any
// framing that two parsers could understand differently is a *MalformedError:
// Transfer-Encoding beside Content-Length, in HTTP/1.0, or other than one
// "chunked"; Content-Length twice, as a list, or not plain decimal; a body for
// CONNECT.
func (r *Request) Body() (Framing, error) {
	f, err := framing(r.Fields, r.Minor)
	if err != nil {
		return Framing{}, err
	}
	if r.Method == "CONNECT" && f.Kind != BodyNone {
		if f.Length != 0 {
			return Framing{}, malformed("a body in a CONNECT request")
		}
		return Framing{}, nil // some clients say Content-Length: 0
	}
	return f, nil
}

// Body returns the framing of the response's body, given the method of the
// request it answers. In a 2xx answer to CONNECT, Content-Length and
// Transfer-Encoding mean nothing, but have to be well-formed as elsewhere.
func (r *Response) Body(method string) (Framing, error) {
	f, err := framing(r.Fields, r.Minor)
	if err != nil {
		return Framing{}, err
	}
	switch {
	case r.Status < 200 || r.Status == 204:
		if f.Kind == BodyChunked || f.Length > 0 {
			return Framing{}, malformed("a body in a response that has none")
		}
		return Framing{}, nil
	case r.Status == 304 || method == "HEAD" || method == "CONNECT" && r.Status < 300:
		return Framing{}, nil
	case f.Kind == BodyNone:
		return Framing{BodyUntilClose, -1}, nil
	}
	return f, nil
}

func framing(fields Fields, minor int) (Framing, error) {
	codings, lengths := 0, 0
	var coding, length string
	for i := range fields {
		switch f := &fields[i]; {
		case equalFold(f.Name, "Transfer-Encoding"):
			coding = f.Value
			codings++
		case equalFold(f.Name, "Content-Length"):
			length = f.Value
			lengths++
		}
	}
	switch {
	case codings > 0 && lengths > 0:
		return Framing{}, malformed("both Transfer-Encoding and Content-Length")
	case codings > 0 && minor == 0:
		return Framing{}, malformed("Transfer-Encoding in HTTP/1.0")
	case codings > 1 || codings == 1 && !equalFold(coding, "chunked"):
		return Framing{}, malformed("a Transfer-Encoding other than chunked")
	case codings == 1:
		return Framing{BodyChunked, -1}, nil
	case lengths > 1:
		return Framing{}, malformed("more than one Content-Length")
	case lengths == 1:
		return parseLength(length)
	}
	return Framing{}, nil
}

func parseLength(s string) (Framing, error) {
	if !isDigits(s) || len(s) > 1 && s[0] == '0' {
		return Framing{}, malformed("a Content-Length that is not a plain decimal number")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return Framing{}, malformed("a Content-Length that is too large")
	}
	return Framing{BodyLength, n}, nil
}
