// Package admin serves the operator: health, readiness, metrics, open flows, explanations of the policy,
// grants, questions and reload.
//
// At a Unix socket the kernel identifies the operator. Over TCP, which is allowed on loopback only, the
// operator shows a token. A program in a sandbox may share that loopback, and a page in a browser can send
// requests to it. A request over TCP is therefore accepted only with the token, with the listener's
// address as its Host, and not from a browser. A change is recorded before it takes effect, and fails if
// it cannot be recorded. Refused requests are recorded, too.
//
// The package makes no decision about traffic. It calls the gate and the functions of the Server.
//
//	s := &admin.Server{Gate: gate, Log: log, Admit: …}
//	go s.Serve(listener)
//	…
//	s.Shutdown(ctx)
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Limits for a few people and one scraper.
const (
	connectionsMost = 64
	headBytes       = 8 << 10
	bodyMost        = 64 << 10
	headTimeout     = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = 20 * time.Second
	idleTimeout     = 2 * time.Minute
	reloadTimeout   = 2 * time.Minute // includes the time to fetch bundles
)

// An Operator identifies the sender of a request: a process identified by the kernel, or an address that
// showed the token.
type Operator struct {
	UID  uint32
	PID  int            // 0 if not visible from egressd's namespace
	Addr netip.AddrPort // valid for TCP; UID and PID are then unknown
	Rule string         // the key of the policy file by which egressd acts itself; the others are then unknown
	Link string         // the receiver whose link was used; Addr is where from, and Says whom the receiver's server names, if it does
	Says string
}

func (o Operator) String() string {
	if o.Rule != "" {
		return "nobody: " + o.Rule + " of the policy file"
	}
	if o.Link != "" {
		text := "the link that was sent to " + o.Link + ", from " + o.Addr.String()
		if o.Says != "" {
			text += " for " + strconv.QuoteToASCII(o.Says[:min(len(o.Says), maxSays)])
		}
		return text
	}
	if o.Addr.IsValid() {
		return "the token, from " + o.Addr.String()
	}
	return fmt.Sprintf("uid %d, pid %d", o.UID, o.PID)
}

// Note returns a record of the operator's next action.
func (o Operator) Note(what string) egress.OperatorNote {
	note := egress.OperatorNote{Src: o.Addr, Note: what + ", asked by " + o.String()}
	if o.PID > 0 {
		note.Process = &policy.Process{PID: o.PID}
	}
	return note
}

// operatorOf returns the sender of an admitted request.
func operatorOf(r *http.Request) Operator {
	return r.Context().Value(connectionKey{}).(*connection).who
}

