// Package ui serves the page on which a person looks at what sandboxes did: an HTML page rendered here, with
// charts in SVG, one style sheet and one small script, and nothing from elsewhere. It decides nothing. It
// runs in the process of egressd ui, reads the log as egressd log does, and asks a running egressd serve as
// the other commands do.
//
//	s, err := ui.New(ui.Options{Dir: dir})
//	l, err := s.Listen()
//	fmt.Println(s.Link())
//	err = s.Serve(ctx, l)
//
// Sandboxes choose hosts, paths and names of programs. The page shows such text escaped, with control
// characters spelt out, and never as a link to another place.
package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/logs/source"
)

// Limits for one person with a few tabs.
const (
	connectionsMost = 48
	streamsMost     = 16
	headBytes       = 16 << 10
	bodyMost        = 64 << 10
	headTimeout     = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = 60 * time.Second
	idleTimeout     = 60 * time.Second
	queryTimeout    = 20 * time.Second
)

// Options say what the page shows.
type Options struct {
	Dir   string // of the audit log; with Runs, the folder of their logs
	Title string // what the log is, for a person: "run 3f2a", or the folder
	Flags string // with which commands read the same log, each with a space before it
	Allow string // the same for egressd allow --from ID

	// Port is the port of 127.0.0.1 that Listen opens. 0: any that is free.
	Port uint16

	// Config is the policy file, "" for the usual one. HasPolicy is false for the log of an unknown policy.
	Config    string
	HasPolicy bool

	// Dial returns the daemon whose log it is. Nil: the page shows a log alone, and changes nothing.
	Dial func() (Daemon, error)

	// Runs lists the runs of egressd run that the page is about, the newest first. Nil: the page is about the log in Dir.
	Runs func() ([]source.Run, error)

	// Key returns the root key of the log in dir, "" if it is unknown, and the checkpoint with which a run ended.
	Key func(dir string) (key, ended string, err error)

	// Selftest makes a sandbox on this machine and tries to get out of it. Nil: the log is of another machine.
	Selftest func(context.Context) ([]Escape, error)
}

// A Server serves the page to one browser. Use New.
type Server struct {
	options Options
	guard   *guard
	port    int
	index   *index.Index

	scriptHash, styleHash string

	live     live
	verified verification
	tested   selftest
	attempts attemptsJob
	saved    atomic.Pointer[told] // for the next look at the policy, or at a request
	single   singleHosts
	firsts   firstSeen
	streams  chan struct{} // one element for each event stream
	context  context.Context
	work     sync.WaitGroup // what goes on beside requests
}

// New returns a server for a log.
func New(o Options) *Server {
	return &Server{
		options: o, index: index.New(), streams: make(chan struct{}, streamsMost), live: live{changed: make(chan struct{})},
		scriptHash: sourceHash(script), styleHash: sourceHash(style),
	}
}

// portTries is the number of ports that Listen tries, of which any may be taken.
const portTries = 20

// Listen opens a port of 127.0.0.1, and makes the link. The daemon keeps sandboxes away from the port before it
// is open.
func (s *Server) Listen() (net.Listener, error) {
	port, tries := int(s.options.Port), 1
	if s.options.Dial != nil && port == 0 {
		tries = portTries
	}
	var l net.Listener
	var err error
	for range tries {
		if s.options.Dial != nil {
			if s.options.Port == 0 {
				port = 20_000 + rand.IntN(40_000)
			}
			if err := s.keepPort(context.Background(), port); err != nil {
				return nil, err
			}
		}
		if l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			break
		}
	}
	if err != nil {
		return nil, hint.Failed(fmt.Errorf("listen on a port of 127.0.0.1: %w", err), "egressd log, which needs no port")
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	s.guard = newGuard(strconv.Itoa(s.port))
	return &fewConnections{Listener: l, free: make(chan struct{}, connectionsMost)}, nil
}

// Link returns the link that opens the page, once.
func (s *Server) Link() string { return s.guard.Link() }

