package lab

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// bytesOf reads hexadecimal digits with spaces between them.
func bytesOf(t *testing.T, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	ipv4Head = "4500 0000 0000 0000 40 %% 0000 0a630002 09090935"
	ipv6Head = "6000 0000 0000 %% 40 fd990000000000000000000000000002 20010db8000000000000000000000001"
	tcpPorts = "1234 01bb 00000000 00000000 50 "
)

func TestParsePacket(t *testing.T) {
	v4 := func(protocol, rest string) string { return strings.ReplaceAll(ipv4Head, "%%", protocol) + rest }
	v6 := func(next, rest string) string { return strings.ReplaceAll(ipv6Head, "%%", next) + rest }
	for _, row := range []struct {
		says, packet, wants string
		opens               bool
	}{
		{"a SYN opens", v4("06", tcpPorts+"02"), "tcp 10.99.0.2:4660 > 9.9.9.53:443", true},
		{"a SYN with ECN bits opens", v4("06", tcpPorts+"c2"), "tcp 10.99.0.2:4660 > 9.9.9.53:443", true},
		{"a SYN and ACK answers", v4("06", tcpPorts+"12"), "tcp 10.99.0.2:4660 > 9.9.9.53:443", false},
		{"an ACK goes on", v4("06", tcpPorts+"10"), "tcp 10.99.0.2:4660 > 9.9.9.53:443", false},
		{"a reset ends", v4("06", tcpPorts+"04"), "tcp 10.99.0.2:4660 > 9.9.9.53:443", false},
		{"options before TCP are skipped", "4600" + v4("06", "01010101"+tcpPorts+"02")[4:], "tcp 10.99.0.2:4660 > 9.9.9.53:443", true},
		{"TCP cut short is suspect", v4("06", "1234 01bb"), "protocol 0 10.99.0.2:0 > 9.9.9.53:0", true},
		{"a datagram opens", v4("11", "1234 0035 0009 0000 ff"), "udp 10.99.0.2:4660 > 9.9.9.53:53", true},
		{"ICMP opens", v4("01", "0800"), "icmp 10.99.0.2:0 > 9.9.9.53:0", true},
		{"another protocol opens", v4("2f", "0000"), "protocol 47 10.99.0.2:0 > 9.9.9.53:0", true},
		{"a SYN over IPv6 opens", v6("06", tcpPorts+"02"), "tcp [fd99::2]:4660 > [2001:db8::1]:443", true},
		{"neighbour discovery is no word", v6("3a", "8700"), "icmp6 [fd99::2]:0 > [2001:db8::1]:0", false},
		{"a listener report is no word", v6("00", "3a00 0502 0000 0100 8f00"), "icmp6 [fd99::2]:0 > [2001:db8::1]:0", false},
		{"a ping over IPv6 opens", v6("3a", "8000"), "icmp6 [fd99::2]:0 > [2001:db8::1]:0", true},
		{"a fragment over IPv6 is suspect", v6("2c", "0600 0001"), "protocol 44 [fd99::2]:0 > [2001:db8::1]:0", true},
		{"a strange version is suspect", "55", "protocol 0 invalid AddrPort > invalid AddrPort", true},
	} {
		p := parsePacket(bytesOf(t, row.packet))
		if p.String() != row.wants || p.opens() != row.opens {
			t.Errorf("%s: got %s, opens %v", row.says, p, p.opens())
		}
	}
}

func TestParsePacketKeepsTheDatagram(t *testing.T) {
	b := bytesOf(t, strings.ReplaceAll(ipv4Head, "%%", "11")+"1234 0035 000b 0000 616263")
	p := parsePacket(b)
	b[len(b)-1] = 0 // the reader's buffer is used again
	if !bytes.Equal(p.Payload, []byte("abc")) {
		t.Errorf("payload %q", p.Payload)
	}
}

// Whatever is sent is either understood or counted as an opening.
func FuzzParsePacket(f *testing.F) {
	f.Add(bytesOf(&testing.T{}, strings.ReplaceAll(ipv6Head, "%%", "00")+"3a00 0502 0000 0100 8f00"))
	f.Add(bytesOf(&testing.T{}, strings.ReplaceAll(ipv4Head, "%%", "06")+tcpPorts+"02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := parsePacket(b)
		if p.Protocol == 0 && !p.opens() {
			t.Errorf("%x is not understood and yet harmless", b)
		}
	})
}
