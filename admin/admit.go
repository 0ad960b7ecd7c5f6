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

// Refused requests wait before the answer, a few at a time, which bounds the goroutines. All others are
// answered at once. The length of the token, not this delay, makes guessing impossible. Requests with the
// token never wait, so that a program on the same loopback cannot lock out the operator.
const (
	wrongDelay = 250 * time.Millisecond
	wrongMost  = 4
)

// admits reports whether a request is admitted. If not, it has answered the request.
func (s *Server) admits(w http.ResponseWriter, r *http.Request, v *connection) bool {
	switch {
	case len(r.TransferEncoding) > 0 || r.ContentLength > bodyMost: // no legitimate request has such a body
		w.Header().Set("Connection", "close")
		fail(w, http.StatusRequestEntityTooLarge, "a body has a Content-Length, and at most 64 KiB", "curl -d '{…}'")
		return false
	case fromBrowser(r.Header):
		return s.refuse(w, r, v, http.StatusForbidden, "a request of a page in a browser", "curl, or egressd status")
	case s.Admit != nil:
		return v.proven.Load()
	case !s.isOwnHost(r.Host):
		return s.refuse(w, r, v, http.StatusMisdirectedRequest, "a request for another host", "http://"+s.Host+"/, as listen.admin says")
	case !hasToken(r.Header, s.Token):
		w.Header().Set("WWW-Authenticate", `Bearer realm="egressd"`)
		return s.refuse(w, r, v, http.StatusUnauthorized, "a request without the token", "Authorization: Bearer TOKEN, with the token of egressd, which is another after each start")
	}
	v.proven.Store(true)
	return true
}

// isOwnHost reports whether a Host field names the server. Clients may leave out port 80, or only its
// number (RFC 9110, sections 4.2.3 and 7.2).
func (s *Server) isOwnHost(host string) bool {
	if address, usual := strings.CutSuffix(s.Host, ":80"); usual && (host == address || host == address+":") {
		return true
	}
	return s.Host != "" && host == s.Host
}

// fromBrowser reports whether a page in a browser caused the request. Browsers set these fields, and a
// page cannot prevent it.
func fromBrowser(h http.Header) bool {
	for _, name := range []string{"Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Access-Control-Request-Method"} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// hasToken reports whether the request has the token. The time does not depend on the number of correct
// bytes.
func hasToken(h http.Header, token string) bool {
	given := h["Authorization"]
	text := ""
	if len(given) == 1 {
		text, _ = strings.CutPrefix(given[0], "Bearer ")
	}
	got, want := sha256.Sum256([]byte(text)), sha256.Sum256([]byte(token))
	same := subtle.ConstantTimeCompare(got[:], want[:]) == 1
	return same && token != "" && len(given) == 1 && strings.HasPrefix(given[0], "Bearer ")
}

// refuse answers a request that is not admitted and closes its connection.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, v *connection, status int, what, hint string) bool {
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

// denials records refused requests: the first one at once, and those of the following second summed. The
// zero value is ready to use.
type denials struct {
	delay time.Duration // before the answer; 0 means wrongDelay

	mu      sync.Mutex // guards the following fields
	waiting int
	timer   *time.Timer // runs until the second is over
	more    map[string]*denial
}

// A denial counts equal refusals and remembers the last sender.
type denial struct {
	times int64
	who   Operator
}

// denialsAfter is the period over which refusals are summed.
const denialsAfter = time.Second

// note records a refusal. The text what is one of a few constants.
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

// settle records the summed refusals.
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

// write requires mu, so that each sum is written once.
func (d *denials) write(s *Server, what string, one denial) {
	note := egress.OperatorNote{Src: one.who.Addr, Count: one.times, Note: "refused: " + what}
	if !note.Src.IsValid() {
		note.Note += ", by " + one.who.String()
	}
	if one.who.PID > 0 {
		note.Process = &policy.Process{PID: one.who.PID}
	}
	s.reportError(s.Gate.Records.NoteOperator(note))
}

// wait delays the answer. It returns false if too many requests already wait.
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
