package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// An adminListener is where operators watch egressd and tell it what to do: listen.admin. The zero value is none.
type adminListener struct {
	daemon   *Daemon
	listener net.Listener
	name     string // in the file
	server   *admin.Server
	token    string // its file; "" at a Unix socket
	serving  sync.WaitGroup

	at       atomic.Pointer[[]netip.AddrPort] // over TCP, where it listens
	orders   chan order
	ended    chan struct{} // is closed once nobody takes orders
	stopping atomic.Bool

	nobodyAnswers func() // is called once the listener is not served any more
	endQuestions  func() // ends announceQuestions; nil: it was never begun

	pages pages

	mu   sync.Mutex // guards what follows
	lost []string   // listeners that are no longer served
}

// An order has the goroutine that reloads do so. told has room for the answer.
type order struct {
	why  string
	told chan error
}

// where is the address of the listener over TCP.
func (l *adminListener) where() []netip.AddrPort {
	if at := l.at.Load(); at != nil {
		return *at
	}
	return nil
}

// closed returns all places that the policy keeps everybody away from: the listeners of operators over TCP, and pages.
func (l *adminListener) closed() []netip.AddrPort {
	return slices.Concat(l.pages.where(), l.where(), l.daemon.notifying.where(), l.daemon.scraping.where())
}

// open opens the listener, unless this is a run. If it cannot open the default socket, it warns and succeeds.
func (l *adminListener) open() error {
	name := l.daemon.Config.AdminName()
	if name == "" || l.daemon.tailor.Change != nil {
		return nil
	}
	l.name = name
	l.server = &admin.Server{
		Gate: l.daemon.Gate, Log: l.daemon.Log, OnError: l.daemon.Complain,
		Missing: l.missing, Policy: l.policyStatus, Reload: l.reloadFor, Collect: l.collect, Grants: l.daemon.Grants(), File: l.daemon.File(), Explain: l.explain, Page: l.pages.keep, Refused: l.refused,
	}
	var err error
	if path := l.daemon.Config.AdminSocket(); path != "" {
		l.listener, err = l.daemon.listeners.openAdminSocket(path)
		l.server.Admit = admitOperator
	} else {
		err = l.daemon.listeners.openAdminPort(name)
	}
	if err != nil && l.daemon.Config.File.Listen.Admin == "" {
		fmt.Fprintf(l.daemon.Talk, "egressd: warning: egressd status, allow, questions and cut cannot reach this egressd, since it has no socket for them: listen on %s: %v\n", name, err)
		return nil
	}
	if err != nil {
		return hint.Failed(fmt.Errorf("listen.admin: listen on %s: %w", name, err), "correct that, or change listen.admin in "+l.daemon.Path)
	}
	return nil
}

// refused records that an operator's command has refused a container.
func (l *adminListener) refused(c *sandbox.RefusedContainer, who admin.Operator) (id string, err error) {
	var would policy.Sandbox
	if l.daemon.sandboxes.Expects(c.Sandbox) {
		would.Name = c.Sandbox
	}
	return recordRefused(l.daemon.Gate, would, c, who.String()+" says so at "+l.name)
}

// recordRefused records a refused container, and returns the ID of the record.
func recordRefused(gate *egress.Gate, who policy.Sandbox, c *sandbox.RefusedContainer, note string) (id string, err error) {
	r := gate.RefuseContainer(who, c, note)
	if r.Decision.Class != policy.ContainerRefused {
		return "", r
	}
	return r.ID.String(), nil
}

// policyStatus describes the policy in force, and what came of messages to people.
func (l *adminListener) policyStatus() any {
	s := l.daemon.current.Load().show()
	s.Notified = l.daemon.notifying.states()
	return s
}

