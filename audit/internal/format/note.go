package format

import (
	"bufio"
	"bytes"
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
	OriginPrefix = "egressd/"
	OriginDigits = 32
	MaxNote      = 16 << 10
	KeyAlgorithm = 1 // Ed25519, in the keys of signed notes
)

// A Checkpoint is what a note of the log says (docs/reference/audit-format.md).
type Checkpoint struct {
	Origin  string
	Size    int64
	Root    tlog.Hash
	Time    string
	Segment int
	First   int64 // seq of the first line of the segment
	Bytes   int64 // of its lines before size
	Torn    int64 // bytes behind them, where it is sealed
	TornSum string
	Next    string // the key of the next epoch, or ""
	Sealed  bool
	Edge    []byte // of size lines, where it is sealed
}

func (c *Checkpoint) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%d\n%s\ntime %s\nsegment %d %d %d\n", c.Origin, c.Size, c.Root, c.Time, c.Segment, c.First, c.Bytes)
	if c.Torn > 0 {
		fmt.Fprintf(&b, "torn %d %s\n", c.Torn, c.TornSum)
	}
	if c.Next != "" {
		fmt.Fprintf(&b, "next %s\n", c.Next)
	}
	if c.Sealed {
		b.WriteString(strings.TrimSuffix("seal "+base64.StdEncoding.EncodeToString(c.Edge), " ") + "\n")
	}
	return b.String()
}

var ErrNote = errors.New("it is not a checkpoint")

// ParseCheckpoint parses the text of a note of this log. It accepts exactly the bytes that [Checkpoint.Text] writes.
func ParseCheckpoint(text string) (*Checkpoint, error) {
	c, extensions, err := ParseHead(text)
	if err != nil {
		return nil, err
	}
	for _, line := range extensions {
		if err := c.extend(line); err != nil {
			return nil, err
		}
	}
	if !IsOrigin(c.Origin) || c.Text() != text || c.Sealed && c.Next == "" || c.Torn > 0 && !c.Sealed {
		return nil, ErrNote
	}
	if _, err := NewEdge(c.Size, c.Edge); c.Sealed && err != nil {
		return nil, err
	}
	if !isTime([]byte(c.Time)) || c.Next != "" && CheckKeyFor(c.Next, c.Origin) != nil {
		return nil, ErrNote
	}
	return c, nil
}

// ParseHead reads the lines that every tlog-checkpoint has, and returns the others.
func ParseHead(text string) (*Checkpoint, []string, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[len(lines)-1] != "" || lines[0] == "" {
		return nil, nil, ErrNote
	}
	c := &Checkpoint{Origin: lines[0]}
	var ok bool
	if c.Size, ok = ParseNumber(lines[1]); !ok {
		return nil, nil, ErrNote
	}
	root, err := Decode64(lines[2])
	if err != nil || len(root) != tlog.HashSize {
		return nil, nil, ErrNote
	}
	copy(c.Root[:], root)
	return c, lines[3 : len(lines)-1], nil
}

func (c *Checkpoint) extend(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	fields := strings.Split(rest, " ")
	ok := true
	switch {
	case word == "time" && len(rest) == len(TimeLayout):
		c.Time = rest
	case word == "segment" && len(fields) == 3:
		var number int64
		var oks [3]bool
		number, oks[0] = ParseNumber(fields[0])
		c.First, oks[1] = ParseNumber(fields[1])
		c.Bytes, oks[2] = ParseNumber(fields[2])
		c.Segment = int(number)
		ok = oks == [3]bool{true, true, true} && number > 0 && int64(c.Segment) == number && c.First <= c.Size
	case word == "torn" && len(fields) == 2:
		c.Torn, ok = ParseNumber(fields[0])
		sum, err := hex.DecodeString(fields[1])
		c.TornSum = fields[1]
		ok = ok && err == nil && len(sum) == tlog.HashSize && hex.EncodeToString(sum) == c.TornSum
	case word == "next":
		c.Next = rest
	case word == "seal":
		var err error
		c.Edge, err = Decode64(rest)
		c.Sealed, ok = true, err == nil
	default:
		ok = false
	}
	if !ok {
		return ErrNote
	}
	return nil
}

