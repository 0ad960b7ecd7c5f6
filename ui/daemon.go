package ui

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// A Daemon is a running egressd serve, asked as its operator: a client.Client.
type Daemon interface {
	// Send sends a request with body as JSON, or without a body if body is nil, and decodes the answer into v.
	Send(ctx context.Context, method, path string, body, v any, wanted ...int) (status int, err error)
}

// A live is what is known of the daemon. A loop keeps it.
type live struct {
	mu        sync.Mutex // guards what follows
	questions egress.Questions
	err       error // why the daemon does not answer
	known     bool  // it was asked
	observing []policy.Observation
	grants    []admin.Grant
	changed   chan struct{}
}

func (l *live) state() (egress.Questions, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.questions, l.changed, l.err
}

func (l *live) set(q egress.Questions, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known && l.questions.Version == q.Version && (l.err == nil) == (err == nil) {
		return
	}
	l.questions, l.err, l.known = q, err, true
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *live) observe(all []policy.Observation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observing = all
}

// grant notes what counts for a while.
func (l *live) grant(all []admin.Grant) {
	same := func(x, y admin.Grant) bool { return x.ID == y.ID && x.Until.Equal(y.Until) }
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.EqualFunc(l.grants, all, same) {
		return
	}
	l.grants = all
	close(l.changed)
	l.changed = make(chan struct{})
}

// granted returns what counted for a while when the daemon was last asked.
func (l *live) granted() []admin.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grants
}

// observed returns for whom and until when the daemon lets everything public pass that no rule is about.
func (l *live) observed() []policy.Observation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.observing), func(o policy.Observation) bool { return !o.Until.IsZero() && !time.Now().Before(o.Until) })
}

// pending returns the number of questions that wait for an answer.
func pending(all egress.Questions) (n int) {
	for _, q := range all.Questions {
		if q.State == "pending" {
			n++
		}
	}
	return n
}

const (
	daemonTimeout = 5 * time.Second
	daemonRetry   = 2 * time.Second
	portRenewed   = 20 * time.Second // less than [admin.PageLease]
)

// askDaemon sends a request to the daemon. It dials each time: after a restart, the daemon may have another token.
func (s *Server) askDaemon(ctx context.Context, method, path string, body, v any) error {
	d, err := s.options.Dial()
	if err != nil {
		return err
	}
	_, err = d.Send(ctx, method, path, body, v)
	return err
}

// watchDaemon keeps what is known of the daemon until ctx ends.
func (s *Server) watchDaemon(ctx context.Context) {
	path := "/v1/questions"
	for ctx.Err() == nil {
		var q egress.Questions
		err := s.askDaemon(ctx, http.MethodGet, path, nil, &q)
		if ctx.Err() != nil {
			return
		}
		s.live.set(q, err)
		if err == nil {
			s.live.observe(s.askObserving(ctx))
			s.lookAtGrants(ctx)
		}
		path = "/v1/questions?after=" + strconv.FormatUint(q.Version, 10)
		if err != nil {
			path = "/v1/questions"
			wait(ctx, daemonRetry)
		}
	}
}

func (s *Server) askObserving(ctx context.Context) []policy.Observation {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	var ready admin.Readiness
	if d, err := s.options.Dial(); err == nil {
		_, _ = d.Send(ctx, http.MethodGet, "/readyz", nil, &ready, http.StatusServiceUnavailable) // the next question says why it does not answer
	}
	return ready.Observing
}

// holdPort has the daemon keep sandboxes away from the port of the page, until ctx ends. A daemon that is
// started later is told, too.
func (s *Server) holdPort(ctx context.Context, port int) {
	for wait(ctx, portRenewed) {
		_ = s.keepPort(ctx, port) // the page shows that the daemon does not answer
	}
}

func (s *Server) keepPort(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	var answer struct{ Port int }
	return s.askDaemon(ctx, http.MethodPut, "/v1/pages/"+strconv.Itoa(port), nil, &answer)
}

// wait returns false once ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// lookAtGrants keeps what counts for a while, so that rows say what can be undone.
func (s *Server) lookAtGrants(ctx context.Context) {
	if s.options.Dial == nil {
		return
	}
	if all, err := s.grants(ctx); err == nil {
		s.live.grant(all.Grants)
	}
}

func (s *Server) grants(ctx context.Context) (all admin.GrantList, err error) {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	err = s.askDaemon(ctx, http.MethodGet, "/v1/grants", nil, &all)
	return all, err
}