// openAdminPort listens on a loopback address. The file has no other.
func (ls *listeners) openAdminPort(name string) error {
	at, err := netip.ParseAddrPort(name)
	if err != nil || !at.Addr().IsLoopback() {
		return errors.New("it is no address and port of loopback")
	}
	path, err := ls.daemon.Config.AdminToken()
	if err != nil {
		return err
	}
	l := &ls.daemon.admin
	if l.listener = ls.daemon.tailor.handed.stream(atExactly(at)); l.listener == nil {
		if l.listener, err = net.Listen("tcp", name); err != nil {
			return err
		}
	}
	if l.server.Token, err = makeToken(path); err != nil { // not before the port is this process's
		return errors.Join(fmt.Errorf("its token: %w", err), l.listener.Close())
	}
	l.token = path
	bound := addrPortOf(l.listener.Addr())
	l.server.Host = bound.String()
	l.at.Store(&[]netip.AddrPort{bound})
	return nil
}

// admitOperator lets in egressd's own user and root, from the network that egressd is in:
// the socket may have been mounted into a container whose root is this machine's.
func admitOperator(c net.Conn) (admin.Operator, error) {
	var n sandbox.UnixPeer
	var err error
	switch c := c.(type) {
	case *foreign.Conn:
		n, err = c.Client, c.Unknown
	case *net.UnixConn:
		n, err = sandbox.UnixPeerOf(c)
	default:
		return admin.Operator{}, errors.New("a connection of another kind")
	}
	who := admin.Operator{UID: n.UID, PID: n.PID}
	switch {
	case err != nil:
		return who, errors.New("the kernel does not say who connected")
	case n.UID != 0 && int64(n.UID) != int64(os.Geteuid()):
		return who, errors.New("another user connected")
	case !n.Host:
		return who, errors.New("somebody connected from another network")
	}
	return who, nil
}

// serve answers from now on, and announces questions until ctx is done.
func (l *adminListener) serve(ctx context.Context) {
	if l.listener == nil {
		return
	}
	l.nobodyAnswers = l.answering()
	l.serving.Go(func() {
		defer l.nobodyAnswers()
		if err := l.server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(l.daemon.Talk, "egressd: error: %s is not served: %v\n", l.name, err)
		}
	})
	at := l.name
	if len(l.where()) > 0 {
		at = l.server.Host
	}
	fmt.Fprintf(l.daemon.Talk, "egressd: listening on %s (admin)\n", at)
	ctx, l.endQuestions = context.WithCancel(ctx)
	l.daemon.Serving.Go(func() { l.announceQuestions(ctx) })
	l.daemon.Serving.Go(func() { l.daemon.ApproveWithin(ctx) })
	l.daemon.notifying.serve(ctx)
}

// adminDrain is how long answers may take that have begun when egressd ends.
const adminDrain = time.Second

// end closes the listener and removes its socket. It removes a token first: no operator may show the token to a program that
// takes the port afterwards.
func (l *adminListener) end() {
	if l.daemon == nil { // it was never opened
		return
	}
	l.daemon.notifying.end()
	if l.listener == nil {
		return
	}
	if l.nobodyAnswers != nil {
		l.nobodyAnswers()
	}
	if l.token != "" {
		_ = os.Remove(l.token) // the next start makes another
		l.token = ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminDrain)
	defer cancel()
	if err := l.server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		l.daemon.Complain(err)
	}
	l.listener.Close() // where it was never served
	l.serving.Wait()
	l.listener = nil
}

// isLost notes that a listener is no longer served, and says so.
func (l *adminListener) isLost(name string, err error) {
	fmt.Fprintf(l.daemon.Talk, "egressd: error: %s is not served: %v\n", name, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, name)
}

