package inspect

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

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
	a.streamWriter = newStreamWriter(httptest.NewRecorder(), time.Minute, cancel, func(outcome record.Outcome) { a.severed = append(a.severed, string(outcome)) })
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
		for _, move := range []func(){
			a.moved, // by a part of the request
			func() { a.WriteHeader(200) },
			func() { io.WriteString(a.streamWriter, "part") },
			func() { a.FlushError() },
			a.moved, // by a part of the request
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
		if reset, _ := a.fate(); !errors.Is(context.Cause(a), exchange.ErrIdle) || !reset {
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
		if reset, _ := a.fate(); !errors.Is(context.Cause(a), exchange.ErrIdle) || reset {
			t.Errorf("after a minute: %v, reset %v", context.Cause(a), reset)
		}
		a.WriteHeader(504)
		time.Sleep(flushInterval)
		synctest.Wait()
		a.startsWrite()
		time.Sleep(time.Minute)
		synctest.Wait()
		if reset, severed := a.fate(); !reset || severed != "" {
			t.Errorf("after another: reset %v, severed %q", reset, severed)
		}
		time.Sleep(resetTime)
		synctest.Wait()
		if _, severed := a.fate(); severed != string(record.OutcomeIdle) {
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
		a.wrote()
		a.cut()
		time.Sleep(resetTime)
		synctest.Wait()
		if reset, severed := a.fate(); severed != "" || !reset || !errors.Is(context.Cause(a), exchange.ErrCut) {
			t.Errorf("reset %v, severed %q, ended with %v", reset, severed, context.Cause(a))
		}
	})
}

// TestWhatMovesBesideHidesNoWait: the client still sends its body, or the upstream its response, and takes nothing.
func TestWhatMovesBesideHidesNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		defer a.finish()
		a.startsWrite()
		a.moved()
		a.cut()
		time.Sleep(resetTime)
		synctest.Wait()
		if _, severed := a.fate(); severed != "cut" {
			t.Errorf("severed %q", severed)
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
