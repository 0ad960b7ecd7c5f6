package netlink

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMessagesToTheKernelAreAligned(t *testing.T) {
	var r Batch
	r.Add(7, unix.NLM_F_ACK, []byte{1, 2, 3, 4})
	r.Attribute(5, 'a', 'b', 'c')
	r.Nested(unix.NLA_F_NESTED|6, func() { r.Attribute(1, 9) })
	r.Add(8, 0, nil)
	r.end()

	first := binary.NativeEndian.Uint32(r.text)
	if want := uint32(16 + 4 + 8 + 12); first != want {
		t.Fatalf("the first message has %d bytes, want %d", first, want)
	}
	if size := binary.NativeEndian.Uint16(r.text[20:]); size != 7 {
		t.Errorf("an attribute of three bytes says that it has %d, want 7, without its padding", size)
	}
	if size, kind := binary.NativeEndian.Uint16(r.text[28:]), binary.NativeEndian.Uint16(r.text[30:]); size != 12 || kind != unix.NLA_F_NESTED|6 {
		t.Errorf("the attribute that holds another has %d bytes and is %#x", size, kind)
	}
	second := r.text[first:]
	if size, number := binary.NativeEndian.Uint32(second), binary.NativeEndian.Uint32(second[8:]); size != 16 || number != 2 {
		t.Errorf("the second message has %d bytes and the number %d", size, number)
	}
}

// spoken is what the kernel says of a message.
func spoken(number uint32, code int32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+4+unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.NLMSG_ERROR)
	binary.NativeEndian.PutUint32(b[8:], number)
	binary.NativeEndian.PutUint32(b[16:], uint32(code))
	return b
}

func TestOnlyWhatTheKernelSaysIsDoneIsDone(t *testing.T) {
	said := Answers{}
	for _, packet := range [][]byte{spoken(1, 0), append(spoken(2, -int32(unix.EEXIST)), spoken(3, 0)...), spoken(2, 0)} {
		if err := said.add(packet); err != nil {
			t.Fatal(err)
		}
	}
	if err := said.Of(1, 3); err != nil {
		t.Errorf("what was done: %v", err)
	}
	if err := said.Of(1, 2); !errors.Is(err, unix.EEXIST) {
		t.Errorf("what failed, and was said to be done later: %v", err)
	}
	if err := said.Of(1, 4); !errors.Is(err, ErrSilent) {
		t.Errorf("what nothing was said of: %v", err)
	}
	if err := said.Any(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("any failure: %v", err)
	}
}

func TestAnswersThatCannotBeReadAreErrors(t *testing.T) {
	short, long, other := spoken(1, 0), spoken(1, 0), spoken(1, 0)
	binary.NativeEndian.PutUint32(short, 8)
	binary.NativeEndian.PutUint32(long, 4096)
	binary.NativeEndian.PutUint16(other[4:], unix.NLMSG_DONE)
	for name, packet := range map[string][]byte{"a length that ends in the header": short, "a length past the end": long, "no answer": other} {
		if err := (Answers{}).add(packet); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
