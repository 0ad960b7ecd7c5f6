package sniff

// A reader takes values off the front of a piece of a message. Every method
// reports whether there was enough, and leaves the reader as it was if not.
type reader []byte

func (r *reader) bytes(n int) (b []byte, ok bool) {
	if len(*r) < n {
		return nil, false
	}
	b, *r = (*r)[:n], (*r)[n:]
	return b, true
}

func (r *reader) uint8() (v int, ok bool) {
	b, ok := r.bytes(1)
	if !ok {
		return 0, false
	}
	return int(b[0]), true
}

func (r *reader) uint16() (v uint16, ok bool) {
	b, ok := r.bytes(2)
	if !ok {
		return 0, false
	}
	return uint16(b[0])<<8 | uint16(b[1]), true
}

// vector8 takes a vector with a length of one byte, vector16 of two
// (RFC 8446, section 3.4).
func (r *reader) vector8() (v reader, ok bool) {
	if len(*r) < 1 || len(*r) < 1+int((*r)[0]) {
		return nil, false
	}
	n := 1 + int((*r)[0])
	v, *r = (*r)[1:n], (*r)[n:]
	return v, true
}

func (r *reader) vector16() (v reader, ok bool) {
	if len(*r) < 2 {
		return nil, false
	}
	n := 2 + (int((*r)[0])<<8 | int((*r)[1]))
	if len(*r) < n {
		return nil, false
	}
	v, *r = (*r)[2:n], (*r)[n:]
	return v, true
}

// only8 returns the vector that r consists of, provided that it is not empty
// and nothing follows it; only16 likewise.
func (r reader) only8() (v reader, ok bool) {
	v, ok = r.vector8()
	return v, ok && len(v) > 0 && len(r) == 0
}

func (r reader) only16() (v reader, ok bool) {
	v, ok = r.vector16()
	return v, ok && len(v) > 0 && len(r) == 0
}

// parseMessage parses a handshake message whose header was checked.
func parseMessage(message []byte) (Hello, error) {
	var h Hello
	if problem := h.parse(reader(message[messageHeader:])); problem != "" {
		return Hello{}, &MalformedError{Problem: problem, Name: h.ServerName}
	}
	return h, nil
}

// listMost bounds the lists that a fingerprint sorts or sums: a connection waits for that. IANA has
// registered fewer than 400 cipher suites.
const listMost = 512

// parse reads the body of a ClientHello (RFC 8446, section 4.1.2).
func (h *Hello) parse(r reader) (problem string) {
	version, ok := r.uint16()
	if !ok || version>>8 != 3 {
		return "unknown version"
	}
	if _, ok := r.bytes(32); !ok {
		return "truncated random"
	}
	if session, ok := r.vector8(); !ok || len(session) > 32 {
		return "bad session id"
	}
	suites, ok := r.vector16()
	if !ok || len(suites) == 0 || len(suites)%2 != 0 {
		return "bad list of cipher suites"
	}
	if len(suites)/2 > listMost {
		return "too many cipher suites"
	}
	if !offersNullCompression(&r) {
		return "bad list of compression methods"
	}
	h.Version, h.suites = version, suites
	if len(r) == 0 {
		return "" // extensions came after SSL 3.0, and are optional
	}
	extensions, ok := r.vector16()
	if !ok || len(r) != 0 {
		return "extensions do not end where the hello ends"
	}
	h.extensions = extensions
	return h.parseExtensions(extensions)
}

func offersNullCompression(r *reader) bool {
	methods, ok := r.vector8()
	if !ok {
		return false
	}
	for _, m := range methods {
		if m == 0 {
			return true
		}
	}
	return false
}

func (h *Hello) parseExtensions(r reader) (problem string) {
	var seen typeSet
	for len(r) > 0 {
		t, ok := r.uint16()
		if !ok {
			return "truncated extension"
		}
		content, ok := r.vector16()
		if !ok {
			return "truncated extension"
		}
		if problem := seen.add(t); problem != "" {
			return problem
		}
		if t == extPreSharedKey && len(r) > 0 {
			return "pre_shared_key is not the last extension"
		}
		if problem := h.parseExtension(t, content); problem != "" {
			return problem
		}
	}
	return ""
}

// A typeSet holds the extension types seen. Types over 63 are few in any real
// hello and searched one by one, so their number has to be bounded.
type typeSet struct {
	low  uint64
	high [32]uint16
	n    int
}

func (s *typeSet) add(t uint16) (problem string) {
	const duplicate = "an extension occurs twice"
	if t < 64 {
		if s.low>>t&1 != 0 {
			return duplicate
		}
		s.low |= 1 << t
		return ""
	}
	for _, seen := range s.high[:s.n] {
		if seen == t {
			return duplicate
		}
	}
	if s.n == len(s.high) {
		return "too many extensions"
	}
	s.high[s.n] = t
	s.n++
	return ""
}
