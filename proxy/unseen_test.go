//go:build linux

package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// TestWhatIsNotLookedAtIsRecorded has connections wait at a listener that ends, more than
// are looked at, or without a descriptor for any. Each is in the log: by a record of its
// own, or in one that says how many there were.
func TestWhatIsNotLookedAtIsRecorded(t *testing.T) {
	const many = 300
	for name, row := range map[string]struct {
		looksAt     int
		descriptors bool
		all         bool // are looked at
	}{
		"too many":                 {30, true, false},
		"as many as are looked at": {many, true, true},
		"no descriptors":           {0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openPolicy, func(s *Server) { s.backlogLimit = row.looksAt })
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
		served <- w.ServeTransparent(triedListener{l, tried}, "given", func(int) (netip.AddrPort, error) { return to, nil })
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

// hold keeps whoever accepts busy until goOn is closed: with the eviction of a connection that stands for all others.
func (w *world) hold(goOn <-chan bool) {
	w.start.Do(w.prepare)
	from := w.Sandboxes.Holder(&sandbox.Peer{Addr: netip.AddrPortFrom(loopback, 1)})
	evicted := make(stalled)
	all := []*fair.Admission{{}}
	w.connections.Acquire(all[0], "", from, evicted)
	for w.connections.Count() < w.connections.Most-1 {
		all = append(all, new(fair.Admission))
		w.connections.Acquire(all[len(all)-1], fmt.Sprint("other-", len(all)), from, nil)
	}
	go func() {
		<-goOn
		for _, at := range all {
			w.connections.Release(at)
		}
		close(evicted)
	}()
}

// A stalled connection is evicted when its channel is closed.
type stalled chan struct{}

func (s stalled) Evict() { <-s }

// stopNow shuts the server down, where nobody accepts until then.
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
