package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Responses are read as RFC 9112 says, which is more kindly than requests: only egressd reads them before it writes
// them anew, so a reading that somebody else could differ with is safe as long as the connection ends with it.

// ReadResponse parses the next response's head from br and consumes it. A head that does not fit in br's buffer
// is collected beside it, as far as lim lets it grow. The error is io.EOF if nothing was sent and
// io.ErrUnexpectedEOF if the head was cut short.
func ReadResponse(br *bufio.Reader, lim Limits) (Response, error) {
	head, lines, err := readResponseHead(br, lim)
	if err != nil {
		return Response{}, err
	}
	return parseResponse(head, lines)
}

// readResponseHead returns a head with its empty line, and how many lines it has.
func readResponseHead(br *bufio.Reader, lim Limits) (head string, lines int, err error) {
	var long []byte // of the head, what no longer fits in br's buffer
	var s endSearch
	for {
		b, err := br.Peek(s.seen + 1)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return "", 0, unexpected(err, len(long)+len(b))
		}
		if err == nil {
			b, _ = br.Peek(br.Buffered())
			ended := s.search(b)
			if problem := s.beyond(lim); problem != "" {
				return "", 0, tooLargeFor(problem, append(long, b...))
			}
			if ended {
				long = append(long, b[:s.seen]...)
				br.Discard(s.seen)
				return string(long), s.lines, nil
			}
			if len(b) < br.Size() {
				continue
			}
		}
		b, _ = br.Peek(br.Buffered())
		if lim.Grow != nil && !lim.Grow(len(b)) {
			return "", 0, tooLarge("a head for which the sandbox has no memory left")
		}
		long = append(long, b...)
		br.Discard(len(b))
		s.seen = 0
	}
}

// An endSearch looks for the end of a head in a buffer that fills. Each byte is looked at once.
type endSearch struct {
	seen  int // bytes of the buffer that were looked at
	bytes int // of the head so far
	lines int
	line  int  // bytes of the line so far
	cr    bool // the last of them is CR
}

// search reports whether the head ends in b, and then leaves s.seen behind its end. RFC 9112 section 2.2 lets a
// line end in LF alone.
func (s *endSearch) search(b []byte) (ended bool) {
	for s.seen < len(b) {
		rest := b[s.seen:]
		n := bytes.IndexByte(rest, '\n')
		if n < 0 {
			s.line, s.cr = s.line+len(rest), rest[len(rest)-1] == '\r'
			s.seen, s.bytes = len(b), s.bytes+len(rest)
			return false
		}
		if n > 0 {
			s.cr = rest[n-1] == '\r'
		}
		empty := s.line+n == 0 || s.line+n == 1 && s.cr
		s.seen, s.bytes = s.seen+n+1, s.bytes+n+1
		s.lines, s.line, s.cr = s.lines+1, 0, false
		if empty {
			return true
		}
	}
	return false
}

// beyond says which limit the head has passed, or nothing.
func (s *endSearch) beyond(lim Limits) (problem string) {
	switch {
	case s.bytes > lim.bytes():
		return fmt.Sprintf("a head of more than %d bytes", lim.bytes())
	case s.lines > lim.fields()+2:
		return fmt.Sprintf("more than %d header fields", lim.fields())
	}
	return ""
}

// tooLargeFor names the field that takes most of a head that is too large.
func tooLargeFor(problem string, head []byte) error {
	longest, name := 0, ""
	for line := range bytes.Lines(head) {
		field, _, ok := bytes.Cut(line, []byte(":"))
		if len(line) > longest && ok && len(field) <= nameMost && isToken(string(field)) {
			longest, name = len(line), string(field)
		}
	}
	err := &MalformedError{Problem: problem, Status: 431, Large: true}
	if name != "" {
		err.Field = name
	}
	return err
}

// nameMost is how long a field's name may be to be named.
const nameMost = 64

func parseResponse(head string, lines int) (Response, error) {
	line, rest := cutLine(head)
	resp, err := parseStatusLine(line)
	if err != nil {
		return Response{}, err
	}
	if resp.Fields, err = parseResponseFields(rest, lines-2); err != nil {
		return Response{}, err
	}
	if _, err := resp.Body(""); err != nil {
		return Response{}, err
	}
	return resp, nil
}

