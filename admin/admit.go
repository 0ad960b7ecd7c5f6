package admin

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// Wrong tries wait, a few at a time, which bounds the goroutines that do; others are turned
// away at once, and their number is not bounded: that nobody guesses the token is due to its
// length. One with the
// token is never slowed down by those without: who shares the loopback must not be able
// to lock the operator out.
const (
	wrongDelay = 250 * time.Millisecond
	wrongMost  = 4
)

// admits reports whether a request may be answered; if not, it has been.
func (s *Server) admits(w http.ResponseWriter, r *http.Request, v *visitor) bool {
	switch {
	case len(r.TransferEncoding) > 0 || r.ContentLength > bodyMost: // nobody who asks here has a reason
		w.Header().Set("Connection", "close")
		fail(w, http.StatusRequestEntityTooLarge, "a body has a Content-Length, and at most 64 KiB", "curl -d '{…}'")
		return false
	case fromBrowser(r.Header):
		return s.refuse(w, r, v, http.StatusForbidden, "a request of a page in a browser", "curl, or egressd status")
	case s.Admit != nil:
		return v.proven.Load()
	case !s.isAsked(r.Host):
		return s.refuse(w, r, v, http.StatusMisdirectedRequest, "a request for another host", "http://"+s.Host+"/, as listen.admin says")
	case !s.shows(r.Header):
		w.Header().Set("WWW-Authenticate", `Bearer realm="egressd"`)
		return s.refuse(w, r, v, http.StatusUnauthorized, "a request without the token", "Authorization: Bearer TOKEN, with the token of egressd, which is another after each start")
	}
	v.proven.Store(true)
	return true
}

// isAsked reports whether a Host field is that of s. Clients may leave the port 80 out, or
// nothing but the colon (RFC 9110, sections 4.2.3 and 7.2).
func (s *Server) isAsked(host string) bool {
	if address, usual := strings.CutSuffix(s.Host, ":80"); usual && (host == address || host == address+":") {
		return true
	}
	return s.Host != "" && host == s.Host
}

// fromBrowser reports whether a browser sent a request for a page: it says so, and no page
// can keep it from that.
func fromBrowser(h http.Header) bool {
	for _, name := range []string{"Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Access-Control-Request-Method"} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// shows reports whether a request has the token, in a time that does not depend on how
// much of it is right.
func (s *Server) shows(h http.Header) bool {
	given := h["Authorization"]
	text := ""
	if len(given) == 1 {
		text, _ = strings.CutPrefix(given[0], "Bearer ")
	}
	got, want := sha256.Sum256([]byte(text)), sha256.Sum256([]byte(s.Token))
	same := subtle.ConstantTimeCompare(got[:], want[:]) == 1
	return same && s.Token != "" && len(given) == 1 && strings.HasPrefix(given[0], "Bearer ")
}

// refuse turns a request away, and its connection with it.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, v *visitor, status int, what, hint string) bool {
	s.denied.note(s, v.who, what)
	w.Header().Set("Connection", "close")
	if !s.denied.wait(r) {
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusTooManyRequests, "too many requests were refused", hint)
		return false
	}
	fail(w, status, "refused: "+what, hint)
	return false
}

// denials are requests that were turned away. The first in a second is recorded at once,
// those that follow in that second together. The zero value is ready.
type denials struct {
	delay time.Duration // of a wrong try; 0 is wrongDelay

	mu      sync.Mutex // guards what follows
	waiting int
	timer   *time.Timer // runs while a second is not over
	more    map[string]*denial
}

// A denial is one reason, how often it came, and who came with it last.
type denial struct {
	times int64
	who   Operator
}

// denialsAfter is for how long they are summed up.
const denialsAfter = time.Second

// note records that somebody was turned away. what is one of a few texts.
func (d *denials) note(s *Server, who Operator, what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		d.timer = time.AfterFunc(denialsAfter, func() { d.settle(s) })
		d.write(s, what, denial{1, who})
		return
	}
	if d.more == nil {
		d.more = map[string]*denial{}
	}
	one := d.more[what]
	if one == nil {
		one = new(denial)
		d.more[what] = one
	}
	one.times++
	one.who = who
}

// settle records what was summed up.
func (d *denials) settle(s *Server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	for what, one := range d.more {
		d.write(s, what, *one)
	}
	d.more = nil
}

// write is called with mu held, so that what is summed up is written once.
func (d *denials) write(s *Server, what string, one denial) {
	note := egress.OperatorNote{Src: one.who.Addr, Count: one.times, Note: "refused: " + what}
	if !note.Src.IsValid() {
		note.Note += ", by " + one.who.String()
	}
	if one.who.PID > 0 {
		note.Process = &policy.Process{PID: one.who.PID}
	}
	if err := s.Gate.NoteOperator(note); err != nil {
		s.complain(err)
	}
}

// wait takes the time that a wrong try costs, and reports false where too many take it.
func (d *denials) wait(r *http.Request) bool {
	d.mu.Lock()
	if d.waiting >= wrongMost {
		d.mu.Unlock()
		return false
	}
	d.waiting++
	d.mu.Unlock()
	t := time.NewTimer(cmp.Or(d.delay, wrongDelay))
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
	d.mu.Lock()
	d.waiting--
	d.mu.Unlock()
	return true
}
