package dns

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/policy"
)

// A message is a parsed query (RFC 1035 section 4.1, RFC 6891). Parsing is strict and repairs nothing: a query has one
// question with an uncompressed name, at most one OPT record, and no bytes after that.
type message struct {
	id       uint16
	opcode   byte
	keep     uint16 // of the flags, those that a response repeats
	name     string // canonical; "" where there is none
	question []byte // as it was sent, and goes back; part of what was read
	kind     uint16
	class    uint16
	edns     bool
	size     int // bytes of a response over UDP
}

// A flaw is why a message is no query. Its zero value is none.
type flaw struct {
	rcode  int
	class  policy.Class
	why    string
	silent bool // it is no question at all, and has no answer
}

const (
	flagResponseBit  = 1 << 15
	flagTruncatedBit = 1 << 9
	flagRecursion    = 1 << 8
	flagAvailable    = 1 << 7
	flagChecking     = 1 << 4

	leastUDP = 512  // bytes that every client takes (RFC 1035 section 2.3.4)
	mostUDP  = 1232 // that pass everywhere in one piece (RFC 9715)
	optSize  = 11   // of an OPT record without options
	maxOwner = 255  // bytes of a name on the wire
)

// readMessage parses msg. Beside a flaw, m has the fields that an error response needs.
func readMessage(msg []byte) (m message, f flaw) {
	if len(msg) < headerSize {
		return m, flaw{class: policy.MalformedRequest, why: "the message is shorter than a header", silent: true}
	}
	flags := binary.BigEndian.Uint16(msg[2:])
	m.id, m.opcode, m.size = binary.BigEndian.Uint16(msg), byte(flags>>11)&0xf, leastUDP
	m.keep = flags & (flagRecursion | flagChecking)
	switch {
	case flags&flagResponseBit != 0:
		return m, flaw{class: policy.MalformedRequest, why: "the message is a response", silent: true}
	case m.opcode != dns.OpcodeQuery:
		return m, flaw{rcode: dns.RcodeNotImplemented, class: policy.MalformedRequest, why: "only queries are answered"}
	case flags&flagTruncatedBit != 0:
		return m, malformed("the query is cut short")
	case binary.BigEndian.Uint16(msg[4:]) != 1 || binary.BigEndian.Uint32(msg[6:]) != 0 || binary.BigEndian.Uint16(msg[10:]) > 1:
		return m, malformed("a query has one question and no records but OPT")
	}
	return m.readQuestion(msg, binary.BigEndian.Uint16(msg[10:]) == 1)
}

func malformed(why string) flaw {
	return flaw{rcode: dns.RcodeFormatError, class: policy.MalformedRequest, why: why}
}

func (m message) readQuestion(msg []byte, more bool) (message, flaw) {
	text, at, why := readName(msg)
	if why != "" {
		return m, flaw{rcode: dns.RcodeFormatError, class: policy.MalformedHost, why: why}
	}
	const typeAndClass = 4
	if len(msg)-at < typeAndClass {
		return m, malformed("the question is cut short")
	}
	m.kind, m.class = binary.BigEndian.Uint16(msg[at:]), binary.BigEndian.Uint16(msg[at+2:])
	at += typeAndClass
	m.question = msg[headerSize:at]
	if f := m.readOPT(msg[at:], more); f != (flaw{}) {
		return m, f
	}
	name, err := policy.ParseName(text)
	if err != nil {
		return m, flaw{rcode: dns.RcodeFormatError, class: policy.MalformedHost, why: problemOf(err)}
	}
	m.name = name
	return m, flaw{}
}

// readName returns the name at the beginning of the question, without its last
// dot, and where it ends. Compression has no place there.
func readName(msg []byte) (text string, at int, why string) {
	var name [maxOwner]byte
	n := 0
	for at = headerSize; ; {
		if at >= len(msg) {
			return "", 0, "the name is cut short"
		}
		size := int(msg[at])
		at++
		switch {
		case size == 0:
			return string(name[:max(n-1, 0)]), at, ""
		case size > 63:
			return "", 0, "a label is longer than 63 bytes, or a pointer"
		case at+size > len(msg):
			return "", 0, "the name is cut short"
		case n+size+2 > maxOwner:
			return "", 0, "the name is longer than 253 bytes"
		}
		for _, c := range msg[at : at+size] {
			if c == '.' {
				return "", 0, "a label holds a dot"
			}
		}
		n += copy(name[n:], msg[at:at+size])
		name[n] = '.'
		n++
		at += size
	}
}