func IsOrigin(text string) bool {
	digits, ok := strings.CutPrefix(text, OriginPrefix)
	return ok && len(digits) == OriginDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

func ParseNumber(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == text
}

// Decode64 accepts only what encodes to the same text again.
func Decode64(text string) ([]byte, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err == nil && base64.StdEncoding.EncodeToString(b) != text {
		err = ErrNote
	}
	return b, err
}

// KeyHash returns the key hash in a public key that was checked.
func KeyHash(key string) uint32 {
	v, err := note.NewVerifier(key)
	if err != nil {
		return 0
	}
	return v.KeyHash()
}

// CheckKeyFor checks the form of a public key, and that it is one for origin.
func CheckKeyFor(key, origin string) error {
	v, err := note.NewVerifier(key)
	if err != nil {
		return fmt.Errorf("the key is malformed: %w", err)
	}
	_, rest, _ := strings.Cut(key, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	if _, err := Decode64(encoded); err != nil || v.Name() != origin || !IsOrigin(origin) || fmt.Sprintf("%08x", v.KeyHash()) != rest[:8] {
		return errors.New("the key is not one of this log")
	}
	return nil
}

// CheckKey reports whether text has the form of a public key of a log.
func CheckKey(text string) error {
	origin, _, _ := strings.Cut(text, "+")
	return CheckKeyFor(text, origin)
}

var (
	ErrUnknownKey = errors.New("it is not signed by the key that is due")
	ErrSignature  = errors.New("its signature is wrong")
)

// SplitNote cuts a note into its text and its signature lines.
func SplitNote(n []byte) (text string, signatures []string, err error) {
	i := bytes.Index(n, []byte("\n\n"))
	if i < 0 || i+2 >= len(n) || len(n) > MaxNote || n[len(n)-1] != '\n' {
		return "", nil, ErrNote
	}
	signatures = strings.Split(string(n[i+2:len(n)-1]), "\n")
	return string(n[:i+1]), signatures, nil
}

// ReadNote reads a note that the log wrote, and checks its form alone.
func ReadNote(n []byte) (*Checkpoint, error) {
	text, signatures, err := SplitNote(n)
	if err != nil {
		return nil, err
	}
	c, err := ParseCheckpoint(text)
	if err != nil {
		return nil, err
	}
	if len(signatures) != 1 || !utf8.Valid(n) || bytes.ContainsFunc(n, func(r rune) bool { return r < ' ' && r != '\n' }) {
		return nil, ErrNote
	}
	return c, CheckSignatures(signatures)
}

// IsOf reports whether a checkpoint is of the log that a key is for.
func (c *Checkpoint) IsOf(key string) bool { return strings.HasPrefix(key, c.Origin+"+") }

// SignedBy reports whether a note has a signature that says it is key's.
func SignedBy(n []byte, key string) bool {
	_, signatures, err := SplitNote(n)
	name, _, _ := strings.Cut(key, "+")
	for _, s := range signatures {
		encoded, ok := strings.CutPrefix(s, "— "+name+" ")
		signature, bad := base64.StdEncoding.DecodeString(encoded)
		if err == nil && ok && bad == nil && len(signature) > 4 && binary.BigEndian.Uint32(signature) == KeyHash(key) {
			return true
		}
	}
	return false
}

// VerifyNote checks the signature of key under a note.
func VerifyNote(n []byte, key string) error {
	v, err := note.NewVerifier(key)
	if err != nil {
		return ErrUnknownKey
	}
	return verifyBy(n, v)
}

func verifyBy(n []byte, v note.Verifier) error {
	_, err := note.Open(n, note.VerifierList(v))
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case errors.As(err, &unverified):
		return ErrUnknownKey
	case errors.As(err, &invalid):
		return ErrSignature
	case err != nil:
		return ErrNote
	}
	return nil
}

// A NoteReader goes over the notes of a file.
type NoteReader struct {
	from *bufio.Reader
	At   int64 // where the next note begins
	N    []byte
}

func NewNoteReader(r io.Reader) *NoteReader {
	return &NoteReader{from: bufio.NewReaderSize(r, MaxNote)}
}

// ErrTornNote says that a file ends within a note.
var ErrTornNote = errors.New("the file ends within a checkpoint")

// Next returns the next note, valid until the next call; io.EOF at the end, and
// ErrTornNote where what is left has not the two empty lines of a note.
func (r *NoteReader) Next() ([]byte, error) {
	r.N = r.N[:0]
	var ends noteEnds
	for !ends.both() {
		line, err := r.from.ReadSlice('\n')
		r.N = append(r.N, line...)
		switch {
		case err == io.EOF && len(r.N) == 0:
			return nil, io.EOF
		case err == io.EOF:
			return nil, ErrTornNote
		case err == bufio.ErrBufferFull || err == nil && len(r.N) > MaxNote+1:
			return nil, r.tooLong()
		case err != nil:
			return nil, err
		}
		ends.see(line)
	}
	r.At += int64(len(r.N))
	return r.N[:len(r.N)-1], nil
}

// tooLong distinguishes a note that is too long from zeros and other bytes without the end of a note.
func (r *NoteReader) tooLong() error {
	var ends noteEnds
	ends.see(r.N)
	for !ends.both() {
		piece, err := r.from.ReadSlice('\n')
		ends.see(piece)
		if err == io.EOF && !ends.both() {
			return ErrTornNote
		}
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
			return err
		}
	}
	return ErrNote
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

// CheckSignatures checks the form of the signatures of a note that comes from
// elsewhere.
func CheckSignatures(lines []string) error {
	for _, line := range lines {
		rest, ok := strings.CutPrefix(line, "— ")
		name, encoded, _ := strings.Cut(rest, " ")
		signature, err := Decode64(encoded)
		if !ok || name == "" || strings.Contains(name, "+") || strings.ContainsFunc(name, unicode.IsSpace) || err != nil || len(signature) < 5 {
			return ErrNote
		}
	}
	return nil
}
