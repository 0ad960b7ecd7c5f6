// Package netlink asks the kernel over netlink(7): batches of messages that change something, and single questions.
// It has no goroutine and keeps no socket, so that a jail's init can use it between fork and exec of the program.
package netlink

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Batch is messages to the kernel that go out in one packet. Numbers of netlink itself and of rtnetlink are in the
// processor's order of bytes, those in messages of nftables in that of the network. The zero value is empty.
type Batch struct {
	text    []byte
	message int // where the last one begins
	count   uint32
}

// Add starts a message. head is what its kind has in front of attributes, of a length divisible by four.
func (b *Batch) Add(kind, flags uint16, head []byte) {
	b.end()
	b.message = len(b.text)
	b.count++
	b.text = append(b.text, 0, 0, 0, 0)
	b.text = binary.NativeEndian.AppendUint16(b.text, kind)
	b.text = binary.NativeEndian.AppendUint16(b.text, flags|unix.NLM_F_REQUEST)
	b.text = binary.NativeEndian.AppendUint32(b.text, b.count)
	b.text = append(b.text, 0, 0, 0, 0)
	b.text = append(b.text, head...)
}

// Bytes returns the messages as they are sent.
func (b *Batch) Bytes() []byte {
	b.end()
	return b.text
}

// end writes the length of the last message, if there is one.
func (b *Batch) end() {
	if b.count > 0 {
		binary.NativeEndian.PutUint32(b.text[b.message:], uint32(len(b.text)-b.message))
	}
}

// Last returns the number of the last message. The first is 1.
func (b *Batch) Last() uint32 { return b.count }

// Acknowledge has the kernel answer the last message also if it succeeds.
func (b *Batch) Acknowledge() {
	flags := b.text[b.message+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

// Attribute appends an attribute to the last message.
func (b *Batch) Attribute(kind uint16, value ...byte) {
	b.Nested(kind, func() { b.text = append(b.text, value...) })
}

// Nested appends an attribute that holds what fill appends.
func (b *Batch) Nested(kind uint16, fill func()) {
	start := len(b.text)
	b.text = append(b.text, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(b.text[start+2:], kind)
	fill()
	binary.NativeEndian.PutUint16(b.text[start:], uint16(len(b.text)-start)) // padding does not count
	for len(b.text)%unix.NLA_ALIGNTO != 0 {
		b.text = append(b.text, 0)
	}
}

// Send sends the messages and returns what the kernel says of each, by its number: of those with NLM_F_ACK in any
// case, of others if they failed. The kernel has answered all of them when Send returns.
func (b *Batch) Send(protocol int) (Answers, error) {
	fd, err := open(protocol)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := b.send(fd); err != nil {
		return nil, err
	}
	said := Answers{}
	for packet := make([]byte, 8<<10); ; {
		n, err := receive(fd, packet, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return said, nil
		case err != nil:
			return nil, err
		}
		if err := said.add(packet[:n]); err != nil {
			return nil, err
		}
	}
}

func (b *Batch) send(fd int) error {
	return os.NewSyscallError("sendto", unix.Sendto(fd, b.Bytes(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

func open(protocol int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	return fd, os.NewSyscallError("socket", err)
}

// receive reads the next packet that the kernel sent.
func receive(fd int, packet []byte, flags int) (n int, err error) {
	for {
		n, from, err := unix.Recvfrom(fd, packet, flags)
		if k, ok := from.(*unix.SockaddrNetlink); err == nil && (!ok || k.Pid != 0) || errors.Is(err, unix.EINTR) {
			continue
		}
		return n, os.NewSyscallError("recvfrom", err)
	}
}

// Ask asks one question and returns the payloads of the answer's messages. flags are NLM_F_DUMP for a list. The
// error is [unix.EINTR] if the list changed while it was read.
func Ask(protocol int, kind, flags uint16, head []byte) (all [][]byte, err error) {
	fd, err := open(protocol)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var q Batch
	q.Add(kind, flags, head)
	if err := q.send(fd); err != nil {
		return nil, err
	}
	for packet := make([]byte, 64<<10); ; {
		n, err := receive(fd, packet, 0)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(packet[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
				return nil, unix.EINTR
			case m.Header.Type == unix.NLMSG_ERROR:
				return all, errorIn(m.Data)
			case m.Header.Type == unix.NLMSG_DONE:
				return all, nil
			}
			all = append(all, bytes.Clone(m.Data))
		}
		if flags&unix.NLM_F_DUMP == 0 {
			return all, nil
		}
	}
}

// errorIn reads a struct nlmsgerr.
func errorIn(b []byte) error {
	if len(b) < 4 {
		return errors.New("half an error")
	}
	if code := int32(binary.NativeEndian.Uint32(b)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// Answers are what the kernel said of messages, by their numbers: nil for those that succeeded.
type Answers map[uint32]error

// add takes in a packet of the kernel's. The first answer to a message counts.
func (a Answers) add(packet []byte) error {
	messages, err := syscall.ParseNetlinkMessage(packet)
	if err != nil {
		return fmt.Errorf("the kernel gave an answer that cannot be read: % x", packet)
	}
	for _, m := range messages {
		if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
			return fmt.Errorf("the kernel gave an answer that cannot be read: % x", packet)
		}
		if _, known := a[m.Header.Seq]; !known {
			a[m.Header.Seq] = errorIn(m.Data)
		}
	}
	return nil
}

// ErrSilent is for a message that the kernel did not answer.
var ErrSilent = errors.New("the kernel gave no answer")

// Of returns nil if the kernel said of each message that it succeeded.
func (a Answers) Of(numbers ...uint32) error {
	for _, number := range numbers {
		if err, said := a[number]; err != nil || !said {
			return cmp.Or(err, ErrSilent)
		}
	}
	return nil
}

// Any returns the first error that the kernel gave, if there is one.
func (a Answers) Any() error {
	for _, number := range slices.Sorted(maps.Keys(a)) {
		if a[number] != nil {
			return a[number]
		}
	}
	return nil
}

// An Attribute is one of a message. Kind is without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
type Attribute struct {
	Kind  uint16
	Value []byte
}

// Attributes returns the valid attributes in b behind its first bytes, up to one that is malformed.
func Attributes(b []byte, behind int) []Attribute {
	if len(b) < behind {
		return nil
	}
	var all []Attribute
	for b = b[behind:]; len(b) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		all = append(all, Attribute{Kind: binary.NativeEndian.Uint16(b[2:]) &^ flags, Value: b[unix.SizeofNlAttr:size]})
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return all
}

// Find returns the value of the first attribute of a kind, or nil.
func Find(all []Attribute, kind uint16) []byte {
	for _, a := range all {
		if a.Kind == kind {
			return a.Value
		}
	}
	return nil
}