// readOPT reads what follows the question: nothing, or where more, one OPT
// record (RFC 6891 section 6.1.2).
func (m *message) readOPT(rest []byte, more bool) flaw {
	switch {
	case !more && len(rest) == 0:
		return flaw{}
	case !more:
		return malformed("something follows the question")
	case len(rest) < optSize || rest[0] != 0 || binary.BigEndian.Uint16(rest[1:]) != dns.TypeOPT:
		return malformed("only an OPT record may follow the question")
	case !wholeOptions(rest[optSize:], int(binary.BigEndian.Uint16(rest[9:]))):
		return malformed("the OPT record does not end where it says, or something follows it")
	}
	m.edns = true
	m.size = min(max(int(binary.BigEndian.Uint16(rest[3:])), leastUDP), mostUDP)
	if version := rest[6]; version != 0 {
		return flaw{rcode: dns.RcodeBadVers, class: policy.MalformedRequest, why: "only version 0 of EDNS is known"}
	}
	return flaw{}
}

// wholeOptions reports whether b is size bytes of options, each of the size that
// it says.
func wholeOptions(b []byte, size int) bool {
	if len(b) != size {
		return false
	}
	for len(b) > 0 {
		const codeAndSize = 4
		if len(b) < codeAndSize {
			return false
		}
		n := codeAndSize + int(binary.BigEndian.Uint16(b[2:]))
		if n > len(b) {
			return false
		}
		b = b[n:]
	}
	return true
}

// An answer is what is said in response to a message.
type answer struct {
	rcode int
	addrs []netip.Addr // of the family that was asked for
	data  [][]byte     // or of records of the type that was asked for
	ttl   time.Duration
	ede   uint16 // and text: an extended error (RFC 8914), where text is not ""
	text  string
	more  string // behind text, where there is room for both
}

// appendTo appends the response to m, of at most size bytes: what is longer is
// truncated to a question that has to be asked over TCP. Nothing in it is from
// anybody else's message.
func (a answer) appendTo(b []byte, m *message, size int) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, m.id)
	b = binary.BigEndian.AppendUint16(b, flagResponseBit|uint16(m.opcode)<<11|m.keep|flagAvailable|uint16(a.rcode&0xf))
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	if len(m.question) > 0 {
		b[start+5] = 1
		b = append(b, m.question...)
	}
	head := len(b)
	b = a.appendRecords(b, m.kind)
	binary.BigEndian.PutUint16(b[start+6:], uint16(len(a.addrs)+len(a.data)))
	if m.edns {
		b[start+11] = 1
		b = a.appendOPT(b, size-(len(b)-start))
	}
	if len(b)-start <= size {
		return b
	}
	b = b[:head]
	b[start+2] |= flagTruncatedBit >> 8
	b[start+7] = 0
	if m.edns {
		b = answer{rcode: a.rcode}.appendOPT(b, optSize)
	}
	return b
}

func (a answer) appendRecords(b []byte, kind uint16) []byte {
	for _, addr := range a.addrs {
		data, family := addr.AsSlice(), uint16(typeA)
		if len(data) == 16 {
			family = typeAAAA
		}
		b = a.appendRecord(b, family, data)
	}
	for _, data := range a.data {
		b = a.appendRecord(b, kind, data)
	}
	return b
}

func (a answer) appendRecord(b []byte, kind uint16, data []byte) []byte {
	b = append(b, 0xc0, headerSize) // the name of the question
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint16(b, dns.ClassINET)
	b = binary.BigEndian.AppendUint32(b, uint32((a.ttl+time.Second-1)/time.Second)) // in whole seconds, up
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// appendOPT appends an OPT record with the extended error, as far as it is
// within room.
func (a answer) appendOPT(b []byte, room int) []byte {
	const codes = 6 // of the option, its length, and of the error
	data := 0
	text := a.text + a.more
	if room < optSize+codes+len(text) {
		text = a.text
	}
	if room < optSize+codes+len(text) {
		text = ""
	}
	if a.text != "" && room >= optSize+codes {
		data = codes + len(text)
	}
	b = append(b, 0, 0, byte(dns.TypeOPT), byte(mostUDP>>8), byte(mostUDP&0xff), byte(a.rcode>>4), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(data))
	if data == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, dns.EDNS0EDE)
	b = binary.BigEndian.AppendUint16(b, uint16(data-4))
	b = binary.BigEndian.AppendUint16(b, a.ede)
	return append(b, text...)
}
