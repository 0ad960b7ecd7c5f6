//go:build linux

package proxy

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestWhatIsNotLookedAtIsRecorded has connections wait at a listener that ends, more than
// are looked at, or without a descriptor for any. Each is in the log: by a record of its
// own, or in one that says how many there were.
func TestWhatIsNotLookedAtIsRecorded(t *testing.T) {
	const many = 300
	for name, row := range map[string]struct {
		looksAt, loops int
		descriptors    bool
		all            bool // are looked at
	}{
		"too many":                   {30, 1, true, false},
		"too many for two loops":     {30, 2, true, false},
		"as many as are looked at":   {many, 1, true, true},
		"no descriptors":             {0, 1, false, false},
		"no descriptors for 2 loops": {0, 2, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openPolicy, func(s *Server) { s.backlogLimit, s.Loops = row.looksAt, row.loops })
			l, denied := w.captures(t)
			goOn := make(chan bool)
			w.hold(goOn)
			for range many {
				beginOne(t, l)
			}
			giveBack := func() {}
			if !row.descriptors {
				giveBack = takeDescriptors(t)
			}
			w.stopNow(goOn)
			giveBack()
			seen, unseen := int64(0), []int64{}
			w.count(t, func(r record.Record) bool {
				switch {
				case denied(r):
					seen += r.Times()
				case r.Kind == record.KindRefused && strings.Contains(r.Decision.Reason, "looked at"):
					unseen = append(unseen, r.Times())
					if r.Decision.Class != string(policy.TooManyFlows) || r.Via != string(policy.ViaTransparent) {
						t.Errorf("%+v", r)
					}
				}
				return false
			})
			if row.all && len(unseen) > 0 || !row.all && len(unseen) != 1 {
				t.Errorf("%d records of those that were not looked at", len(unseen))
			}
			for _, n := range unseen {
				seen += n
			}
			if seen != many+1 {
				t.Errorf("%d of %d connections are recorded, %d without a look", seen, many+1, unseen)
			}
		})
	}
}

// TestWhatAGivenListenerLeavesIsRecorded has one that is closed while there is no
// descriptor for what waits at it. How many that were nobody can tell then.
func TestWhatAGivenListenerLeavesIsRecorded(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := w.named(t, "evil.test", "22")
	served := make(chan error, 1)
	tried := make(chan bool, 100)
	go func() {
		served <- w.ServeGiven(triedListener{l, tried}, "given", func(int) (netip.AddrPort, error) { return to, nil })
	}()
	<-tried
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-tried
	other, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(other)
	at := l.Addr().(*net.TCPAddr).AddrPort()
	giveBack := takeDescriptors(t)
	if err := syscall.Connect(other, &syscall.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		t.Fatal(err)
	}
	<-tried // again, so it has met EMFILE
	l.Close()
	<-served
	giveBack()
	n := w.count(t, func(r record.Record) bool {
		return r.Kind == record.KindRefused && r.Count == 0 && strings.Contains(r.Decision.Reason, "how many is not known")
	})
	if n != 1 {
		t.Errorf("%d records say so", n)
	}
}

// TestALoopThatCannotListenLeavesItToTheOthers has the first of two loops fail to watch a
// listener before the second has come to it: what waits is served, and not refused.
func TestALoopThatCannotListenLeavesItToTheOthers(t *testing.T) {
	const many = 5
	w := newWorld(t, openPolicy, func(s *Server) { s.backlogLimit, s.Loops = 1, 2 })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range many {
		beginOne(t, l)
	}
	to := w.named(t, "evil.test", "22")
	w.start.Do(w.prepare) // or wait for who does
	var open sync.WaitGroup
	var left atomic.Int32
	all := make([]*loopListener, 0, 2)
	for _, loop := range w.loops {
		fd, err := relay.Duplicate(l)
		if err != nil {
			t.Fatal(err)
		}
		how := func(int) (netip.AddrPort, error) { return to, nil }
		all = append(all, &loopListener{server: w.Server, wayIn: wayIn{name: "captured", original: how}, at: boundTo(l), fd: fd, loop: loop, open: &open, left: &left})
	}
	goOn, ended := make(chan bool), make(chan bool)
	w.loops[1].Post(func() { <-goOn })
	first := all[0]
	held := make(chan error)
	first.loop.Post(func() {
		held <- first.loop.WatchListener(first.fd, deaf{}) // so that it fails the next time
		<-held
	})
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	w.register(all)
	close(held)
	first.loop.Post(func() { close(ended) })
	<-ended
	close(goOn)
	settle(w.loops)
	unseen := int64(0)
	w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Dst != nil && r.Dst.Host == "evil.test" })
	w.count(t, func(r record.Record) bool {
		if r.Kind == record.KindRefused && strings.Contains(r.Decision.Reason, "looked at") {
			unseen += r.Times()
		}
		return false
	})
	if unseen != 0 {
		t.Errorf("%d connections are recorded as refused", unseen)
	}
}

// deaf does nothing about what it is told.
type deaf struct{}

func (deaf) Ready(relay.Events) {}

// TestWhatThereIsNoDescriptorForIsRecorded has connections accepted and nothing left to serve
// them with, while the listener goes on. They are summed as other denials are.
func TestWhatThereIsNoDescriptorForIsRecorded(t *testing.T) {
	const many = 40
	w := newWorld(t, openPolicy, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make([]net.Conn, many)
	for i := range accepted {
		beginOne(t, l)
		if accepted[i], err = l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	w.start.Do(w.prepare) // or wait for who does
	in := &loopListener{server: w.Server, wayIn: wayIn{name: "given", original: func(int) (netip.AddrPort, error) { return netip.AddrPort{}, nil }}, loop: w.loops[0]}
	giveBack := takeDescriptors(t)
	for _, c := range accepted {
		w.acceptGiven(in, c)
	}
	giveBack()
	w.Gate.Records.Settle()
	seen, records := int64(0), 0
	w.count(t, func(r record.Record) bool {
		if r.Kind != record.KindRefused {
			return false
		}
		seen, records = seen+r.Times(), records+1
		if r.Decision.Class != string(policy.TooManyFlows) || r.Via != string(policy.ViaTransparent) || !strings.Contains(r.Decision.Reason, "no descriptor for the connection") {
			t.Errorf("%+v, %+v", r, r.Decision)
		}
		return false
	})
	if seen != many || records >= many {
		t.Errorf("%d of %d connections are in %d records", seen, many, records)
	}
}

// A triedListener says when somebody begins to accept from it.
type triedListener struct {
	net.Listener
	tried chan<- bool
}

func (l triedListener) Accept() (net.Conn, error) {
	select {
	case l.tried <- true:
	default:
	}
	return l.Listener.Accept()
}

func beginOne(t *testing.T, l net.Listener) {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// hold keeps the loops busy until goOn is closed.
func (w *world) hold(goOn <-chan bool) {
	for _, loop := range w.loops {
		held := make(chan bool)
		loop.Post(func() { close(held); <-goOn })
		<-held
	}
}

// stopNow shuts the server down, whose loops are held until then.
func (w *world) stopNow(goOn chan<- bool) {
	stopped := make(chan error, 1)
	go func() {
		at, cancel := context.WithCancel(context.Background())
		cancel()
		stopped <- w.Shutdown(at)
	}()
	for !w.isStopping() {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	<-stopped
	w.Gate.Records.Settle()
}

// takeDescriptors lets this process open nothing more until the test ends, or giveBack is
// called.
func takeDescriptors(t *testing.T) (giveBack func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	giveBack = func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }
	t.Cleanup(giveBack)
	return giveBack
}