// Serve reads the log and answers until ctx ends. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.context = ctx
	s.work.Go(func() {
		if s.options.Runs != nil {
			s.index.FollowAll(ctx, s.runLogs)
			return
		}
		_ = s.index.Follow(ctx, s.options.Dir) // the page shows its error
	})
	if s.options.Dial != nil {
		s.work.Go(func() { s.watchDaemon(ctx) })
		s.work.Go(func() { s.holdPort(ctx, s.port) })
	}
	defer s.work.Wait()
	var only http.Protocols
	only.SetHTTP1(true)
	server := &http.Server{
		Handler: s.handler(), Protocols: &only, DisableGeneralOptionsHandler: true, MaxHeaderBytes: headBytes,
		ReadHeaderTimeout: headTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog:    log.New(io.Discard, "", 0), // text of clients
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	s.work.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// routes are the addresses of the page, and what answers there.
func (s *Server) routes() map[string]http.HandlerFunc {
	all := map[string]http.HandlerFunc{
		"GET /{$}":                  s.now,
		"GET /timeline":             s.timeline,
		"GET /requests":             s.requests,
		"GET /review":               s.review,
		"GET /destinations":         s.destinations,
		"GET /sent":                 s.sent,
		"GET /attempts":             s.attemptsView,
		"GET /request/{id}":         s.request,
		"GET /health":               s.health,
		"POST /health/verify":       s.verifyAgain,
		"GET /help":                 s.help,
		"GET /state":                s.state,
		"GET " + linkPath + "{key}": s.open,

		"GET /v1/records":      s.apiRecords,
		"GET /v1/counts":       s.apiCounts,
		"GET /v1/timeline":     s.apiTimeline,
		"GET /v1/attempts":     s.apiAttempts,
		"GET /v1/stories/{id}": s.apiStory,
		"GET /v1/proofs/{seq}": s.apiProof,
		"GET /v1/health":       s.apiHealth,
		"GET /v1/events":       s.apiEvents,
		"GET " + exportPath:    s.apiExport,
	}
	if s.options.Runs != nil {
		all["GET /runs"] = s.runs
	}
	if s.options.HasPolicy {
		all["GET /policy"] = s.policy
		all["GET /act"] = s.act
		all["POST /act"] = s.doAct
		all["POST /change"] = s.change
		all["POST /change/save"] = s.saveChange
		all["POST /request/{id}"] = s.request
	}
	if s.options.Selftest != nil {
		all["POST /health/selftest"] = s.selftest
	}
	if s.options.Dial != nil {
		all["GET /questions"] = s.questions
		all["POST /questions"] = s.answer
		all["POST /questions/all"] = s.answerAll
		all["GET /questions/save"] = s.wouldSave
		all["POST /grants"] = s.grant
		all["POST /grants/revoke"] = s.revoke
	}
	return all
}

func (s *Server) handler() http.Handler {
	m := http.NewServeMux()
	for pattern, h := range s.routes() {
		m.HandleFunc(pattern, h)
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, &refusal{http.StatusNotFound, "There is no such page.", "The views are in the list above."})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer recovered.Log("answering the page", func() {
			http.Error(w, "the request failed; standard error of egressd ui says why", http.StatusInternalServerError)
		})
		s.protect(w.Header())
		r.Body = http.MaxBytesReader(w, r.Body, bodyMost)
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
		}
		if why := s.guard.admits(r); why != nil {
			s.refuse(w, r, why)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
		defer cancel()
		if r.URL.Path == eventsPath { // it lasts
			ctx = r.Context()
		}
		m.ServeHTTP(w, r.WithContext(ctx))
	})
}

// fewConnections bounds the connections that are open at a time. A connection beyond the bound is closed.
type fewConnections struct {
	net.Listener
	free chan struct{}
}

func (l *fewConnections) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &countedConnection{Conn: c, free: l.free}, nil
		default:
			c.Close()
		}
	}
}

type countedConnection struct {
	net.Conn
	once sync.Once
	free chan struct{}
}

func (c *countedConnection) Close() error {
	c.once.Do(func() { <-c.free })
	return c.Conn.Close()
}
