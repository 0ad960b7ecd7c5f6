package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// A Scanner looks for the end of one message head in a buffer that grows, at a
// total cost that is linear in the length of the head. Its zero value is ready.
type Scanner struct {
	line  int // where the line begins whose end was not yet seen
	seen  int // bytes searched so far
	lines int
}

// Scan returns the length of the head at the start of b, with its empty line.
// b is everything that came since the head began, so each call passes what the
// last one passed and what came since. It returns ErrShort while the head is
// incomplete, and a *MalformedError as soon as a line ends in something other
// than CRLF, the first line is empty, or a limit is passed.
func (s *Scanner) Scan(b []byte, lim Limits) (n int, err error) {
	for {
		i := bytes.IndexByte(b[min(s.seen, len(b)):], '\n')
		if i < 0 {
			s.seen = len(b)
			if len(b) >= lim.bytes() {
				return 0, tooLarge("the head is too long")
			}
			return 0, ErrShort
		}
		end := s.seen + i
		line := b[s.line:end]
		s.line, s.seen = end+1, end+1
		last, err := s.count(line, lim)
		if err != nil {
			return 0, err
		}
		if last {
			return end + 1, nil
		}
	}
}

// count judges one line without its LF, and reports whether it ends the head.
func (s *Scanner) count(line []byte, lim Limits) (last bool, err error) {
	s.lines++
	switch cr := bytes.IndexByte(line, '\r'); {
	case cr < 0:
		return false, malformed("a line that ends in a bare LF")
	case cr != len(line)-1:
		return false, malformed("a bare CR")
	case s.seen > lim.bytes():
		return false, tooLarge("the head is too long")
	case cr == 0 && s.lines == 1:
		return false, malformed("an empty line before the message")
	case cr == 0:
		return true, nil
	case s.lines > lim.fields()+1:
		return false, tooLarge("too many field lines")
	}
	return false, nil
}

// ParseRequest parses the head of a request at the start of b and returns its
// length in bytes with the empty line. It returns ErrShort while the head is
// incomplete and a *MalformedError if it is not acceptable; framing that
// [Request.Body] refuses is not acceptable.
//
// Each call searches b from the start. Where bytes trickle in, call it when a
// [Scanner] has found the end.
func ParseRequest(b []byte, lim Limits) (req Request, n int, err error) {
	var s Scanner
	n, err = s.Scan(b, lim)
	if err != nil {
		return Request{}, 0, err
	}
	req, err = parseRequest(string(b[:n]), s.lines)
	if err != nil {
		return Request{}, 0, err
	}
	return req, n, nil
}

// ReadRequest parses the next request's head from br and consumes it. The head
// has to fit in br's buffer as well as in lim. On error nothing is consumed, so
// br.Peek(br.Buffered()) still shows what was sent. The error is io.EOF if
// nothing was sent and io.ErrUnexpectedEOF if the head was cut short.
func ReadRequest(br *bufio.Reader, lim Limits) (Request, error) {
	head, lines, err := peekHead(br, lim)
	if err != nil {
		return Request{}, err
	}
	req, err := parseRequest(string(head), lines)
	if err != nil {
		return Request{}, err
	}
	_, err = br.Discard(len(head))
	return req, err
}

func peekHead(br *bufio.Reader, lim Limits) (head []byte, lines int, err error) {
	var s Scanner
	lim.Bytes = min(lim.bytes(), br.Size())
	for {
		b, err := br.Peek(br.Buffered())
		if err != nil {
			return nil, 0, err
		}
		n, err := s.Scan(b, lim)
		if !errors.Is(err, ErrShort) {
			return b[:n], s.lines, err
		}
		if _, err := br.Peek(len(b) + 1); err != nil {
			return nil, 0, unexpected(err, len(b))
		}
	}
}

