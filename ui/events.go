package ui

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	eventsPath = "/v1/events"
	eventPause = time.Second      // between two events
	eventAlive = 20 * time.Second // between signs of life
	eventWrite = 10 * time.Second // for a reader that does not read
)

// apiEvents tells a browser how far the log is, once a second at most. An event holds only a number, so that
// a slow reader is owed nothing: it asks for the records that it wants. The id of an event is the number of
// the record to read next; Last-Event-ID or after resumes there.
func (s *Server) apiEvents(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r, "after")
	if !ok {
		return
	}
	after, ok := q.count(w, "after", -1, 0, 1<<62)
	if !ok {
		return
	}
	if n, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
		after = n
	}
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "too many pages are open", "close one, and reload")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	if _, err := fmt.Fprint(w, "retry: 2000\n\n"); err != nil {
		return
	}
	_, before, _ := s.live.state() // of the daemon's questions
	if r.Header.Get("Last-Event-ID") != "" && s.options.Dial != nil {
		before = nil // a question or an answer may have been missed
	}
	for {
		p, changed := s.index.Progress()
		_, asked, _ := s.live.state()
		text := ": still here\n\n"
		if p.Next != after || asked != before {
			after, before = p.Next, asked
			text = fmt.Sprintf("id: %d\ndata: {\"next\":%d,\"caught_up\":%t}\n\n", p.Next, p.Next, p.CaughtUp)
		}
		_ = out.SetWriteDeadline(time.Now().Add(eventWrite))
		if _, err := fmt.Fprint(w, text); err != nil || out.Flush() != nil {
			return
		}
		if !pause(r, nil, nil, eventPause) || !pause(r, changed, asked, eventAlive) {
			return
		}
	}
}

// pause waits for a change, at most for a while. It returns false once the client has gone.
func pause(r *http.Request, changed, asked <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.Context().Done():
		return false
	case <-changed:
	case <-asked:
	case <-t.C:
	}
	return true
}
