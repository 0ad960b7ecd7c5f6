package sniff

import "errors"

// MaxHello is the length in bytes of the longest first flight that may hold a
// ClientHello, record headers included. A caller whose buffer holds that many
// bytes never sees ErrShort with a full buffer.
const MaxHello = 64 << 10

// ErrShort says that the ClientHello is good so far but not complete.
var ErrShort = errors.New("sniff: the client hello is not complete")

// A MalformedError says why bytes can never become an acceptable ClientHello.
type MalformedError struct {
	Problem string // constant text: never holds what the client sent
	Name    string // the server names that the hello claims, as far as it could be read; any bytes
}

func (e *MalformedError) Error() string { return "sniff: malformed client hello: " + e.Problem }

// A Hello is what a client claims in its ClientHello. It keeps referring to
// the bytes it was parsed from until JA4 has been called once: call JA4 before
// those bytes are used for something else. All else here are copies.
type Hello struct {
	// ServerName is the one host_name of server_name as it stood on the wire:
	// 1 to 255 bytes of printable ASCII without a trailing dot, and otherwise
	// unchecked. It may be an IP literal, have a port, or be upper case.
	ServerName    string
	HasServerName bool

	ALPN []string // RFC 7301, in the client's order

	// ECH is set by encrypted_client_hello in its final form or that of a
	// draft, and by the older ESNI. Real ECH and GREASE look the same.
	ECH       bool
	EarlyData bool   // early_data: application data follows at once
	Version   uint16 // the highest version offered, GREASE apart: 0x0304 is TLS 1.3
	Size      int    // of its records together, in bytes

	suites     []byte // as on the wire: pairs of bytes
	extensions []byte
	signatures []byte
	ja4        string
}

// An Assembler parses one ClientHello out of a stream that arrives in pieces,
// at a total cost that is linear in its length however it is cut into segments
// and records. Its zero value is ready. It is not safe for concurrent use.
type Assembler struct {
	next    int    // offset of the first record that was not yet taken whole
	message []byte // handshake bytes of the records before that
}

const (
	recordHeader    = 5
	messageHeader   = 4
	maxRecord       = 1 << 14
	recordHandshake = 22
	typeClientHello = 1

	tooLong = "longer than 64 KiB"
)

// Parse parses the ClientHello at the start of b, which is everything that the
// client sent so far: each call passes what the last one passed and what came
// since. It returns ErrShort while more is needed and a *MalformedError if more
// cannot help; as few bytes as show the error are enough. Bytes after the record
// that ends the hello are not looked at. Parse keeps no reference to b other than
// the one [Hello] describes. Once it has returned anything but ErrShort, the
// Assembler is spent.
func (a *Assembler) Parse(b []byte) (Hello, error) {
	for {
		record, problem := firstRecord(b[min(a.next, len(b)):])
		if problem == "" {
			problem = a.checkMessage(record)
		}
		if problem != "" {
			return Hello{}, &MalformedError{Problem: problem}
		}
		if !record.whole() {
			return Hello{}, short(b)
		}
		if message := a.take(record); message != nil {
			hello, err := parseMessage(message)
			hello.Size = a.next + recordHeader + record.length
			return hello, err
		}
	}
}

func short(b []byte) error {
	if len(b) >= MaxHello {
		return &MalformedError{Problem: tooLong}
	}
	return ErrShort
}

// A record is the beginning of a TLS record: the payload as far as it arrived,
// and its announced length, 0 while the header is not there.
type record struct {
	payload []byte
	length  int
}

func (r record) whole() bool { return r.length > 0 && len(r.payload) == r.length }

func firstRecord(b []byte) (r record, problem string) {
	switch {
	case len(b) > 0 && b[0] != recordHandshake:
		return r, "a record that is not a handshake"
	case len(b) > 1 && b[1] != 3:
		return r, "not a TLS record version"
	case len(b) < recordHeader:
		return r, ""
	}
	r.length = int(b[3])<<8 | int(b[4])
	if r.length == 0 || r.length > maxRecord {
		return r, "record length out of range"
	}
	r.payload = b[recordHeader:min(len(b), recordHeader+r.length)]
	return r, ""
}

// checkMessage judges the handshake header as soon as it has arrived. It refuses bytes after the hello in its
// last record: TLS 1.3 servers must refuse them (RFC 8446, section 5.1), and clients of older versions never
// send them.
func (a *Assembler) checkMessage(r record) string {
	header, n := a.messageHeader(r.payload)
	if n > 0 && header[0] != typeClientHello {
		return "not a client hello"
	}
	if n < messageHeader {
		return ""
	}
	total := messageLength(header)
	switch {
	case total > MaxHello || a.next+recordHeader+r.length > MaxHello:
		return tooLong
	case len(a.message)+r.length > total:
		return "bytes after the client hello in its record"
	default:
		return ""
	}
}

// messageHeader returns the first n bytes of the handshake message.
func (a *Assembler) messageHeader(payload []byte) (header [messageHeader]byte, n int) {
	n = copy(header[:], a.message)
	n += copy(header[n:], payload)
	return header, n
}

func messageLength(header [messageHeader]byte) int {
	return messageHeader + (int(header[1])<<16 | int(header[2])<<8 | int(header[3]))
}

// take adds a whole record and returns the message once it is complete. A
// message in one record is not copied.
func (a *Assembler) take(r record) []byte {
	message := r.payload
	if len(a.message) > 0 {
		a.message = append(a.message, r.payload...)
		message = a.message
	}
	header, n := a.messageHeader(r.payload)
	if n == messageHeader && messageLength(header) == len(message) {
		return message
	}
	if len(a.message) == 0 {
		a.message = append(a.message, r.payload...)
	}
	a.next += recordHeader + r.length
	return nil
}