func parseStatusLine(line string) (Response, error) {
	version, rest, ok := strings.Cut(line, " ")
	minor := 1 // of later ones, too (RFC 9110 section 2.5)
	switch {
	case !ok || len(version) != len("HTTP/1.x") || version[:7] != "HTTP/1." || !isDigit(version[7]):
		return Response{}, malformed("not a status line of HTTP/1")
	case version[7] == '0':
		minor = 0
	}
	code, reason, _ := strings.Cut(rest, " ") // many servers leave out the space before no reason
	if len(code) != 3 || code[0] < '1' || !isDigits(code) {
		return Response{}, malformed("not a status code")
	}
	status := int(code[0]-'0')*100 + int(code[1]-'0')*10 + int(code[2]-'0')
	return Response{Status: status, Reason: text(reason), Minor: minor}, nil
}

// parseResponseFields reads field lines as RFC 9112 has a proxy do it in a response: it takes whitespace before a
// colon away (section 5.1), joins folded lines by a space (5.2), and puts a space in place of control characters
// (RFC 9110 section 5.5).
func parseResponseFields(s string, n int) (Fields, error) {
	fields := make(Fields, 0, max(n, 0))
	for {
		var line string
		if line, s = cutLine(s); line == "" {
			return fields, nil
		}
		if line[0] == ' ' || line[0] == '\t' {
			if len(fields) == 0 {
				return nil, malformed("a folded line before the first field")
			}
			last := &fields[len(fields)-1]
			last.Value = trim(last.Value + " " + trim(text(line)))
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimRight(name, " \t")
		switch {
		case !ok:
			return nil, malformed("a field line without a colon")
		case !isToken(name):
			return nil, malformed("a field name that is not a token")
		}
		fields = append(fields, Field{name, trim(text(value))})
	}
}

// text returns s with a space in place of each control character.
func text(s string) string {
	if isText(s) {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// Body returns the framing of the response's body, given the method of the request it answers (RFC 9112 section
// 6.3). Write [Response.Framed] on, not the fields that say how the body came.
//
// A 1xx, 204 or 304 and the answer to HEAD have none, whatever the fields say. Transfer-Encoding overrides
// Content-Length. Lengths that differ or are none, and codings other than chunked, are a *MalformedError.
func (r *Response) Body(method string) (Framing, error) {
	none := r.Status < 200 || r.Status == 204 || r.Status == 304 || method == "HEAD" || method == "CONNECT" && r.Status < 300
	codings := r.Fields.Values("Transfer-Encoding")
	length, lengths, err := responseLength(r.Fields)
	switch {
	case none:
		faulty := err != nil || r.Status == 304 && len(codings) > 0 // a server may send a last chunk all the same
		if r.Status < 200 || r.Status == 204 {
			faulty = faulty || len(codings) > 0 || length > 0
		}
		return Framing{Lax: true, Faulty: faulty}, nil
	case len(codings) == 1 && equalFold(codings[0], "identity"): // of RFC 2616, where it says nothing
	case len(codings) == 1 && equalFold(codings[0], "chunked"):
		return Framing{Kind: BodyChunked, Length: -1, Lax: true, Faulty: lengths > 0 || r.Minor == 0}, nil
	case len(codings) > 0:
		return Framing{}, malformed("a Transfer-Encoding other than chunked")
	}
	switch {
	case err != nil:
		return Framing{}, err
	case lengths > 0:
		return Framing{Kind: BodyLength, Length: length, Lax: true}, nil
	}
	return Framing{Kind: BodyUntilClose, Length: -1, Lax: true}, nil
}

// Framed returns the response's fields with one Content-Length where it is known, and without it elsewhere. It
// reuses them. The caller adds Transfer-Encoding where it writes chunks.
func (r *Response) Framed(method string, f Framing) Fields {
	length, lengths, err := responseLength(r.Fields)
	plain := lengths == 1 && err == nil && r.Fields.Get("Content-Length") == lengthText(length)
	told := (r.Status == 304 || method == "HEAD") && err == nil && lengths > 0 && !r.Fields.Has("Transfer-Encoding")
	said := f.Kind == BodyLength || f.Kind == BodyNone && told
	fields := r.Fields.Delete("Transfer-Encoding")
	switch {
	case said && plain:
		return fields
	case said:
		return fields.Set("Content-Length", lengthText(length))
	}
	return fields.Delete("Content-Length")
}
