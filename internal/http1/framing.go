package http1

import (
	"strconv"
	"strings"
)

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
	Lax    bool  // responses only: blanks may stand behind the size of a chunk
	Faulty bool  // responses only: others could read the end elsewhere, and so the connection must end with it
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
		return Framing{Kind: BodyChunked, Length: -1}, nil
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
	return Framing{Kind: BodyLength, Length: n}, nil
}

// responseLength returns the one number that the Content-Length fields of a response say, and how many times they say
// it: a server may repeat itself, in fields or in a list (RFC 9110 section 8.6).
func responseLength(fields Fields) (length int64, times int, err error) {
	for i := range fields {
		if !equalFold(fields[i].Name, "Content-Length") {
			continue
		}
		for element := range strings.SplitSeq(fields[i].Value, ",") {
			n, bad := strconv.ParseInt(trim(element), 10, 64)
			switch {
			case bad != nil || !isDigits(trim(element)):
				err = malformed("a Content-Length that is no number")
			case times > 0 && n != length:
				err = malformed("Content-Lengths that differ")
			}
			length, times = n, times+1
		}
	}
	return length, times, err
}

func lengthText(n int64) string { return strconv.FormatInt(n, 10) }
