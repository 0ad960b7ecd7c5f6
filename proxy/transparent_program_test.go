//go:build linux

package proxy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestACapturedConnectionIsRecordedWithItsProgram has the program looked up by the
// two ends that it has in the sandbox.
func TestACapturedConnectionIsRecordedWithItsProgram(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	up := newOrigin(t, func(c net.Conn) { io.Copy(c, c) })
	to := w.named(t, "allowed.test", up.port)
	asked := make(chan [2]netip.AddrPort, 8)
	w.Program = func(_ string, from, to netip.AddrPort) *policy.Process {
		asked <- [2]netip.AddrPort{from, to}
		return &policy.Process{PID: 7, Exe: "/bin/tool", Argv: []string{"tool", "x"}}
	}
	c := w.captured(t, to)
	c.send("EHLO me\n").expect("EHLO me\n")
	if got, own := <-asked, c.LocalAddr().(*net.TCPAddr).AddrPort(); got != [2]netip.AddrPort{own, to} {
		t.Errorf("asked for %v, want %v to %v", got, own, to)
	}
	c.Close()
	open := w.opened(t, "allowed.test")
	if p := open.Process; p == nil || p.PID != 7 || p.Exe != "/bin/tool" || len(p.Argv) != 2 {
		t.Errorf("recorded %+v", open.Process)
	}
	if end := w.recorded(t, ended("closed")); end.Process == nil || end.Process.PID != 7 {
		t.Errorf("the end is recorded with %+v", end.Process)
	}
}

// TestACaptureThatIsGoneBeforeItsProgramIsKnownIsDecided breaks a connection off
// while its program is being looked for.
func TestACaptureThatIsGoneBeforeItsProgramIsKnownIsDecided(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	asked, gone := make(chan bool), make(chan bool)
	w.Program = func(string, netip.AddrPort, netip.AddrPort) *policy.Process {
		asked <- true
		<-gone
		return nil
	}
	c := w.captured(t, w.named(t, "evil.test", "22"))
	<-asked
	c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
	close(gone)
	w.recorded(t, func(r record.Record) bool {
		return r.Dst != nil && r.Dst.Host == "evil.test" && r.Via == string(policy.ViaTransparent) && r.Decision.Action == "deny"
	})
}

// TestACaptureIsDecidedThoughTheServerStops stops it while a program is being looked
// for.
func TestACaptureIsDecidedThoughTheServerStops(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	asked, goOn := make(chan bool), make(chan bool)
	w.Program = func(string, netip.AddrPort, netip.AddrPort) *policy.Process {
		asked <- true
		<-goOn
		return nil
	}
	c := w.captured(t, w.named(t, "evil.test", "22"))
	<-asked
	stopped := make(chan error, 1)
	go func() {
		at, cancel := context.WithCancel(context.Background())
		cancel()
		stopped <- w.Shutdown(at)
	}()
	c.Close()
	select {
	case <-stopped:
		t.Error("it did not wait")
	case <-time.After(50 * time.Millisecond): // a broken one has stopped by then
	}
	close(goOn)
	<-stopped
	w.recorded(t, func(r record.Record) bool {
		return r.Dst != nil && r.Dst.Host == "evil.test" && r.Via == string(policy.ViaTransparent) && r.Decision.Action == "deny"
	})
}

// TestWhatWaitsAtTheEndIsDecided has more connections wait at a listener than are accepted at once
// when the server stops: a program may have begun them right before its end.
func TestWhatWaitsAtTheEndIsDecided(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	l, denied := w.captures(t)
	goOn := make(chan bool)
	w.hold(goOn)
	const many = 2000
	for range many {
		beginOne(t, l)
	}
	w.stopNow(goOn)
	var all int64
	w.count(t, func(r record.Record) bool {
		if denied(r) {
			all += max(1, r.Count)
		}
		return false
	})
	if all != many+1 {
		t.Errorf("%d of %d connections are recorded", all, many+1)
	}
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// captures serves captured connections that go to a denied place, and returns where they
// come in and what tells the records of their decisions. One has been denied by then.
func (w *world) captures(t *testing.T) (net.Listener, func(record.Record) bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := w.named(t, "evil.test", "22")
	go w.ServeTransparent(l, "captured", func(int) (netip.AddrPort, error) { return to, nil })
	denied := func(r record.Record) bool {
		return r.Dst != nil && r.Dst.Host == "evil.test" && r.Via == string(policy.ViaTransparent) && r.Decision != nil
	}
	beginOne(t, l)
	w.recorded(t, denied)
	return l, denied
}
