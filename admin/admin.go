// Package admin is the front end for the operator: whether egressd lives and is ready, what
// it counts, which flows are open, what the policy would say, and reloading it.
//
// Who asks is either known by the kernel, at a Unix socket, or shows a token, over TCP on
// loopback. The program in a sandbox may share that loopback, and a page in a browser
// can send requests to it. So a request over TCP counts only with the token, for the
// address that was listened on, and from no browser. What changes something is recorded
// before it is done, and what cannot be recorded is not done; who is turned away is
// recorded, too.
//
// The package decides nothing about traffic: it asks the gate, and whoever wires it.
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
	"sync"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
)

// Limits of a listener that a handful of people and one scraper use.
const (
	connectionsMost = 64
	headBytes       = 8 << 10
	bodyMost        = 64 << 10
	headTimeout     = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = 20 * time.Second
	idleTimeout     = 2 * time.Minute
	reloadTimeout   = 2 * time.Minute // in which bundles may be fetched
)

// An Operator is who asked: a process, by the kernel's word, or whoever has the token.
type Operator struct {
	UID  uint32
	PID  int            // 0 where it cannot be seen from here
	Addr netip.AddrPort // over TCP; then nothing else is known
}

func (o Operator) String() string {
	if o.Addr.IsValid() {
		return "the token, from " + o.Addr.String()
	}
	return fmt.Sprintf("uid %d, pid %d", o.UID, o.PID)
}

// Note is the record of what the operator is about to do.
func (o Operator) Note(what string) egress.OperatorNote {
	note := egress.OperatorNote{Src: o.Addr, Note: what + ", asked by " + o.String()}
	if o.PID > 0 {
		note.Process = &policy.Process{PID: o.PID}
	}
	return note
}

// asking is who sent a request that was let in.
func asking(r *http.Request) Operator { return r.Context().Value(visitorKey{}).(*visitor).who }

// A Question is what Explain answers.
type Question struct {
	Request string `json:"request"` // a URL, or HOST[:PORT]
	Method  string `json:"method,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

// An Unavailable is an error that is not about what was asked for: it is not done now, or it
// is not known what comes of it.
type Unavailable struct {
	Status    int // of HTTP
	Why, Hint string
}

func (u *Unavailable) Error() string { return u.Why }

// A Server answers operators. Gate and Log have to be given, and either Admit or Token
// and Host: without them, it turns everybody away. The functions are called by many
// goroutines; what they return is written as JSON. Those that are nil are not there.
type Server struct {
	Gate *egress.Gate
	Log  *audit.Log

	// Admit says who has connected to a Unix socket, or why that is nobody to answer.
	Admit func(net.Conn) (Operator, error)
	// Token is what has to be shown over TCP, and Host the address and port that has to be asked.
	Token, Host string

	// Missing says what is not as it has to be for the daemon to serve.
	Missing func() []string
	// Policy is what is in force.
	Policy func() any
	// Explain says what would happen. An error is about the question.
	Explain func(Question) (any, error)
	// Reload reads the policy again, and says what came of it. An error means that what was in
	// force still is, but for an [Unavailable].
	Reload func(ctx context.Context, why string) (any, error)
	// Grants change what is in force for a while; nil where nothing can.
	Grants Granting
	// Collect writes what else is counted.
	Collect func(*Metrics)
	// Complain is told of what went wrong here.
	Complain func(error)

	began  sync.Once
	http   *http.Server
	crowd  crowd
	denied denials
}

// Serve answers at l until Shutdown, and then returns [http.ErrServerClosed]. It closes l.
func (s *Server) Serve(l net.Listener) error {
	s.begin()
	return s.http.Serve(&door{Listener: l, server: s})
}

// Shutdown closes the listener, gives requests that are being answered until ctx is done,
// and writes what is still to be recorded.
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
			ErrorLog:    log.New(io.Discard, "", 0), // what strangers send is no line for the operator
			ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, visitorKey{}, c) },
		}
	})
}

func (s *Server) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", s.healthz)
	m.HandleFunc("GET /readyz", s.readyz)
	m.HandleFunc("GET /metrics", s.metrics)
	m.HandleFunc("GET /v1/flows", s.flows)
	m.HandleFunc("DELETE /v1/flows/{id}", s.cut)
	m.HandleFunc("GET /v1/policy", s.policy)
	m.HandleFunc("POST /v1/explain", s.explain)
	m.HandleFunc("POST /v1/reload", s.reload)
	m.HandleFunc("GET /v1/questions", s.questions)
	m.HandleFunc("POST /v1/questions/{id}/{answer}", s.answer)
	m.HandleFunc("GET /v1/grants", s.grants)
	m.HandleFunc("POST /v1/grants", s.grant)
	m.HandleFunc("DELETE /v1/grants/{id}", s.revoke)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer recovered.Log("answering the operator", func() {
			w.Header().Set("Connection", "close")
			fail(w, http.StatusInternalServerError, "the request failed", "egressd's standard error")
		})
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		v, ok := r.Context().Value(visitorKey{}).(*visitor)
		if !ok || !s.admits(w, r, v) {
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, bodyMost)
		m.ServeHTTP(w, r)
	})
}

func (s *Server) complain(err error) {
	if s.Complain != nil {
		s.Complain(err)
	}
}

// complainOf complains of err, if it is one.
func (s *Server) complainOf(err error) {
	if err != nil {
		s.complain(err)
	}
}

// record writes what an operator is about to do. What it returns has been answered.
func (s *Server) record(w http.ResponseWriter, r *http.Request, what string) (done bool) {
	if err := s.Gate.NoteOperator(asking(r).Note(what)); err != nil {
		unrecorded(w, err)
		return true
	}
	return false
}

func unrecorded(w http.ResponseWriter, err error) {
	fail(w, http.StatusServiceUnavailable, "what cannot be recorded is not done: "+err.Error(), "free space for the audit log")
}
