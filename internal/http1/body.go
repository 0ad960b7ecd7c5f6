package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// A BodyReader reads one message body. Read returns io.EOF exactly once the
// body is complete, and the buffered reader then stands at the next message.
// A body that ends too early is io.ErrUnexpectedEOF, one with bad chunks a
// *MalformedError; both stay. It is not safe for concurrent use.
type BodyReader struct {
	// Trailer holds the trailer fields of a chunked body once Read has
	// returned io.EOF, without those that a trailer must not have.
	Trailer Fields

	br         *bufio.Reader
	kind       BodyKind
	left       int64 // bytes left of the body, or of the chunk
	extensions int   // bytes of chunk extensions so far
	lim        Limits
	started    bool // chunked: a chunk was begun
	lax        bool // chunked: blanks may stand behind a size
	err        error
}

// NewBodyReader returns a reader of the body that comes next in br. lim bounds
// the trailer section; lines of chunk sizes and trailers have to fit in br's
// buffer too.
func NewBodyReader(br *bufio.Reader, f Framing, lim Limits) *BodyReader {
	b := &BodyReader{br: br, kind: f.Kind, left: max(f.Length, 0), lim: lim, lax: f.Lax}
	if f.Kind == BodyNone {
		b.err = io.EOF
	}
	return b
}

// Read implements [io.Reader]. It returns as many buffered chunks as fit into p, so that small chunks are not
// passed on one by one.
func (b *BodyReader) Read(p []byte) (n int, err error) {
	n, err = b.read(p)
	for err == nil && n > 0 && n < len(p) && b.left == 0 && b.begun() {
		more, late := b.read(p[n:])
		if n += more; late != nil {
			break // it stays
		}
	}
	return n, err
}

// begun reports whether a next chunk has begun in the buffer, so that some of it can be read
// without waiting.
func (b *BodyReader) begun() bool {
	const end, longest = len("\r\n"), 32 // of a line with a size, but for extensions
	there, _ := b.br.Peek(min(b.br.Buffered(), end+longest))
	if b.kind != BodyChunked || len(there) <= end || isZero(there[end:]) { // behind the last one there may be a trailer to wait for
		return false
	}
	line := bytes.IndexByte(there[end:], '\n')
	return line >= 0 && end+line+1 < b.br.Buffered()
}

// isZero reports whether a line begins with a size that is zero, or may be.
func isZero(line []byte) bool {
	digits := bytes.TrimLeft(line, "0")
	return len(digits) == 0 || len(digits) < len(line) && !strings.ContainsRune("123456789abcdefABCDEF", rune(digits[0]))
}

