package inspect

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

// A streamWriter writes the response of one stream to the client. It ends the stream if the policy cuts it, or if no byte
// moves for the idle time.
//
// The handler calls the methods of [http.ResponseWriter]. Any goroutine may call the others.
type streamWriter struct {
	http.ResponseWriter
	idleTime time.Duration
	cancel   context.CancelCauseFunc      // of the request
	breakOff func(outcome record.Outcome) // breaks the whole tunnel off
	atOnce   bool                         // what is written goes at once, and does not wait for flushInterval

	out        sync.Mutex  // held while ResponseWriter is used; guards what follows
	flushTimer *time.Timer // runs while something waits for flushInterval
	answered   bool        // the final response has come, or never will
	left       bool        // the handler has returned

	mu         sync.Mutex  // guards what follows
	idle       *time.Timer // until nothing has moved for too long
	resetTimer *time.Timer // once the stream is to be reset
	begun      bool        // there is a head
	waiting    bool        // for the client to take more
	finished   bool        // the handler has returned, and ResponseWriter is nobody's
}

// newStreamWriter returns the answer that w takes. It has to be finished.
func newStreamWriter(w http.ResponseWriter, idle time.Duration, cancel context.CancelCauseFunc, sever func(outcome record.Outcome)) *streamWriter {
	a := &streamWriter{ResponseWriter: w, idleTime: idle, cancel: cancel, breakOff: sever}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.idle = time.AfterFunc(idle, a.tooIdle)
	return a
}

// finish is called before the handler returns.
func (a *streamWriter) finish() {
	a.out.Lock()
	defer a.out.Unlock()
	a.left = true
	if a.flushTimer != nil {
		a.flushTimer.Stop()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finished = true
	a.idle.Stop()
	if a.resetTimer != nil {
		a.resetTimer.Stop()
	}
}

// moved gives the stream the idle time again.
func (a *streamWriter) moved() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.finished {
		a.idle.Reset(a.idleTime)
	}
}

// cut ends the stream, whatever its handler waits for.
func (a *streamWriter) cut() {
	a.cancel(exchange.ErrCut)
	a.reset(record.OutcomeCut)
}

// tooIdle ends the stream as cut does. If the response has not begun, the handler still has to write a
// refusal, and the stream gets the idle time once more.
func (a *streamWriter) tooIdle() {
	a.mu.Lock()
	begun := a.begun
	a.mu.Unlock()
	a.cancel(exchange.ErrIdle)
	if begun {
		a.reset(record.OutcomeIdle)
		return
	}
	a.moved()
}

const resetTime = 500 * time.Millisecond

// reset has the library reset the stream, so that nothing waits any more for
// the client to open its window. A client that does not even read what comes
// over the connection loses that.
func (a *streamWriter) reset(outcome record.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.finished {
		return
	}
	http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Unix(1, 0))
	if a.resetTimer == nil {
		a.resetTimer = time.AfterFunc(resetTime, func() { a.unblock(outcome) })
	}
}

// stopReading has the handler's reading of the request's body fail.
func (a *streamWriter) stopReading() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.finished {
		http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
	}
}

func (a *streamWriter) unblock(outcome record.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting && !a.finished {
		a.breakOff(outcome)
	}
}

func (a *streamWriter) WriteHeader(status int) {
	a.mu.Lock()
	a.begun = true
	a.mu.Unlock()
	a.out.Lock()
	defer a.out.Unlock()
	a.startsWrite()
	defer a.wrote()
	a.ResponseWriter.WriteHeader(status)
	a.flushSoon()
}

// hint passes an interim response on, until the final one has come. The library itself says 100 (Continue), and HTTP/2 has
// no 101 (RFC 9113 §8.6).
func (a *streamWriter) hint(status int, f http1.Fields) {
	a.out.Lock()
	defer a.out.Unlock()
	if a.answered || status <= http.StatusSwitchingProtocols {
		return
	}
	a.startsWrite()
	defer a.wrote()
	add(a.Header(), f)
	a.ResponseWriter.WriteHeader(status)
	clear(a.Header())
}

// noMoreHints waits for an interim response that is being passed on. None is passed on from then on.
func (a *streamWriter) noMoreHints() {
	a.out.Lock()
	defer a.out.Unlock()
	a.answered = true
}

// A part of a body of known length waits so long for the next one, and shares its frame. Other bodies never wait.
const flushInterval = time.Millisecond

// flushSoon flushes what was written, within flushInterval. a.out is held.
func (a *streamWriter) flushSoon() {
	switch {
	case a.atOnce:
		http.NewResponseController(a.ResponseWriter).Flush()
	case a.flushTimer == nil:
		a.flushTimer = time.AfterFunc(flushInterval, func() { a.FlushError() })
	}
}

func (a *streamWriter) Write(b []byte) (int, error) {
	a.out.Lock()
	defer a.out.Unlock()
	a.startsWrite()
	defer a.wrote()
	n, err := a.ResponseWriter.Write(b)
	a.flushSoon()
	return n, err
}

// FlushError is what [http.ResponseController] flushes by.
func (a *streamWriter) FlushError() error {
	a.out.Lock()
	defer a.out.Unlock()
	a.startsWrite()
	defer a.wrote()
	if a.left {
		return net.ErrClosed
	}
	a.flushTimer = nil
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// startsWrite and wrote enclose what may wait for the client. a.out is held.
func (a *streamWriter) startsWrite() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = true
}

func (a *streamWriter) wrote() {
	a.mu.Lock()
	a.waiting = false
	a.mu.Unlock()
	a.moved()
}
