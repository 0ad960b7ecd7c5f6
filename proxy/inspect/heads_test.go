package inspect

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/internal/testpki"
	"golang.org/x/net/http2"
)

// TestAHeadHasItsTime, from its first byte to its last; between heads there is
// none to keep.
func TestAHeadHasItsTime(t *testing.T) {
	good := []string{":method", "GET", ":scheme", "https", ":authority", "allowed.test", ":path", "/"}
	s := newSpoken()
	s.head(1, 3, good...)
	whole := s.Bytes()
	for cut := len(whole) - 60; cut < len(whole); cut += 7 {
		synctest.Test(t, func(t *testing.T) {
			var late atomic.Bool
			w := tapClient(nil, newCountdown(10*time.Second, func() { late.Store(true) }), func(string) {}, nil)
			take := func(b []byte, d time.Duration) bool {
				w.in.see(b)
				w.check()
				time.Sleep(d)
				synctest.Wait()
				return late.Load()
			}
			if take(whole[:cut], 9*time.Second) || take(whole[cut:], time.Hour) {
				t.Errorf("%d and %d bytes: too late, in time", cut, len(whole)-cut)
			}
			s := newSpoken()
			s.head(3, 2, good...)
			head := s.Bytes()[len(newSpoken().Bytes()):]
			if take(head[:4], 9*time.Second) || !take(head[4:len(head)-1], time.Second) {
				t.Error("half a head was given more time for each part")
			}
		})
	}
}

// TestAHeadInTooManyFrames sends continuations without a byte in them, over
// a real connection, as the library would read it.
func TestAHeadInTooManyFrames(t *testing.T) {
	s := newSpoken()
	s.head(1, headParts, ":method", "GET", ":scheme", "https", ":path", "/")
	few := tapClient(nil, nil, func(p string) { t.Errorf("as many frames as may be: %s", p) }, nil)
	few.in.see(s.Bytes())
	few.check()
	s.head(3, 10*headParts, ":method", "GET", ":scheme", "https", ":path", "/")
	s.head(5, 1, ":method", "GET", ":scheme", "https", ":path", "/")
	inOneRead := tapClient(nil, nil, func(string) {}, nil)
	if inOneRead.in.see(s.Bytes()); !errors.Is(inOneRead.check(), errHeadParts) {
		t.Error("the head behind it hides that one came in too many frames")
	}
	near, far := net.Pipe()
	certificate := testpki.SelfSigned(t, nil)
	go func() {
		c := tls.Client(far, &tls.Config{InsecureSkipVerify: true})
		c.Write(s.Bytes())
		far.Close()
	}()
	var got []string
	w := tapClient(tls.Server(near, &tls.Config{Certificates: []tls.Certificate{certificate}}), nil, func(p string) { got = append(got, p) }, nil)
	defer near.Close()
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{w}); !errors.Is(err, errHeadParts) || len(got) != 1 {
		t.Errorf("%v, reported %q", err, got)
	}
	if !w.greeted.Load() {
		t.Error("the preface was not seen")
	}
}

// TestAFrameOfMoreThanTheAdvertisedSizeIsReportedOnce: the library ends the connection for it and counts nothing.
func TestAFrameOfMoreThanTheAdvertisedSizeIsReportedOnce(t *testing.T) {
	for length, want := range map[int]int{frameMost: 0, frameMost + 1: 1} {
		got := 0
		w := tapClient(nil, nil, func(string) { got++ }, nil)
		s := newSpoken()
		for range 2 {
			s.frames.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, length))
		}
		w.in.see(s.Bytes())
		if got != want {
			t.Errorf("two frames of %d bytes are reported %d times, want %d", length, got, want)
		}
	}
}

// TestAResetForARuleIsSeen, and no other reset.
func TestAResetForARuleIsSeen(t *testing.T) {
	for code, want := range map[http2.ErrCode]int{http2.ErrCodeProtocol: 1, http2.ErrCodeNo: 0, http2.ErrCodeCancel: 0} {
		got := 0
		w := tapClient(nil, nil, func(string) {}, func() { got++ })
		s := newSpoken()
		s.Reset()
		s.frames.WriteRSTStream(1, code)
		for _, b := range s.Bytes() {
			w.out.see([]byte{b})
		}
		if got != want {
			t.Errorf("a reset as %v is seen %d times, want %d", code, got, want)
		}
	}
}
