package jail

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
	for _, o := range []Options{
		{IPv4: netip.MustParseAddr("100.127.0.1"), IPv6: netip.MustParseAddr("2d00:6567:7265:7373::1")},
		{IPv4: netip.MustParseAddr("100.127.0.1"), IPv6: netip.MustParseAddr("2d00:6567:7265:7373::1"), Redirect: true},
		{IPv4: netip.MustParseAddr("100.127.9.9")},
	} {
		j, err := New(o)
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

// TestAProgramThatIsNotThereIsSaid although jail init has ended before anything of it was looked at.
func TestAProgramThatIsNotThereIsSaid(t *testing.T) {
	j, err := New(Options{IPv4: netip.MustParseAddr("100.127.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	p := Program{Argv: []string{"/nowhere/at/all"}}
	j.Begin(p)
	<-j.planned
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

// TestAJailIsClosedWhileItsProgramIsSent has more to send than a socket takes, to a jail that may not stand yet.
func TestAJailIsClosedWhileItsProgramIsSent(t *testing.T) {
	for _, stand := range []bool{false, true} {
		j, err := New(Options{IPv4: netip.MustParseAddr("100.127.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		if stand {
			if err := j.Stand(); err != nil {
				t.Fatal(err)
			}
		}
		j.Begin(Program{Argv: []string{"/bin/true"}, Covered: map[string][]byte{"/etc/none": make([]byte, 3<<20)}})
		j.Close()
	}
}

// TestAProgramThatIsKnownEarlyIsPrepared sends it before the jail stands.
func TestAProgramThatIsKnownEarlyIsPrepared(t *testing.T) {
	j, err := New(Options{IPv4: netip.MustParseAddr("100.127.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	p := Program{Argv: []string{"/bin/false"}, Env: os.Environ()}
	j.Begin(p)
	sockets, err := j.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	if tried, err := j.Prepare(p); err != nil || len(tried) == 0 {
		t.Fatal(tried, err)
	}
	if err := j.Exec(); err != nil {
		t.Fatal(err)
	}
	if status, err := j.Wait(nil); err != nil || status.ExitStatus() != 1 {
		t.Errorf("%#x, %v", status, err)
	}
}
