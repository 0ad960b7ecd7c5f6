package proxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
)

func resetOf(stream uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		_, ok := f.(*http2.RSTStreamFrame)
		return ok && f.Header().StreamID == stream
	}
}

// TestAPolicyCutsWhatNobodyReads: a client that opens no window for a response
// does not keep its request.
func TestAPolicyCutsWhatNobodyReads(t *testing.T) {
	w := newInsideWorld(t, bothPaths, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, _ *http.Request) {
		io.Copy(rw, io.LimitReader(zeros{}, 8<<20))
	}, nil)
	tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, tunnel, http2.Setting{ID: http2.SettingInitialWindowSize})
	goes, stays := s.get(t, o, "/goes"), s.get(t, o, "/stays")
	heads := map[uint32]bool{}
	s.until(t, func(f http2.Frame) bool {
		if _, ok := f.(*http2.HeadersFrame); ok {
			heads[f.Header().StreamID] = true
		}
		return len(heads) == 2
	})
	w.obey(t, onePath)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/goes")))); end.Outcome != "cut" {
		t.Errorf("ended %+v", end)
	}
	s.until(t, resetOf(goes))
	s.frames.WriteWindowUpdate(stays, 100)
	s.flush(t)
	s.until(t, func(f http2.Frame) bool {
		_, ok := f.(*http2.DataFrame)
		return ok && f.Header().StreamID == stays
	})
	tunnel.NetConn().Close()
	w.closed(t)
}

// TestAPolicyCutsWhereNothingIsTaken from the connection at all: the reset
// cannot be sent either.
func TestAPolicyCutsWhereNothingIsTaken(t *testing.T) {
	t.Parallel()
	w := newInsideWorld(t, bothPaths, nil)
	var sent atomic.Int64
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			n, _ := rw.Write(make([]byte, 32<<10))
			sent.Add(int64(n))
		}
	}, nil)
	tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, tunnel, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	s.frames.WriteWindowUpdate(0, 1<<30)
	s.get(t, o, "/goes")
	// Until what is sent has stopped moving. Too early would only test less.
	for before := int64(-1); before != sent.Load() || before == 0; time.Sleep(200 * time.Millisecond) {
		before = sent.Load()
	}
	w.obey(t, onePath)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/goes")))); end.Outcome != "cut" {
		t.Errorf("ended %+v", end)
	}
	w.closed(t)
	if n := w.count(t, ended("cut")); n != 2 {
		t.Errorf("%d flows were cut, want the request and its tunnel", n)
	}
}

// TestStreamsThatStandStillEnd, each by itself: an upstream that does not
// answer, one that does not go on, and a client that takes nothing. On a machine that is
// busy, what is to begin may not do so within an idle time, and is given a longer one.
func TestStreamsThatStandStillEnd(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"/public/silent": string(policy.NetworkTimeout),
		"/public/begins": string(relay.IdleTooLong),
		"/public/unread": string(relay.IdleTooLong),
	}
	var got map[string]string
	for idle := time.Second; idle <= 16*time.Second; idle *= 4 {
		if got = standStill(t, idle, slices.Collect(maps.Keys(want))); maps.Equal(got, want) {
			return
		}
	}
	t.Errorf("ended %v, want %v", got, want)
}

// standStill returns how streams for the paths end in one tunnel.
func standStill(t *testing.T, idle time.Duration, paths []string) map[string]string {
	t.Helper()
	w := newLimitedWorld(t, insidePolicy, Limits{Idle: idle}, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/public/begins":
			http.NewResponseController(rw).Flush()
		case "/public/unread":
			io.Copy(rw, io.LimitReader(zeros{}, 8<<20))
		}
		<-r.Context().Done()
	}, nil)
	tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, tunnel, http2.Setting{ID: http2.SettingInitialWindowSize})
	for _, path := range paths {
		s.get(t, o, path)
	}
	outcomes := map[string]string{}
	for _, path := range paths {
		outcomes[path] = w.recorded(t, closeOf(w.recorded(t, requestTo(path)))).Outcome
	}
	tunnel.NetConn().Close()
	w.closed(t)
	return outcomes
}

