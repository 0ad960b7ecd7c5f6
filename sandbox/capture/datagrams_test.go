package capture

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDatagramsThatAreShutEnd has their other owner make them ones that
// block, and shut them: then they are read from at once, and nothing is there.
func TestDatagramsThatAreShutEnd(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := c.File() // which has it block
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	d := &Datagrams{conn: c}
	ended := make(chan error, 1)
	go func() { _, err := d.Next(); ended <- err }()
	_ = unix.SetNonblock(int(theirs.Fd()), false)
	_ = unix.Shutdown(int(theirs.Fd()), unix.SHUT_RDWR)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a datagram from nobody")
		}
	case <-time.After(30 * time.Second):
		t.Error("it is read from for ever")
	}
	d.Close()
}

func TestTheAnswerToADatagramIsWellFormed(t *testing.T) {
	four := Datagram{netip.MustParseAddrPort("100.127.0.1:40001"), netip.MustParseAddrPort("93.184.216.34:443")}
	packet, _ := unreachable(four)
	if checksum(0, packet[:20]) != 0 || checksum(0, packet[20:]) != 0 || int(binary.BigEndian.Uint16(packet[2:])) != len(packet) {
		t.Errorf("IPv4: %x", packet)
	}
	if about := packet[28:]; !bytes.Equal(about[12:16], []byte{100, 127, 0, 1}) || binary.BigEndian.Uint16(about[20:]) != 40001 || binary.BigEndian.Uint16(about[22:]) != 443 {
		t.Errorf("it is about %x", about)
	}
	six := Datagram{netip.MustParseAddrPort("[2d00::1]:40001"), netip.MustParseAddrPort("[2606::1]:53")}
	packet, _ = unreachable(six)
	pseudo := append(bytes.Clone(packet[8:40]), 0, 0, 0, byte(len(packet)-40), 0, 0, 0, 58)
	if checksum(0, append(pseudo, packet[40:]...)) != 0 || int(binary.BigEndian.Uint16(packet[4:])) != len(packet)-40 {
		t.Errorf("IPv6: %x", packet)
	}
	if got := partial(0, []byte{1, 2, 3}); got != 0x0102+0x0300 {
		t.Errorf("an odd byte sums up to %#x", got)
	}
}
