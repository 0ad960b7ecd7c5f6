package jailinit

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A request is messages to the kernel that go out in one packet (netlink(7)).
// Numbers of netlink itself and of rtnetlink are in the processor's order of bytes,
// those in messages of nftables in that of the network.
type request struct {
	text    []byte
	message int // where the last one begins
	count   uint32
}

// put starts a message. head is what its kind has in front of attributes, of a
// length divisible by four.
func (r *request) put(kind, flags uint16, head []byte) {
	r.end()
	r.message = len(r.text)
	r.count++
	r.text = append(r.text, 0, 0, 0, 0)
	r.text = binary.NativeEndian.AppendUint16(r.text, kind)
	r.text = binary.NativeEndian.AppendUint16(r.text, flags|unix.NLM_F_REQUEST)
	r.text = binary.NativeEndian.AppendUint32(r.text, r.count)
	r.text = append(r.text, 0, 0, 0, 0)
	r.text = append(r.text, head...)
}

// end writes the length of the last message, if there is one.
func (r *request) end() {
	if r.count > 0 {
		binary.NativeEndian.PutUint32(r.text[r.message:], uint32(len(r.text)-r.message))
	}
}

// attribute appends an attribute to the last message.
func (r *request) attribute(kind uint16, value ...byte) {
	r.nested(kind, func() { r.text = append(r.text, value...) })
}

// nested appends an attribute that holds what fill appends.
func (r *request) nested(kind uint16, fill func()) {
	start := len(r.text)
	r.text = append(r.text, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(r.text[start+2:], kind)
	fill()
	binary.NativeEndian.PutUint16(r.text[start:], uint16(len(r.text)-start)) // padding does not count
	for len(r.text)%unix.NLA_ALIGNTO != 0 {
		r.text = append(r.text, 0)
	}
}

// exchange sends the messages and returns what the kernel says of each that it
// speaks of, by its number: of those with NLM_F_ACK in any case, of others where
// they failed. All of it is there when the messages are sent.
func (r *request) exchange(protocol int) (answers, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	r.end()
	if err := unix.Sendto(fd, r.text, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	said := answers{}
	for packet := make([]byte, 8<<10); ; {
		n, from, err := unix.Recvfrom(fd, packet, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return said, nil
		case err != nil:
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 {
			continue // nobody but the kernel is to answer
		}
		if err := said.add(packet[:n]); err != nil {
			return nil, err
		}
	}
}

// answers are what the kernel said of messages, by their numbers: nil where they
// are done.
type answers map[uint32]error

// add takes in a packet of the kernel's. The first word about a message counts.
func (a answers) add(packet []byte) error {
	for len(packet) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(packet))
		if size < unix.SizeofNlMsghdr+4 || size > len(packet) || binary.NativeEndian.Uint16(packet[4:]) != unix.NLMSG_ERROR {
			return fmt.Errorf("the kernel gave an answer that cannot be read: % x", packet)
		}
		number := binary.NativeEndian.Uint32(packet[8:])
		if _, known := a[number]; !known {
			a[number] = nil
			if code := int32(binary.NativeEndian.Uint32(packet[unix.SizeofNlMsghdr:])); code != 0 {
				a[number] = unix.Errno(-code)
			}
		}
		packet = packet[min(len(packet), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return nil
}

// errSilent is for a message whose answer is not there.
var errSilent = errors.New("the kernel gave no answer")

// of is what the kernel said of messages: nil where it said of each that it is
// done.
func (a answers) of(numbers ...uint32) error {
	for _, number := range numbers {
		if err, said := a[number]; err != nil || !said {
			return cmp.Or(err, errSilent)
		}
	}
	return nil
}

// any is an error that the kernel gave, if there is one.
func (a answers) any() error {
	for _, number := range slices.Sorted(maps.Keys(a)) {
		if a[number] != nil {
			return a[number]
		}
	}
	return nil
}