func TestAnUnansweredStreamIsATimeout(t *testing.T) {
	t.Parallel()
	w := newLimitedWorld(t, insidePolicy, Limits{Idle: time.Second}, nil)
	o := w.pki.secureOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil)
	r := ask(t, w.h2(t, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil)
	r.refused(t, 504, policy.NetworkTimeout)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); end.Outcome != string(policy.NetworkTimeout) {
		t.Errorf("ended %+v", end)
	}
}

// answering is a streamAnswer that nobody reads, with what became of it.
type answering struct {
	*streamWriter
	context.Context
	severed []string
}

func newAnswering() *answering {
	a := new(answering)
	var cancel context.CancelCauseFunc
	a.Context, cancel = context.WithCancelCause(context.Background())
	a.streamWriter = newStreamWriter(httptest.NewRecorder(), new(egress.End), time.Minute, cancel, func(outcome string) { a.severed = append(a.severed, outcome) })
	return a
}

// fate is whether the stream was reset, and what its tunnel was severed for.
func (a *answering) fate() (reset bool, severed string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.resetTimer != nil, strings.Join(a.severed, " ")
}

func TestWhatMovesIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		defer a.finish()
		body := &countedBody{io.NopCloser(strings.NewReader(strings.Repeat("x", 100))), a.streamWriter, func(int) error { return nil }}
		for _, move := range []func(){
			func() { body.Read(make([]byte, 10)) },
			func() { a.WriteHeader(200) },
			func() { io.WriteString(a.streamWriter, "part") },
			func() { a.FlushError() },
			func() { body.Read(make([]byte, 10)) },
		} {
			time.Sleep(59 * time.Second)
			move()
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if a.Err() != nil {
			t.Fatalf("ended with %v", context.Cause(a))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if reset, _ := a.fate(); !idled(a) || !reset {
			t.Errorf("after a minute: %v, reset %v", context.Cause(a), reset)
		}
	})
}

// TestARefusalIsGivenTime: where a stream stood still without a response, the
// handler is told, and the stream only reset when the refusal does not go either.
func TestARefusalIsGivenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		defer a.finish()
		time.Sleep(time.Minute)
		synctest.Wait()
		if reset, _ := a.fate(); !idled(a) || reset {
			t.Errorf("after a minute: %v, reset %v", context.Cause(a), reset)
		}
		a.WriteHeader(504)
		a.startsWrite()
		time.Sleep(time.Minute)
		synctest.Wait()
		if reset, severed := a.fate(); !reset || severed != "" {
			t.Errorf("after another: reset %v, severed %q", reset, severed)
		}
		time.Sleep(resetTime)
		synctest.Wait()
		if _, severed := a.fate(); severed != string(relay.IdleTooLong) {
			t.Errorf("in the end severed %q", severed)
		}
	})
}

// TestACutSparesTheTunnel where the handler does not wait for the client.
func TestACutSparesTheTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		defer a.finish()
		a.startsWrite()
		a.moved()
		a.cut()
		time.Sleep(resetTime)
		synctest.Wait()
		if reset, severed := a.fate(); severed != "" || !reset || !errors.Is(context.Cause(a), context.Canceled) {
			t.Errorf("reset %v, severed %q, ended with %v", reset, severed, context.Cause(a))
		}
	})
}

// TestAFinishedAnswerIsLeftAlone, since its writer is nobody's.
func TestAFinishedAnswerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		a.finish()
		time.Sleep(time.Hour)
		a.moved()
		time.Sleep(time.Hour)
		synctest.Wait()
		if a.Err() != nil {
			t.Errorf("ended with %v", context.Cause(a))
		}
		a.cut()
		if reset, _ := a.fate(); reset {
			t.Error("reset")
		}
	})
}

// TestAStuckAnswerMayYetFinish before the tunnel is severed.
func TestAStuckAnswerMayYetFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		a.startsWrite()
		a.cut()
		a.finish()
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, severed := a.fate(); severed != "" {
			t.Errorf("severed %q", severed)
		}
	})
}
