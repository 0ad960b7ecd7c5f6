// Package sniff says what the first bytes of a client are, without consuming
// them: which protocol they begin, and what a TLS ClientHello claims.
//
// It opens nothing, waits for nothing and repairs nothing. Names come out as
// they stood on the wire; whoever decides on one makes it canonical first.
// crypto/tls accepts every hello that this package accepts, and reads it the same way;
// the reverse does not hold, and is not meant to.
//
//	b, err := br.Peek(br.Buffered())
//	switch sniff.Detect(b) {
//	case sniff.TLS:
//		hello, err := assembler.Parse(b)
//		…
package sniff

// A Protocol is what the first bytes of a client begin.
type Protocol uint8

const (
	Undecided Protocol = iota // too few bytes to say
	TLS                       // what a server may read as a ClientHello, which may be malformed
	HTTP1                     // a request line of HTTP/1, maybe malformed further on
	HTTP2                     // the preface of cleartext HTTP/2
	SSH                       // an SSH identification string
	SOCKS5                    // the version byte of RFC 1928
	Other                     // none of these
)

var protocolNames = [...]string{"undecided", "tls", "http/1", "http/2", "ssh", "socks5", "other"}

func (p Protocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return "other"
}

// DetectBytes is how many bytes Detect needs at most: given that many it never
// says Undecided.
const DetectBytes = 32

const (
	http2Preface = "PRI * HTTP/2"
	sshBanner    = "SSH-"
)

// Detect returns the protocol that b begins; b holds the bytes that a client has sent so far. A result other
// than Undecided does not change when more bytes arrive.
//
// The request target tells HTTP/1 from other text protocols. After a method of RFC 9110 and one space, every
// target is HTTP1, even a malformed one. After another token, only "/", "*" or a scheme with "//" is HTTP1.
// Some servers skip empty lines before a request line; Detect returns Other for them.
func Detect(b []byte) Protocol {
	if len(b) == 0 {
		return Undecided
	}
	switch b[0] {
	case recordAlert, recordHandshake:
		return detectTLS(b)
	case recordChangeCipherSpec:
		return detectChange(b)
	case 0x05:
		return SOCKS5
	}
	if b[0]&0x80 != 0 {
		return detectSSLv2(b)
	}
	if startsOrStarted(b, sshBanner) {
		return onceSeen(b, sshBanner, SSH)
	}
	if startsOrStarted(b, http2Preface) {
		return onceSeen(b, http2Preface, HTTP2)
	}
	if p := detectHTTP1(b); p != Undecided || len(b) < DetectBytes {
		return p
	}
	return Other
}

// detectTLS is as lax as the laxest server: crypto/tls accepts a hello in records of other versions, and skips
// warnings before it. The parser refuses those that other servers do not accept.
func detectTLS(b []byte) Protocol {
	const versions = 0x10 // crypto/tls takes more for another protocol
	warning := b[0] == recordAlert
	switch {
	case len(b) < 2:
		return Undecided
	case b[1] == 3 && !warning:
		return TLS
	case b[1] >= versions:
		return Other
	case len(b) < recordHeader+1:
		return Undecided
	case warning && b[3] == 0 && b[4] == 2: // which is how long an alert is
		return TLS
	case !warning && b[5] == typeClientHello:
		return TLS
	}
	return Other
}

// detectChange tells a ChangeCipherSpec record, which GnuTLS passes over in front of a hello.
func detectChange(b []byte) Protocol {
	header := [...]byte{recordChangeCipherSpec, 3, 0, 0, 1} // of any minor version
	for i := range min(len(b), len(header)) {
		if i != 2 && b[i] != header[i] {
			return Other
		}
	}
	if len(b) < len(header) {
		return Undecided
	}
	return TLS
}

// detectSSLv2 tells a hello in the format of SSL 2.0 (RFC 5246, appendix E.2), which GnuTLS
// and OpenSSL read for any version. It takes no more bytes than tell it from what is not,
// such as options of Telnet or a call of ONC RPC, whose sender may wait for an answer.
func detectSSLv2(b []byte) Protocol {
	const shortest = 9 // the fields in front of the lists
	switch {
	case b[0]&0x7f > maxCiphertext>>8:
		return Other
	case len(b) < 2:
		return Undecided
	}
	n := int(b[0]&0x7f)<<8 | int(b[1])
	switch {
	case n < shortest || n > maxCiphertext:
		return Other
	case len(b) < 3:
		return Undecided
	case b[2] != typeClientHello:
		return Other
	case len(b) < 4:
		return Undecided
	case b[3] == 3:
		return TLS
	case b[3] != 0: // SSL 2.0 itself is 0, 2
		return Other
	case len(b) < 5:
		return Undecided
	case b[4] == 2:
		return TLS
	}
	return Other
}

func startsOrStarted(b []byte, word string) bool {
	n := min(len(b), len(word))
	return string(b[:n]) == word[:n]
}

func onceSeen(b []byte, word string, p Protocol) Protocol {
	if len(b) < len(word) {
		return Undecided
	}
	return p
}

func detectHTTP1(b []byte) Protocol {
	b = b[:min(len(b), DetectBytes)]
	n := 0
	for n < len(b) && isToken(b[n]) {
		n++
	}
	switch {
	case n == len(b):
		return Undecided
	case n == 0 || b[n] != ' ':
		return Other
	case isMethod(b[:n]):
		return HTTP1
	default:
		return detectTarget(b[n+1:])
	}
}

// detectTarget looks at what follows a method that nobody registered.
func detectTarget(b []byte) Protocol {
	if len(b) == 0 {
		return Undecided
	}
	if b[0] == '/' || b[0] == '*' {
		return HTTP1
	}
	n := 0
	for n < len(b) && isScheme(b[n], n == 0) {
		n++
	}
	if n == 0 {
		return Other
	}
	if startsOrStarted(b[n:], "://") {
		return onceSeen(b[n:], "://", HTTP1)
	}
	return Other
}

// isMethod reports whether b is a method of RFC 9110 or RFC 5789, in any case:
// a server may be laxer about case than the RFC.
func isMethod(b []byte) bool {
	const longest = len("CONNECT")
	if len(b) > longest {
		return false
	}
	var upper [longest]byte
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	switch string(upper[:len(b)]) {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH":
		return true
	}
	return false
}

func isScheme(c byte, first bool) bool {
	lower := c | 0x20
	if 'a' <= lower && lower <= 'z' {
		return true
	}
	return !first && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.')
}

// isToken reports whether c is a tchar of RFC 9110, section 5.6.2.
func isToken(c byte) bool {
	const low, high = 0x03ff6cfa00000000, 0x57ffffffc7fffffe
	if c < 64 {
		return low>>c&1 != 0
	}
	return uint64(high)>>(c-64)&1 != 0 // 0 for all that is not ASCII
}
