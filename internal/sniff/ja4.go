package sniff

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// JA4 returns the JA4 fingerprint of the hello, as FoxIO defined it:
// "t13d1516h2_8daaf6152771_e5627efa2ab1". It is computed by the first call;
// a Hello is not safe for concurrent use until then.
func (h *Hello) JA4() string {
	if h.ja4 == "" {
		h.ja4 = h.fingerprint()
	}
	return h.ja4
}

func (h *Hello) fingerprint() string {
	var suiteRoom, extensionRoom [roomyList]uint16
	var listRoom [roomyList * 5]byte
	suites := appendCodes(suiteRoom[:0], h.suites)
	extensions := h.appendExtensionTypes(extensionRoom[:0])
	out := make([]byte, 0, 36)
	out = append(out, 't')
	out = append(out, versionCode(h.Version)...)
	out = append(out, h.nameCode())
	out = appendCount(out, len(suites))
	out = appendCount(out, len(extensions))
	out = append(out, h.alpnCode()...)
	out = append(out, '_')
	out = appendSum(out, appendSorted(listRoom[:0], suites))
	out = append(out, '_')
	out = appendSum(out, h.appendExtensionList(listRoom[:0], extensions))
	return string(out)
}

// roomyList is how many values a list may have before it is allocated.
const roomyList = 64

const hexDigits = "0123456789abcdef"

func (h *Hello) nameCode() byte {
	if h.HasServerName {
		return 'd'
	}
	return 'i'
}

func versionCode(v uint16) string {
	switch v {
	case 0x0304:
		return "13"
	case 0x0303:
		return "12"
	case 0x0302:
		return "11"
	case 0x0301:
		return "10"
	case 0x0300:
		return "s3"
	case 0x0002:
		return "s2"
	}
	return "00"
}

// alpnCode is the first and last character of the first protocol's name, or of
// its hexadecimal form where one of them is not alphanumeric.
func (h *Hello) alpnCode() string {
	if len(h.ALPN) == 0 {
		return "00"
	}
	name := h.ALPN[0]
	first, last := name[0], name[len(name)-1]
	if isAlphanumeric(first) && isAlphanumeric(last) {
		return string([]byte{first, last})
	}
	return string([]byte{hexDigits[first>>4], hexDigits[last&15]})
}

func isAlphanumeric(c byte) bool {
	lower := c | 0x20
	return 'a' <= lower && lower <= 'z' || '0' <= c && c <= '9'
}

func appendCount(out []byte, n int) []byte {
	n = min(n, 99)
	return append(out, '0'+byte(n/10), '0'+byte(n%10))
}

// appendCodes reads a list of 16-bit values and leaves GREASE out.
func appendCodes(out []uint16, list reader) []uint16 {
	for len(list) >= 2 {
		if v, _ := list.uint16(); !isGREASE(v) {
			out = append(out, v)
		}
	}
	return out
}

func (h *Hello) appendExtensionTypes(out []uint16) []uint16 {
	for r := reader(h.extensions); len(r) > 0; {
		t, _ := r.uint16()
		if _, ok := r.vector16(); !ok {
			return out // the bytes were overwritten: wrong, but not endless
		}
		if !isGREASE(t) {
			out = append(out, t)
		}
	}
	return out
}

// appendExtensionList appends the sorted extensions without the two that
// depend on the server asked for, then the signature algorithms in their order.
func (h *Hello) appendExtensionList(out []byte, extensions []uint16) []byte {
	var room [roomyList]uint16
	out = appendSorted(out, slices.DeleteFunc(extensions, func(t uint16) bool {
		return t == extServerName || t == extALPN
	}))
	if signatures := appendCodes(room[:0], h.signatures); len(signatures) > 0 {
		out = appendList(append(out, '_'), signatures)
	}
	return out
}

func appendSorted(out []byte, values []uint16) []byte {
	slices.Sort(values)
	return appendList(out, values)
}

func appendList(out []byte, values []uint16) []byte {
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, hexDigits[v>>12], hexDigits[v>>8&15], hexDigits[v>>4&15], hexDigits[v&15])
	}
	return out
}

func appendSum(out, list []byte) []byte {
	const size = 6
	if len(list) == 0 {
		return hex.AppendEncode(out, make([]byte, size))
	}
	sum := sha256.Sum256(list)
	return hex.AppendEncode(out, sum[:size])
}