// An ExplainRequest is the argument of Explain.
type ExplainRequest struct {
	Request string `json:"request"` // URL or HOST[:PORT]
	Method  string `json:"method,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

// An Unavailable is an error unrelated to the request: the action is impossible now, or its result is
// unknown.
type Unavailable struct {
	Status    int // HTTP status
	Why, Hint string
}

func (u *Unavailable) Error() string { return u.Why }

// A Server serves operators. It requires Gate, Log, and either Admit or both Token and Host. Without the
// latter it refuses every request. The functions must be safe for concurrent use; their results are
// written as JSON. A nil function disables its endpoint.
type Server struct {
	Gate *egress.Gate
	Log  *audit.Log

	// Admit identifies the peer of a Unix socket, or returns the reason to refuse it.
	Admit func(net.Conn) (Operator, error)
	// Token is the required token over TCP. Host is the required address and port.
	Token, Host string

	// Links has the server answer questions by links, and do nothing else. Admit, Token and Host then count for nothing.
	Links *Links

	// Scraped has the server show metrics, and do nothing else. Admit, Token and Host then count for nothing.
	Scraped *Scraped

	// Missing returns the reasons why the daemon is not ready.
	Missing func() []string
	// Policy returns a description of the policy in force.
	Policy func() any
	// Explain returns what would happen to a request. An error means that the request is invalid.
	Explain func(ExplainRequest) (any, error)
	// Reload reads the policy again and returns the result. After an error other than [Unavailable], the
	// earlier policy is still in force.
	Reload func(ctx context.Context, why string) (any, error)
	// Grants changes grants; nil if that is impossible.
	Grants Granting

	// File approves questions for good; nil if that is impossible.
	File Saving
	// Page keeps sandboxes away from a port of loopback, where an operator serves a page, for [PageLease]. It
	// reports whether it did so before already.
	Page func(port uint16) (known bool)
	// Refused records a container that the operator's command has refused, and returns the ID of the record.
	Refused func(c *sandbox.RefusedContainer, who Operator) (id string, err error)
	// Collect writes further metrics.
	Collect func(*Metrics)
	// OnError is called with each error of the server.
	OnError func(error)

	began       sync.Once
	http        *http.Server
	connections connections
	denied      denials
}

// Serve serves l until Shutdown and returns [http.ErrServerClosed]. It closes l.
func (s *Server) Serve(l net.Listener) error {
	s.begin()
	return s.http.Serve(&listener{Listener: l, server: s})
}

// Shutdown closes the listener, waits for active requests until ctx is done, and writes pending records.
func (s *Server) Shutdown(ctx context.Context) error {
	s.begin()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.denied.settle(s)
	return err
}

func (s *Server) begin() {
	s.began.Do(func() {
		var only http.Protocols
		only.SetHTTP1(true)
		s.http = &http.Server{
			Handler: s.handler(), Protocols: &only, DisableGeneralOptionsHandler: true, MaxHeaderBytes: headBytes,
			ReadHeaderTimeout: headTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
			ErrorLog: log.New(io.Discard, "", 0), // text of clients must not reach the operator's log
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return context.WithValue(ctx, connectionKey{}, c)
			},
		}
	})
}

func (s *Server) handler() http.Handler {
	m := http.NewServeMux()
	if s.Links != nil {
		return s.Links.handler(s)
	}
	if s.Scraped != nil {
		return s.Scraped.handler(s)
	}
	m.HandleFunc("GET /healthz", s.healthz)
	m.HandleFunc("GET /readyz", s.readyz)
	m.HandleFunc("GET /metrics", s.metrics)
	m.HandleFunc("GET /v1/latency", s.latency)
	m.HandleFunc("GET /v1/flows", s.flows)
	m.HandleFunc("DELETE /v1/flows/{id}", s.cut)
	m.HandleFunc("GET /v1/policy", s.policy)
	m.HandleFunc("POST /v1/explain", s.explain)
	m.HandleFunc("POST /v1/reload", s.reload)
	m.HandleFunc("GET /v1/questions", s.questions)
	m.HandleFunc("POST /v1/questions/{id}/{answer}", s.answer)
	m.HandleFunc("GET /v1/questions/{id}/save", s.wouldSave)
	m.HandleFunc("GET /v1/grants", s.grants)
	m.HandleFunc("POST /v1/grants", s.grant)
	m.HandleFunc("DELETE /v1/grants/{id}", s.revoke)
	m.HandleFunc("PUT /v1/pages/{port}", s.page)
	m.HandleFunc("POST /v1/refused", s.refused)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer recovered.Log("answering the operator", func() {
			w.Header().Set("Connection", "close")
			fail(w, http.StatusInternalServerError, "the request failed", "egressd's standard error")
		})
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		v, ok := r.Context().Value(connectionKey{}).(*connection)
		if !ok || !s.admits(w, r, v) {
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, bodyMost)
		m.ServeHTTP(w, r)
	})
}

// reportError calls OnError unless err is nil.
func (s *Server) reportError(err error) {
	if err != nil && s.OnError != nil {
		s.OnError(err)
	}
}

// record records the operator's next action. If it returns true, the action must not happen and the
// request has been answered.
func (s *Server) record(w http.ResponseWriter, r *http.Request, what string) (done bool) {
	if err := s.Gate.Records.NoteOperator(operatorOf(r).Note(what)); err != nil {
		unrecorded(w, err)
		return true
	}
	return false
}

func unrecorded(w http.ResponseWriter, err error) {
	fail(w, http.StatusServiceUnavailable, "what cannot be recorded is not done: "+err.Error(), "free space for the audit log")
}
