package dns

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTheFilterLooksAtTheSenderAlone runs the program on headers whose other address is one that is ignored, and whose
// sender differs from such an address in one part.
func TestTheFilterLooksAtTheSenderAlone(t *testing.T) {
	ip := netip.MustParseAddr
	program := ignoring([]netip.Addr{ip("192.0.2.7"), ip("2001:db8:1:2::"), ip("192.0.2.9"), ip("2001:db8:5:6::")})
	for _, c := range []struct {
		from, to string
		passes   bool
	}{
		{"192.0.2.7", "192.0.2.1", false},
		{"192.0.2.9", "192.0.2.1", false},
		{"192.0.2.8", "192.0.2.7", true},
		{"2001:db8:1:2::5", "2001:db8::1", false},
		{"2001:db8:1:2:3:4:5:6", "2001:db8::1", false},
		{"2001:db8:5:6::1", "2001:db8::1", false},
		{"2001:db8:1:3::5", "2001:db8:1:2::5", true},
		{"2001:db9:1:2::5", "2001:db8:1:2::5", true},
		{"2001:db8:5:2::5", "2001:db8:1:2::5", true},
	} {
		if got := passes(t, program, headerOf(ip(c.from), ip(c.to))); got != c.passes {
			t.Errorf("from %s to %s: passes is %v", c.from, c.to, got)
		}
	}
}

// headerOf makes the part of an IP header that ends with its addresses.
func headerOf(from, to netip.Addr) []byte {
	if from.Is4() {
		return append(append(append([]byte{0x45}, make([]byte, 11)...), from.AsSlice()...), to.AsSlice()...)
	}
	return append(append(append([]byte{0x60}, make([]byte, 7)...), from.AsSlice()...), to.AsSlice()...)
}

// passes runs a program of the instructions that [ignoring] uses.
func passes(t *testing.T, program []unix.SockFilter, header []byte) bool {
	t.Helper()
	var a uint32
	for pc := 0; pc < len(program); pc++ {
		i := program[pc]
		at := i.K - 0xfff00000 // SKF_NET_OFF
		switch i.Code {
		case unix.BPF_LD | unix.BPF_B | unix.BPF_ABS:
			a = uint32(header[at])
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.BigEndian.Uint32(header[at:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(i.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if a == i.K {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return i.K > 0
		default:
			t.Fatalf("instruction %d has code %#x", pc, i.Code)
		}
	}
	t.Fatal("the program does not return")
	return false
}
