package dns

import (
	"strings"

	"github.com/egressd/egressd/policy"
)

const maxName = 253 // bytes of a name, without its trailing dot

// canonical reports whether name is a host name in the one form that is asked
// for and handed out. The judge is the parser that every destination goes
// through; it refuses every escape of the codec too, and with them a wire label
// that holds a dot.
func canonical(name string) bool {
	parsed, err := policy.ParseName(name)
	return err == nil && parsed == name
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
