package audit

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	originPrefix = "egressd/"
	originDigits = 32
	maxNote      = 16 << 10
	keyAlgorithm = 1 // Ed25519, in the keys of signed notes
)

// A checkpoint is what a note of the log says (docs/reference/audit-format.md).
type checkpoint struct {
	origin  string
	size    int64
	root    tlog.Hash
	time    string
	segment int
	first   int64 // seq of the first line of the segment
	bytes   int64 // of its lines before size
	torn    int64 // bytes behind them, where it is sealed
	tornSum string
	next    string // the key of the next epoch, or ""
	sealed  bool
	edge    []byte // of size lines, where it is sealed
}

func (c *checkpoint) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%d\n%s\ntime %s\nsegment %d %d %d\n", c.origin, c.size, c.root, c.time, c.segment, c.first, c.bytes)
	if c.torn > 0 {
		fmt.Fprintf(&b, "torn %d %s\n", c.torn, c.tornSum)
	}
	if c.next != "" {
		fmt.Fprintf(&b, "next %s\n", c.next)
	}
	if c.sealed {
		b.WriteString(strings.TrimSuffix("seal "+base64.StdEncoding.EncodeToString(c.edge), " ") + "\n")
	}
	return b.String()
}

var errNote = errors.New("it is not a checkpoint")

// parseCheckpoint parses the text of a note of this log. It accepts exactly the bytes that [checkpoint.text] writes.
func parseCheckpoint(text string) (*checkpoint, error) {
	c, extensions, err := parseHead(text)
	if err != nil {
		return nil, err
	}
	for _, line := range extensions {
		if err := c.extend(line); err != nil {
			return nil, err
		}
	}
	if !isOrigin(c.origin) || c.text() != text || c.sealed && c.next == "" || c.torn > 0 && !c.sealed {
		return nil, errNote
	}
	if _, err := newEdge(c.size, c.edge); c.sealed && err != nil {
		return nil, err
	}
	if !isTime([]byte(c.time)) || c.next != "" && checkKey(c.next, c.origin) != nil {
		return nil, errNote
	}
	return c, nil
}

// parseHead reads the lines that every tlog-checkpoint has, and returns the others.
func parseHead(text string) (*checkpoint, []string, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[len(lines)-1] != "" || lines[0] == "" {
		return nil, nil, errNote
	}
	c := &checkpoint{origin: lines[0]}
	var ok bool
	if c.size, ok = parseNumber(lines[1]); !ok {
		return nil, nil, errNote
	}
	root, err := decode64(lines[2])
	if err != nil || len(root) != tlog.HashSize {
		return nil, nil, errNote
	}
	copy(c.root[:], root)
	return c, lines[3 : len(lines)-1], nil
}

func (c *checkpoint) extend(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	fields := strings.Split(rest, " ")
	ok := true
	switch {
	case word == "time" && len(rest) == len(timeLayout):
		c.time = rest
	case word == "segment" && len(fields) == 3:
		var number int64
		var oks [3]bool
		number, oks[0] = parseNumber(fields[0])
		c.first, oks[1] = parseNumber(fields[1])
		c.bytes, oks[2] = parseNumber(fields[2])
		c.segment = int(number)
		ok = oks == [3]bool{true, true, true} && number > 0 && int64(c.segment) == number && c.first <= c.size
	case word == "torn" && len(fields) == 2:
		c.torn, ok = parseNumber(fields[0])
		sum, err := hex.DecodeString(fields[1])
		c.tornSum = fields[1]
		ok = ok && err == nil && len(sum) == tlog.HashSize && hex.EncodeToString(sum) == c.tornSum
	case word == "next":
		c.next = rest
	case word == "seal":
		var err error
		c.edge, err = decode64(rest)
		c.sealed, ok = true, err == nil
	default:
		ok = false
	}
	if !ok {
		return errNote
	}
	return nil
}