// unexpected turns an EOF in the middle of something into what it is.
func unexpected(err error, already int) error {
	if errors.Is(err, io.EOF) && already > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

func parseRequest(head string, lines int) (Request, error) {
	line, rest := cutLine(head)
	req, err := parseRequestLine(line)
	if err != nil {
		return Request{}, err
	}
	if req.Fields, err = parseFields(rest, lines-2); err != nil {
		return Request{}, err
	}
	if err := req.checkHost(); err != nil {
		return Request{}, err
	}
	if _, err := req.Body(); err != nil {
		return Request{}, err
	}
	return req, nil
}

// cutLine splits scanned text after its first line, which ends in CRLF or, in a response, in LF.
func cutLine(s string) (line, rest string) {
	line, rest, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

func parseFields(s string, n int) (Fields, error) {
	fields := make(Fields, 0, n)
	for {
		var line string
		if line, s = cutLine(s); line == "" {
			return fields, nil
		}
		f, err := parseField(line)
		if err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
}

func parseRequestLine(line string) (Request, error) {
	method, rest, ok := strings.Cut(line, " ")
	if !ok || !isToken(method) {
		return Request{}, malformed("a request line without a method")
	}
	target, version, _ := strings.Cut(rest, " ")
	switch err := checkTarget(method, target); {
	case err != nil:
		return Request{}, err
	case version == "":
		return Request{}, malformed("a request line without an HTTP version")
	case strings.Contains(version, " "):
		return Request{}, malformed("a space in the request target, which has to be written as %20")
	}
	minor, err := parseVersion(version)
	if err != nil {
		return Request{}, err
	}
	return Request{Method: method, Target: target, Minor: minor}, nil
}

// checkTarget refuses bytes that no target has, and blames the host where they stand in it.
func checkTarget(method, target string) error {
	_, authority, absolute := strings.Cut(target, "://")
	authority, _, _ = strings.Cut(authority, "/")
	inHost := method == "CONNECT" || absolute && !isVisible(authority)
	switch {
	case isVisible(target):
		return nil
	case inHost:
		return malformedHost(notASCII)
	case target == "" || !isText(target) || strings.Contains(target, "\t"):
		return malformed("a request target that is empty or has a control character")
	}
	return nil
}

// parseVersion takes HTTP/1.0 and HTTP/1.1. Later minor versions are refused,
// not read as 1.1: nobody sends them but to see who notices.
func parseVersion(s string) (minor int, err error) {
	switch {
	case s == "HTTP/1.1":
		return 1, nil
	case s == "HTTP/1.0":
		return 0, nil
	case len(s) == 8 && s[:5] == "HTTP/" && s[5] != '1' && isDigit(s[5]) && s[6] == '.' && isDigit(s[7]):
		return 0, &MalformedError{Problem: "an HTTP version other than 1.0 and 1.1", Status: 505}
	default:
		return 0, malformed("not an HTTP/1 version")
	}
}

// checkHost demands what RFC 9112, section 3.2 demands, and that a Host names
// one host and nothing more.
func (r *Request) checkHost() error {
	hosts := r.Fields.count("Host")
	switch {
	case hosts > 1:
		return malformedHost("more than one Host field")
	case hosts == 0 && r.Minor == 1:
		return malformedHost("no Host field")
	case hosts == 0:
		return nil
	}
	return checkAuthority(r.Fields.Get("Host"))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// AppendRequest appends the head of an HTTP/1.1 request to dst. It writes what
// it is given: method, target and fields come from this package's parsers, or
// are known to be valid (see [Field.Valid]).
func AppendRequest(dst []byte, method, target string, fields Fields) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, target...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	return AppendFields(dst, fields)
}

// AppendResponse appends the head of an HTTP/1.1 response to dst, under the
// same conditions as [AppendRequest]. status has three digits.
func AppendResponse(dst []byte, status int, reason string, fields Fields) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, reason...)
	dst = append(dst, "\r\n"...)
	return AppendFields(dst, fields)
}

// AppendFields appends field lines and the empty line that ends them.
func AppendFields(dst []byte, fields Fields) []byte {
	for i := range fields {
		dst = append(dst, fields[i].Name...)
		dst = append(dst, ": "...)
		dst = append(dst, fields[i].Value...)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}
