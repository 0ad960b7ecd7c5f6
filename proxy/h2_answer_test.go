package proxy

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

func resetOf(stream uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		_, ok := f.(*http2.RSTStreamFrame)
		return ok && f.Header().StreamID == stream
	}
}

// TestNobodyGuessesTheTypeOfAnAnswer from its body, where the server says none.
func TestNobodyGuessesTheTypeOfAnAnswer(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	const page = "<html><script>"
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["Content-Type"] = nil
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		rw.Header().Set("Content-Length", strconv.Itoa(len(page)))
		io.WriteString(rw, page)
	}, nil)
	rt := w.visitor(t, true, "allowed.test", o.port)
	for range 10 { // the body may come with the head, or behind it
		r := ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil)
		if kind, said := r.Header["Content-Type"]; said || r.body != page {
			t.Fatalf("read %q of type %q", r.body, kind)
		}
	}
}

// mistaken is an opinion that panics.
type mistaken struct{}

func (mistaken) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	if r.HTTP != nil && r.HTTP.Path == "/public/panic" {
		panic("a mistake")
	}
	return policy.Decision{Verdict: policy.Abstain}, nil
}

// lines are what a logger writes.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestAPanicIsLogged and ends its own stream alone.
func TestAPanicIsLogged(t *testing.T) {
	log := make(lines, 8)
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(log, nil)))
	defer slog.SetDefault(before)
	w := newInspectWorld(t, inspectPolicy, nil)
	w.obey(t, inspectPolicy, mistaken{})
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "fine") }, nil)
	rt := w.visitor(t, true, "allowed.test", o.port)
	r, err := http.NewRequest("GET", o.url("allowed.test", "/public/panic"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; { // one a second is logged
		if resp, err := rt.RoundTrip(r); err == nil {
			t.Fatalf("answered %d", resp.StatusCode)
		}
		if next := ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil); next.body != "fine" {
			t.Fatal(next.all())
		}
		select {
		case line := <-log:
			if !strings.Contains(line, `"panic":"a mistake"`) {
				t.Errorf("logged %s", line)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is logged")
		}
	}
}

// TestAPolicyCutsWhatNobodyReads: a client that opens no window for a response
// does not keep its request.
func TestAPolicyCutsWhatNobodyReads(t *testing.T) {
	w := newInspectWorld(t, bothPaths, nil)
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
	w := newInspectWorld(t, bothPaths, nil)
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
		"/public/begins": string(record.OutcomeIdle),
		"/public/unread": string(record.OutcomeIdle),
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
	w := newLimitedWorld(t, inspectPolicy, Limits{Idle: idle}, nil)
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
		outcomes[path] = string(w.recorded(t, closeOf(w.recorded(t, requestTo(path)))).Outcome)
	}
	tunnel.NetConn().Close()
	w.closed(t)
	return outcomes
}

func TestAnUnansweredStreamIsATimeout(t *testing.T) {
	t.Parallel()
	w := newLimitedWorld(t, inspectPolicy, Limits{Idle: time.Second}, nil)
	o := w.pki.secureOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil)
	r := ask(t, w.h2(t, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil)
	r.refused(t, 504, policy.NetworkTimeout)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); end.Outcome != record.Outcome(policy.NetworkTimeout) {
		t.Errorf("ended %+v", end)
	}
}
