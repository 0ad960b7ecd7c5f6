package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// slowOrigin is an origin for which the kernel and HTTP/2 take no more than some 100 KiB of
// a body that its handler does not read, until it is told to hurry.
func (p *pki) slowOrigin(t *testing.T, overH2 bool, handle http.HandlerFunc) (o *origin, hurry func()) {
	t.Helper()
	s := httptest.NewUnstartedServer(handle)
	s.Listener.Close()
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			err = errors.Join(
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10),
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1000), // or the sender takes megabytes
			)
		})
		return errors.Join(failed, err)
	}}
	var err error
	if s.Listener, err = small.Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.Config.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 16 << 10}
	var mu sync.Mutex
	var all []*tls.Conn
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if secure, ok := c.(*tls.Conn); ok && state == http.StateNew {
			all = append(all, secure)
		}
	}
	return p.serveOrigin(t, s, overH2, nil), func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			c.NetConn().(*net.TCPConn).SetReadBuffer(1 << 20)
		}
	}
}

const slowPart = 700 << 10

// TestWhatWaitsForItsUpstreamIsHeld: a body that was searched is in memory until its
// upstream takes it.
func TestWhatWaitsForItsUpstreamIsHeld(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, canaryPolicy, nil)
		guarded(t, w)
		w.forwarder.BodyMemory.SetMost(2*slowPart + slowPart/2)
		begun, read := make(chan struct{}), make(chan struct{})
		o, hurry := w.pki.slowOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadFull(r.Body, make([]byte, 1)); err != nil {
				return // the one that is refused
			}
			begun <- struct{}{}
			<-read
			io.Copy(io.Discard, r.Body)
		})
		released := sync.OnceFunc(func() { hurry(); close(read) })
		t.Cleanup(released)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		post := func() chan reply {
			answer := make(chan reply, 1)
			go func() {
				answer <- ask(t, rt, "POST", o.url("allowed.test", "/up"), bytes.NewReader(make([]byte, slowPart)), "Content-Encoding: gzip")
			}()
			return answer
		}
		first := post()
		soon(t, "the first byte", begun)
		second := post()
		soon(t, "the first byte of the second", begun)
		holds(t, &w.forwarder.BodyMemory, 2*slowPart)
		(<-post()).refused(t, 429, policy.TooManyFlows)
		w.recorded(t, ended(string(policy.TooManyFlows)))
		released()
		for _, answer := range []chan reply{first, second} {
			if r := <-answer; r.StatusCode != 200 {
				t.Error(r.all())
			}
		}
		empty(t, &w.forwarder.BodyMemory, "after their end")
		third := post()
		soon(t, "the first byte of the third", begun)
		hurry()
		if r := <-third; r.StatusCode != 200 {
			t.Error(r.all())
		}
		if n := w.count(t, func(r record.Record) bool { return r.Outcome == record.Outcome(policy.TooManyFlows) }); n != 1 {
			t.Errorf("%d were refused, want one", n)
		}
	})
}

// TestWhatNobodyWaitsForIsNotHeld: a client resets its stream, whose body waits.
func TestWhatNobodyWaitsForIsNotHeld(t *testing.T) {
	w := newInspectWorld(t, canaryPolicy, nil)
	guarded(t, w)
	begun := make(chan struct{})
	o, _ := w.pki.slowOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 1))
		close(begun)
		<-r.Context().Done()
	})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", o.url("allowed.test", "/up"), bytes.NewReader(make([]byte, slowPart)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Encoding", "gzip")
	rt, left := w.visitor(t, true, "allowed.test", o.port), make(chan error, 1)
	go func() {
		_, err := rt.RoundTrip(r)
		left <- err
	}()
	soon(t, "the first byte", begun)
	holds(t, &w.forwarder.BodyMemory, slowPart)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	empty(t, &w.forwarder.BodyMemory, "after the stream was reset")
}