func (b *BodyReader) read(p []byte) (n int, err error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.kind == BodyUntilClose:
		n, b.err = b.br.Read(p)
		return n, b.err
	case b.left == 0:
		if b.err = b.next(); b.err != nil {
			return 0, b.err
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err = b.br.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if n > 0 {
		return n, nil // an EOF beside the last bytes is not an early one
	}
	b.err = unexpected(err, 1)
	return 0, b.err
}

// next is called where a body or chunk has no bytes left. It begins the next
// chunk, or returns io.EOF at the end.
func (b *BodyReader) next() error {
	if b.kind != BodyChunked {
		return io.EOF
	}
	if b.started {
		if err := b.endChunk(); err != nil {
			return err
		}
	}
	b.started = true
	size, err := b.readSize()
	if err != nil {
		return err
	}
	b.left = size
	if size > 0 {
		return nil
	}
	if b.Trailer, err = b.readTrailer(); err != nil {
		return err
	}
	return io.EOF
}

// endChunk takes the CRLF behind the bytes of a chunk.
func (b *BodyReader) endChunk() error {
	for _, want := range []byte("\r\n") {
		c, err := b.br.ReadByte()
		if err != nil {
			return unexpected(err, 1)
		}
		if c != want {
			return malformed("a chunk that does not end in CRLF")
		}
	}
	return nil
}

func (b *BodyReader) readSize() (int64, error) {
	line, err := b.readLine()
	if err != nil {
		return 0, err
	}
	size, digits := parseHex(line)
	if digits == 0 || digits > 16 || size < 0 {
		return 0, malformed("a bad chunk size")
	}
	const most = 4 << 10
	extensions := line[digits:]
	if b.lax {
		extensions = strings.Trim(extensions, " \t")
	}
	b.extensions += len(extensions)
	if b.extensions > most || !validExtensions(extensions) {
		return 0, malformed("a bad chunk extension")
	}
	return size, nil
}

// parseHex reads the digits that s begins with. More than 16 are counted, but
// make the value meaningless; one over 63 bits is negative.
func parseHex(s string) (value int64, digits int) {
	for digits < len(s) && isHex(s[digits]) {
		value = value<<4 | int64(unhex(s[digits]))
		digits++
	}
	return value, digits
}

// validExtensions reports whether s is a sequence of chunk extensions (RFC
// 9112, section 7.1.1) without any whitespace inside. They are ignored otherwise.
func validExtensions(s string) bool {
	for s != "" {
		if s[0] != ';' {
			return false
		}
		s = s[1:]
		n := tokenLength(s)
		if n == 0 {
			return false
		}
		if s = s[n:]; s == "" || s[0] != '=' {
			continue
		}
		s = s[1:]
		if n = max(tokenLength(s), quotedLength(s)); n == 0 {
			return false
		}
		s = s[n:]
	}
	return true
}

func tokenLength(s string) (n int) {
	for n < len(s) && isTokenByte(s[n]) {
		n++
	}
	return n
}

func quotedLength(s string) int {
	if s == "" || s[0] != '"' {
		return 0
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return 0
}

func (b *BodyReader) readTrailer() (Fields, error) {
	var trailer Fields
	for size, lines := 0, 0; ; lines++ {
		line, err := b.readLine()
		if err != nil {
			return nil, err
		}
		size += len(line) + 2
		switch {
		case size > b.lim.bytes():
			return nil, tooLarge("the trailer section is too long")
		case line == "":
			return trailer, nil
		case lines >= b.lim.fields():
			return nil, tooLarge("too many trailer fields")
		}
		f, err := parseField(line)
		if err != nil {
			return nil, err
		}
		if !isForbiddenTrailer(f.Name) {
			trailer = append(trailer, f)
		}
	}
}

// isForbiddenTrailer names the fields that matter before the body is read:
// framing, routing, authentication, and what says how to take the content
// (RFC 9110, section 6.5.1).
func isForbiddenTrailer(name string) bool {
	return isHopByHop(name) || hasPrefixFold(name, "Content-") || hasPrefixFold(name, "If-") || isOneOf(name, []string{
		"Host", "Authorization", "WWW-Authenticate", "Cookie", "Set-Cookie", "Expect", "Max-Forwards", "Range",
		"Cache-Control", "Pragma", "Age", "Date", "Expires", "Location", "Retry-After", "Vary", "Warning",
	}) || isOneOf(name, methodFields)
}

// readLine reads a line that ends in CRLF and returns it without that.
func (b *BodyReader) readLine() (string, error) {
	line, err := b.br.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", tooLarge("a line in a chunked body is too long")
	case err != nil:
		return "", unexpected(err, 1)
	}
	n := len(line) - len("\r\n")
	if n < 0 || line[n] != '\r' {
		return "", malformed("a line that ends in a bare LF")
	}
	text := string(line[:n])
	if !isText(text) {
		return "", malformed("a control character in a chunked body's lines")
	}
	return text, nil
}

func unhex(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return lower(c) - 'a' + 10
}

// A ChunkedWriter writes a body in chunks to a buffered writer, which the
// caller flushes. A body that broke off must not be closed: without the last
// chunk its reader knows that something is missing.
type ChunkedWriter struct{ bw *bufio.Writer }

// NewChunkedWriter returns a writer of one body.
func NewChunkedWriter(bw *bufio.Writer) *ChunkedWriter { return &ChunkedWriter{bw} }

// Write writes p as one chunk, and nothing where p is empty.
func (w *ChunkedWriter) Write(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	var head [18]byte
	line := strconv.AppendUint(head[:0], uint64(len(p)), 16)
	line = append(line, "\r\n"...)
	if _, err := w.bw.Write(line); err != nil {
		return 0, err
	}
	if n, err = w.bw.Write(p); err != nil {
		return n, err
	}
	_, err = w.bw.WriteString("\r\n")
	return n, err
}

// Close writes the last chunk and the trailer section, whose fields are valid.
func (w *ChunkedWriter) Close(trailer Fields) error {
	_, err := w.bw.Write(AppendFields([]byte("0\r\n"), trailer))
	return err
}