func isOrigin(text string) bool {
	digits, ok := strings.CutPrefix(text, originPrefix)
	return ok && len(digits) == originDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

func parseNumber(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == text
}

// decode64 accepts only what encodes to the same text again.
func decode64(text string) ([]byte, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err == nil && base64.StdEncoding.EncodeToString(b) != text {
		err = errNote
	}
	return b, err
}

// A signer signs notes with a key that can be wiped, which those of package note
// cannot.
type signer struct {
	name string
	key  ed25519.PrivateKey
}

func (s *signer) Name() string                     { return s.name }
func (s *signer) KeyHash() uint32                  { return keyHash(s.public()) }
func (s *signer) Sign(text []byte) ([]byte, error) { return ed25519.Sign(s.key, text), nil }

// public returns the public key as it is written: name, key hash and key.
func (s *signer) public() string {
	key, err := note.NewEd25519VerifierKey(s.name, s.key.Public().(ed25519.PublicKey))
	if err != nil { // only where the length of the key is wrong
		return ""
	}
	return key
}

// wipe overwrites the key, as far as Go lets us: copies that its library made are
// left to the collector.
func (s *signer) wipe() { clear(s.key) }

// keyHash returns the key hash in a public key that was checked.
func keyHash(key string) uint32 {
	v, err := note.NewVerifier(key)
	if err != nil {
		return 0
	}
	return v.KeyHash()
}

// checkKey checks the form of a public key, and that it is one for origin.
func checkKey(key, origin string) error {
	v, err := note.NewVerifier(key)
	if err != nil {
		return fmt.Errorf("the key is malformed: %w", err)
	}
	_, rest, _ := strings.Cut(key, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	if _, err := decode64(encoded); err != nil || v.Name() != origin || !isOrigin(origin) || fmt.Sprintf("%08x", v.KeyHash()) != rest[:8] {
		return errors.New("the key is not one of this log")
	}
	return nil
}

// CheckKey reports whether text has the form of a public key of a log.
func CheckKey(text string) error {
	origin, _, _ := strings.Cut(text, "+")
	return checkKey(text, origin)
}

// signNote returns the note of a checkpoint.
func (s *signer) signNote(c *checkpoint) ([]byte, error) {
	return note.Sign(&note.Note{Text: c.text()}, s)
}

var (
	errUnknownKey = errors.New("it is not signed by the key that is due")
	errSignature  = errors.New("its signature is wrong")
)

// splitNote cuts a note into its text and its signature lines.
func splitNote(n []byte) (text string, signatures []string, err error) {
	i := bytes.Index(n, []byte("\n\n"))
	if i < 0 || i+2 >= len(n) || len(n) > maxNote || n[len(n)-1] != '\n' {
		return "", nil, errNote
	}
	signatures = strings.Split(string(n[i+2:len(n)-1]), "\n")
	return string(n[:i+1]), signatures, nil
}

// readNote reads a note that the log wrote, and checks its form alone.
func readNote(n []byte) (*checkpoint, error) {
	text, signatures, err := splitNote(n)
	if err != nil {
		return nil, err
	}
	c, err := parseCheckpoint(text)
	if err != nil {
		return nil, err
	}
	if len(signatures) != 1 || !utf8.Valid(n) || bytes.ContainsFunc(n, func(r rune) bool { return r < ' ' && r != '\n' }) {
		return nil, errNote
	}
	return c, checkSignatures(signatures)
}

// isOf reports whether a checkpoint is of the log that a key is for.
func (c *checkpoint) isOf(key string) bool { return strings.HasPrefix(key, c.origin+"+") }

// signedBy reports whether a note has a signature that says it is key's.
func signedBy(n []byte, key string) bool {
	_, signatures, err := splitNote(n)
	name, _, _ := strings.Cut(key, "+")
	for _, s := range signatures {
		encoded, ok := strings.CutPrefix(s, "— "+name+" ")
		signature, bad := base64.StdEncoding.DecodeString(encoded)
		if err == nil && ok && bad == nil && len(signature) > 4 && binary.BigEndian.Uint32(signature) == keyHash(key) {
			return true
		}
	}
	return false
}

// verifyNote checks the signature of key under a note.
func verifyNote(n []byte, key string) error {
	v, err := note.NewVerifier(key)
	if err != nil {
		return errUnknownKey
	}
	return verifyBy(n, v)
}

func verifyBy(n []byte, v note.Verifier) error {
	_, err := note.Open(n, note.VerifierList(v))
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case errors.As(err, &unverified):
		return errUnknownKey
	case errors.As(err, &invalid):
		return errSignature
	case err != nil:
		return errNote
	}
	return nil
}

// A noteReader goes over the notes of a file.
type noteReader struct {
	from *bufio.Reader
	at   int64 // where the next note begins
	n    []byte
}

func newNoteReader(r io.Reader) *noteReader {
	return &noteReader{from: bufio.NewReaderSize(r, maxNote)}
}

// errTornNote says that a file ends within a note.
var errTornNote = errors.New("the file ends within a checkpoint")

// next returns the next note, valid until the next call; io.EOF at the end, and
// errTornNote where what is left has not the two empty lines of a note.
func (r *noteReader) next() ([]byte, error) {
	r.n = r.n[:0]
	var ends noteEnds
	for !ends.both() {
		line, err := r.from.ReadSlice('\n')
		r.n = append(r.n, line...)
		switch {
		case err == io.EOF && len(r.n) == 0:
			return nil, io.EOF
		case err == io.EOF:
			return nil, errTornNote
		case err == bufio.ErrBufferFull || err == nil && len(r.n) > maxNote+1:
			return nil, r.tooLong()
		case err != nil:
			return nil, err
		}
		ends.see(line)
	}
	r.at += int64(len(r.n))
	return r.n[:len(r.n)-1], nil
}

// tooLong distinguishes a note that is too long from zeros and other bytes without the end of a note.
func (r *noteReader) tooLong() error {
	var ends noteEnds
	ends.see(r.n)
	for !ends.both() {
		piece, err := r.from.ReadSlice('\n')
		ends.see(piece)
		if err == io.EOF && !ends.both() {
			return errTornNote
		}
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
			return err
		}
	}
	return errNote
}

// noteEnds counts the empty lines of a note: two newlines in a row, of which none
// counts twice.
type noteEnds struct {
	empty int
	open  bool // the last byte was a newline that does not yet count
}

func (e *noteEnds) see(text []byte) {
	for _, b := range text {
		if b == '\n' && e.open {
			e.empty++
		}
		e.open = b == '\n' && !e.open
	}
}

func (e *noteEnds) both() bool { return e.empty >= 2 }

// checkSignatures checks the form of the signatures of a note that comes from
// elsewhere.
func checkSignatures(lines []string) error {
	for _, line := range lines {
		rest, ok := strings.CutPrefix(line, "— ")
		name, encoded, _ := strings.Cut(rest, " ")
		signature, err := decode64(encoded)
		if !ok || name == "" || strings.Contains(name, "+") || strings.ContainsFunc(name, unicode.IsSpace) || err != nil || len(signature) < 5 {
			return errNote
		}
	}
	return nil
}
