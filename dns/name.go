package dns

import "strings"

const (
	maxName  = 253
	maxLabel = 63
)

// canonical reports whether name is a host name in the one form that is asked
// for and handed out: lower-case letters, digits, "-" and "_" in labels of 1
// to 63, at most 253 in all, no trailing dot, and a last label that cannot be
// taken for a number. It refuses every escape of the codec, and with them a
// wire label that holds a dot. Every name that policy.ParseName returns passes;
// whether an A-label decodes is judged there and not here.
func canonical(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if !plainLabel(label) {
			return false
		}
		last = label
	}
	return !numeric(last)
}

func plainLabel(label string) bool {
	if label == "" || len(label) > maxLabel {
		return false
	}
	for i := range len(label) {
		c := label[i]
		if !isLower(c) && !isDigit(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// numeric reports whether some parser of addresses could read label as the
// last part of an IPv4 address: all digits, or hexadecimal.
func numeric(label string) bool {
	if strings.HasPrefix(label, "0x") {
		return true
	}
	for i := range len(label) {
		if !isDigit(label[i]) {
			return false
		}
	}
	return true
}

// plain brings a name from the codec into the form that canonical judges.
func plain(presentation string) string {
	return strings.ToLower(strings.TrimSuffix(presentation, "."))
}

// mixCase flips the case of the letters of name whose bit is set in bits,
// which has one bit for each byte of name.
func mixCase(name string, bits []byte) string {
	mixed := []byte(name)
	for i, c := range mixed {
		if isLower(c) && bits[i/8]>>(i%8)&1 == 1 {
			mixed[i] = c ^ caseBit
		}
	}
	return string(mixed)
}

// sameFolded reports whether a and b differ in the case of ASCII letters at
// most. Unlike bytes.EqualFold it knows no other letters.
func sameFolded(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && (a[i]^b[i] != caseBit || !isLower(a[i]|caseBit)) {
			return false
		}
	}
	return true
}

const caseBit = 'a' ^ 'A'

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
