package jailinit

import (
	"bytes"
	"testing"
)

// TestAPrefixIsComparedByItsOwnBits looks for the mask and for what is left of the address.
func TestAPrefixIsComparedByItsOwnBits(t *testing.T) {
	for _, row := range []struct {
		address      []byte
		bits         int
		mask, prefix []byte
	}{
		{[]byte{127, 0, 0, 1}, 8, []byte{255, 0, 0, 0}, []byte{127, 0, 0, 0}},
		{[]byte{100, 127, 255, 9}, 10, []byte{255, 192, 0, 0}, []byte{100, 64, 0, 0}},
		{[]byte{100, 127, 0, 1}, 32, bytes.Repeat([]byte{255}, 4), []byte{100, 127, 0, 1}},
		{loopback6[:], 128, bytes.Repeat([]byte{255}, 16), loopback6[:]},
	} {
		r := new(ruleset)
		r.rule(toPrefix(row.address, row.bits))
		if at := bytes.Index(r.Bytes(), row.mask); at < 0 || !bytes.Contains(r.Bytes()[at+len(row.mask):], row.prefix) {
			t.Errorf("%v/%d: no %v and %v in\n%x", row.address, row.bits, row.mask, row.prefix, r.Bytes())
		}
	}
}
