package sniff

import "errors"

// A Retry watches a connection from its first ClientHello on for a second one. A TLS 1.3 server can ask for
// one (HelloRetryRequest, RFC 8446, section 4.1.4). The server has to check that both name the same host, and
// OpenSSL does not. The zero value is ready. It is not safe for concurrent use.
type Retry struct {
	client, server records
	answer         []byte // of the server: as much of its first message as tells what that is
	second         []byte // records, from the first that may be of the second hello
	assembler      Assembler
}

const (
	maxSecond  = 16 << 10 // bytes in the records of a second hello, each of which is kept twice
	maxRecords = 64 << 10 // from one end, without a hello or an answer in them; early data of 16 KiB has fewer
)

// AllowsRetry reports whether a server that speaks a version that h offers may ask for
// another hello.
func (h *Hello) AllowsRetry() bool { return h.Version >= 0x0304 }

// Server takes what the server sent next and reports whether it is certain by now that no
// second hello can count: it has answered the first one, or speaks no TLS.
func (r *Retry) Server(b []byte) (over bool) {
	const enough = messageHeader + 2 + len(retryRandom)
	for len(b) > 0 {
		kind, payload, _, rest := r.server.next(b)
		b = rest
		switch kind {
		case noRecord, recordChangeCipherSpec, recordAlert:
			continue
		case recordHandshake:
		default:
			return true
		}
		r.answer = append(r.answer, payload[:min(len(payload), enough-len(r.answer))]...)
		if !asksForRetry(r.answer) {
			return true
		}
	}
	return r.server.begun > maxRecords
}

// retryRandom is the random of a ServerHello that is a HelloRetryRequest (RFC 8446,
// section 4.1.3).
const retryRandom = "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c"

// asksForRetry reports whether b begins, or may begin, a HelloRetryRequest.
func asksForRetry(b []byte) bool {
	const typeServerHello = 2
	if len(b) > 0 && b[0] != typeServerHello {
		return false
	}
	b = b[min(len(b), messageHeader+2):]
	return string(b) == retryRandom[:len(b)]
}

// Keeps reports whether r keeps a part of a second hello. A caller gives that a time limit.
func (r *Retry) Keeps() bool { return len(r.second) > 0 }

// Client takes what the client sent next, and returns the second hello once b completes
// it. Until then the error is ErrShort. The error is [ErrNoTLS] where every server breaks the
// connection off: no second hello can count any more. It is a *MalformedError for a handshake
// message in clear that is no hello, and for very many records.
func (r *Retry) Client(b []byte) (Hello, error) {
	for len(b) > 0 {
		kind, payload, begins, rest := r.client.next(b)
		b = rest
		switch {
		case kind == tooLongRecord:
			return Hello{}, ErrNoTLS
		case kind == noRecord:
			continue
		case r.client.begun > maxRecords:
			return Hello{}, &MalformedError{Problem: "behind too many records"}
		case kind == recordHandshake || r.Keeps():
			if begins {
				r.second = append(r.second, r.client.header[:]...)
			}
		case kind < recordChangeCipherSpec || kind > recordHeartbeat:
			return Hello{}, ErrNoTLS
		default: // such as early data
			continue
		}
		r.second = append(r.second, payload...)
		if hello, err := r.assembler.Parse(r.second); err != ErrShort {
			return hello, err
		}
		if len(r.second) > maxSecond {
			return Hello{}, &MalformedError{Problem: "longer than 16 KiB"}
		}
	}
	return Hello{}, ErrShort
}

// ErrNoTLS says that every server breaks the connection off: for a record of an unknown type
// (RFC 8446, section 5), or one that is too long (section 5.2).
var ErrNoTLS = errors.New("sniff: no record of TLS")

// Kinds of records (RFC 8446, section 5.1) beside recordHandshake.
const (
	recordChangeCipherSpec = 20
	recordAlert            = 21
	recordHeartbeat        = 24 // RFC 6520; the highest type of a record that TLS has

	// No byte of the wire is one of these.
	noRecord      = -1 // there are too few bytes to tell
	tooLongRecord = -2
)

// maxCiphertext is the longest payload of a record of any version.
const maxCiphertext = maxRecord + 2048

// records cuts a stream into the payloads of TLS records.
type records struct {
	header [recordHeader]byte
	n      int // so much of the header is there
	left   int // so much of the payload is not
	begun  int // records
}

// next takes the bytes of one record from b and returns their payload. begins is true for the first payload of
// a record, which may be empty.
func (s *records) next(b []byte) (kind int, payload []byte, begins bool, rest []byte) {
	if s.left == 0 {
		if s.n == recordHeader {
			s.n = 0
		}
		k := copy(s.header[s.n:], b)
		s.n, b = s.n+k, b[k:]
		if s.n < recordHeader {
			return noRecord, nil, false, b
		}
		s.left, begins = int(s.header[3])<<8|int(s.header[4]), true
		s.begun++
		if s.left > maxCiphertext {
			return tooLongRecord, nil, true, nil
		}
	}
	k := min(s.left, len(b))
	s.left -= k
	return int(s.header[0]), b[:k], begins, b[k:]
}