// missing says what keeps egressd from serving.
func (l *adminListener) missing() (why []string) {
	if l.stopping.Load() {
		why = append(why, "egressd is stopping")
	}
	if now := l.daemon.current.Load(); now == nil {
		why = append(why, "no policy is in force")
	} else {
		why = append(why, now.stale()...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.lost {
		why = append(why, name+" is not served")
	}
	return why
}

// isEnding notes that no order is taken any more.
func (l *adminListener) isEnding() {
	if !l.stopping.Swap(true) {
		close(l.ended)
		if l.endQuestions != nil {
			l.endQuestions()
		}
	}
}

// reloadFor has the policy read again, as SIGHUP does, and waits for what came of it.
func (l *adminListener) reloadFor(ctx context.Context, why string) (any, error) {
	a := order{why, make(chan error, 1)}
	select {
	case l.orders <- a:
	case <-l.ended:
		return nil, &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "egressd is stopping, and reads no policy any more", Hint: "egressd serve, which reads it at its start"}
	case <-ctx.Done():
		return nil, &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "egressd is busy with another reload", Hint: "egressd reload, once more"}
	}
	select {
	case err := <-a.told:
		if err != nil {
			return nil, err
		}
		return map[string]any{"reloaded": true, "policy": l.daemon.Gate.Digest()}, nil
	case <-ctx.Done():
		return nil, &admin.Unavailable{Status: http.StatusGatewayTimeout, Why: "the reload goes on; what comes of it is in the log", Hint: "egressd status"}
	}
}

// explain answers as egressd check does, by the policy in force.
func (l *adminListener) explain(q admin.ExplainRequest) (any, error) {
	now := l.daemon.current.Load()
	if now == nil {
		return nil, errors.New("no policy is in force")
	}
	who, err := now.config.Sandbox(q.Sandbox)
	if err != nil {
		return nil, err
	}
	return explain.Check(now.policy, explain.Question{Sandbox: config.EntryOf(who).Sandbox(), Method: q.Method, Request: q.Request})
}

// answering tells the gate that operators can answer its questions here, until stop is called. How long flows are held is
// read at the start, as all limits.
func (l *adminListener) answering() (stop func()) {
	wait := l.daemon.Config.File.Limits.AskWait
	l.daemon.Gate.Approvals.Open(true, wait)
	return func() { l.daemon.Gate.Approvals.Open(false, wait) }
}

// announceEvery is how long announceQuestions rests after a new question, so that a flood of them costs little.
const announceEvery = 250 * time.Millisecond

// announceQuestions writes a line for each new question, until ctx is done.
func (l *adminListener) announceQuestions(ctx context.Context) {
	told := map[string]bool{}
	for version := ^uint64(0); ctx.Err() == nil; {
		all := l.daemon.Gate.Approvals.Questions(ctx, version)
		version = all.Version
		now, news := make(map[string]bool, len(all.Questions)), false
		for i := range all.Questions {
			q := &all.Questions[i]
			if now[q.ID] = true; q.State == "pending" && !told[q.ID] {
				fmt.Fprintf(l.daemon.Talk, "egressd: question: %s\n", printable.Text(q.Ask(l.daemon.flag)))
				news = true
			}
		}
		if told = now; !news {
			continue
		}
		select {
		case <-time.After(announceEvery):
		case <-ctx.Done():
		}
	}
}

// operatorMessages are for the operator, from callers that must not wait: standard error may be a pipe that nobody
// empties. A goroutine writes them. The zero value is ready.
type operatorMessages struct {
	writing sync.WaitGroup

	mu      sync.Mutex // guards what follows
	waiting []string
	busy    bool // a goroutine writes
}

// messagesMost is how many wait. More are dropped.
const messagesMost = 64

// write has text written to talk soon.
func (m *operatorMessages) write(talk io.Writer, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == messagesMost {
		return
	}
	m.waiting = append(m.waiting, text)
	if m.busy {
		return
	}
	m.busy = true
	m.writing.Go(func() {
		for text, ok := m.next(); ok; text, ok = m.next() {
			fmt.Fprint(talk, text)
		}
	})
}

// next takes the oldest message. If there is none, no goroutine writes any more.
func (m *operatorMessages) next() (text string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy = len(m.waiting) > 0; !m.busy {
		return "", false
	}
	text, m.waiting = m.waiting[0], m.waiting[1:]
	return text, true
}
