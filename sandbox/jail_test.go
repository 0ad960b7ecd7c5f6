package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTheAnswerToADatagramIsWellFormed sums up what a receiver sums up.
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

func TestPlainNames(t *testing.T) {
	for name, plain := range map[string]bool{
		"ci": true, "fix-login": true, "a.b_c": true, "7": true, strings.Repeat("a", 64): true,
		"": false, "-a": false, ".a": false, "a b": false, "a/b": false, "ä": false, "a\n": false, strings.Repeat("a", 65): false,
	} {
		if PlainName(name) != plain {
			t.Errorf("%q: %v", name, !plain)
		}
	}
}

func TestAddressesThatAJailSendsTo(t *testing.T) {
	for text, want := range map[string]bool{
		"192.0.2.1:443": true, "[::ffff:192.0.2.1]:443": true, "[2001:db8::1]:443": true,
		"192.0.2.1:80": false, "192.0.2.2:443": false, "127.0.0.1:1": false,
	} {
		if got := IsAttempted(netip.MustParseAddrPort(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestAJailHasTheNetworkThatIsWanted: its own, none that was made before it was known what is wanted.
func TestAJailHasTheNetworkThatIsWanted(t *testing.T) {
	for _, o := range []JailOptions{
		{IPv4: netip.MustParseAddr("100.127.0.1"), IPv6: netip.MustParseAddr("2d00:6567:7265:7373::1")},
		{IPv4: netip.MustParseAddr("100.127.0.1"), IPv6: netip.MustParseAddr("2d00:6567:7265:7373::1"), Redirect: true},
		{IPv4: netip.MustParseAddr("100.127.9.9")},
	} {
		j, err := NewJail(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(j.Close)
		sockets, err := j.Sockets()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sockets.Close)
		if sockets.Redirected != o.Redirect {
			t.Errorf("%+v: redirected: %v", o, sockets.Redirected)
		}
		four, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/fib_trie", j.pid))
		if err != nil {
			t.Fatal(err)
		}
		six, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/if_inet6", j.pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"100.127.0.1\n", "100.127.9.9\n"} {
			if got := strings.Contains(string(four), "|-- "+a); got != (a == o.IPv4.String()+"\n") {
				t.Errorf("%+v: has %q: %v", o, a, got)
			}
		}
		if got := strings.Contains(string(six), "2d006567726573730000000000000001"); got != o.IPv6.IsValid() {
			t.Errorf("%+v: IPv6 addresses %q", o, six)
		}
	}
}

// TestAProgramThatIsNotThereIsSaid also where the inside has ended before its sockets were taken.
func TestAProgramThatIsNotThereIsSaid(t *testing.T) {
	j, err := NewJail(JailOptions{IPv4: netip.MustParseAddr("100.127.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	if err := j.Stand(); err != nil {
		t.Fatal(err)
	}
	p := Program{Argv: []string{"/nowhere/at/all"}}
	j.Begin(p)
	if err := unix.Waitid(unix.P_PID, j.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	sockets, err := j.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sockets.Close)
	var missing *ExecError
	if _, err := j.Prepare(p); !errors.As(err, &missing) || !missing.Missing {
		t.Errorf("it says %v", err)
	}
}
