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
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// An operator is the listener at which egressd is watched and told to reload. The zero
// value is none.
type operator struct {
	daemon   *Daemon
	listener net.Listener
	name     string // in the file
	server   *admin.Server
	token    string // its file; "" at a Unix socket
	serving  sync.WaitGroup

	at       atomic.Pointer[[]netip.AddrPort] // over TCP, where it listens
	now      atomic.Pointer[inForce]          // what the goroutine that reloads has put in force
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
func (o *operator) where() []netip.AddrPort {
	if at := o.at.Load(); at != nil {
		return *at
	}
	return nil
}

// closed returns all places that the policy keeps everybody away from: the listener over TCP, and pages.
func (o *operator) closed() []netip.AddrPort { return append(o.pages.where(), o.where()...) }

// listenForOperator opens the listener, unless this is a run. If it cannot open the default socket, it warns and succeeds.
func (o *operator) listenForOperator() error {
	name := o.daemon.Config.OperatorName()
	if name == "" || o.daemon.tailor.Change != nil {
		return nil
	}
	o.name = name
	o.server = &admin.Server{
		Gate: o.daemon.Gate, Log: o.daemon.Log, OnError: o.daemon.Complain,
		Missing: o.missing, Policy: func() any { return o.now.Load().show() }, Reload: o.reloadFor, Collect: o.collect, Grants: &o.daemon.grants, Explain: o.explain, Page: o.pages.keep,
	}
	var err error
	if path := o.daemon.Config.OperatorSocket(); path != "" {
		o.listener, err = o.daemon.listeners.openOperatorSocket(path)
		o.server.Admit = admitOperator
	} else {
		err = o.daemon.listeners.openOperatorPort(name)
	}
	if err != nil && o.daemon.Config.File.Listen.Admin == "" {
		fmt.Fprintf(o.daemon.Talk, "egressd: warning: egressd status, allow, questions and cut cannot reach this egressd, since it has no socket for them: listen on %s: %v\n", name, err)
		return nil
	}
	if err != nil {
		return hint.Failed(fmt.Errorf("listen.admin: listen on %s: %w", name, err), "correct that, or change listen.admin in "+o.daemon.Path)
	}
	return nil
}

// openOperatorPort listens on a loopback address. The file has no other.
func (ls *listeners) openOperatorPort(name string) error {
	at, err := netip.ParseAddrPort(name)
	if err != nil || !at.Addr().IsLoopback() {
		return errors.New("it is no address and port of loopback")
	}
	path, err := ls.daemon.Config.OperatorToken()
	if err != nil {
		return err
	}
	o := &ls.daemon.operator
	if o.listener = ls.daemon.tailor.handed.stream(atExactly(at)); o.listener == nil {
		if o.listener, err = net.Listen("tcp", name); err != nil {
			return err
		}
	}
	if o.server.Token, err = makeToken(path); err != nil { // not before the port is this process's
		return errors.Join(fmt.Errorf("its token: %w", err), o.listener.Close())
	}
	o.token = path
	bound := addrPortOf(o.listener.Addr())
	o.server.Host = bound.String()
	o.at.Store(&[]netip.AddrPort{bound})
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

// serveOperator answers from now on, and announces questions until ctx is done.
func (o *operator) serveOperator(ctx context.Context) {
	if o.listener == nil {
		return
	}
	o.nobodyAnswers = o.answering()
	o.serving.Go(func() {
		defer o.nobodyAnswers()
		if err := o.server.Serve(o.listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(o.daemon.Talk, "egressd: error: %s is not served: %v\n", o.name, err)
		}
	})
	at := o.name
	if len(o.where()) > 0 {
		at = o.server.Host
	}
	fmt.Fprintf(o.daemon.Talk, "egressd: listening on %s (admin)\n", at)
	ctx, o.endQuestions = context.WithCancel(ctx)
	o.daemon.Serving.Go(func() { o.announceQuestions(ctx) })
}

// operatorDrain is how long answers may take that have begun when egressd ends.
const operatorDrain = time.Second

// endOperator closes the listener, and removes its socket, or before that the token, which
// then nobody shows to whoever has the port next.
func (o *operator) endOperator() {
	if o.listener == nil {
		return
	}
	if o.nobodyAnswers != nil {
		o.nobodyAnswers()
	}
	if o.token != "" {
		_ = os.Remove(o.token) // the next start makes another
		o.token = ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), operatorDrain)
	defer cancel()
	if err := o.server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		o.daemon.Complain(err)
	}
	o.listener.Close() // where it was never served
	o.serving.Wait()
	o.listener = nil
}

// isLost notes that a listener is no longer served, and says so.
func (o *operator) isLost(name string, err error) {
	fmt.Fprintf(o.daemon.Talk, "egressd: error: %s is not served: %v\n", name, err)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = append(o.lost, name)
}

// missing says what keeps egressd from serving.
func (o *operator) missing() (why []string) {
	if o.stopping.Load() {
		why = append(why, "egressd is stopping")
	}
	if o.now.Load() == nil {
		why = append(why, "no policy is in force")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range o.lost {
		why = append(why, name+" is not served")
	}
	return why
}

// isEnding notes that no order is taken any more.
func (o *operator) isEnding() {
	if !o.stopping.Swap(true) {
		close(o.ended)
		if o.endQuestions != nil {
			o.endQuestions()
		}
	}
}

// reloadFor has the policy read again, as SIGHUP does, and waits for what came of it.
func (o *operator) reloadFor(ctx context.Context, why string) (any, error) {
	a := order{why, make(chan error, 1)}
	select {
	case o.orders <- a:
	case <-o.ended:
		return nil, &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "egressd is stopping, and reads no policy any more", Hint: "egressd serve, which reads it at its start"}
	case <-ctx.Done():
		return nil, &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "egressd is busy with another reload", Hint: "egressd reload, once more"}
	}
	select {
	case err := <-a.told:
		if err != nil {
			return nil, err
		}
		return map[string]any{"reloaded": true, "policy": o.daemon.Gate.Digest()}, nil
	case <-ctx.Done():
		return nil, &admin.Unavailable{Status: http.StatusGatewayTimeout, Why: "the reload goes on; what comes of it is in the log", Hint: "egressd status"}
	}
}

// explain answers as egressd check does, by the policy in force.
func (o *operator) explain(q admin.ExplainRequest) (any, error) {
	now := o.now.Load()
	if now == nil {
		return nil, errors.New("no policy is in force")
	}
	who, err := now.config.Sandbox(q.Sandbox)
	if err != nil {
		return nil, err
	}
	return explain.Check(now.policy, config.EntryOf(who).Sandbox(), q.Method, q.Request)
}

// answering says that there is an operator's listener, at which what the policy asks is
// answered, until stop is called. How long flows are held is read at the start, as all limits.
func (o *operator) answering() (stop func()) {
	wait := o.daemon.Config.File.Limits.AskWait
	o.daemon.Gate.Approvals.Open(true, wait)
	return func() { o.daemon.Gate.Approvals.Open(false, wait) }
}

// announceEvery is how long announceQuestions rests after a new question, so that a flood of them costs little.
const announceEvery = 250 * time.Millisecond

// announceQuestions writes a line for each new question, until ctx is done.
func (o *operator) announceQuestions(ctx context.Context) {
	told := map[string]bool{}
	for version := ^uint64(0); ctx.Err() == nil; {
		all := o.daemon.Gate.Approvals.Questions(ctx, version)
		version = all.Version
		now, news := make(map[string]bool, len(all.Questions)), false
		for i := range all.Questions {
			q := &all.Questions[i]
			if now[q.ID] = true; q.State == "pending" && !told[q.ID] {
				fmt.Fprintf(o.daemon.Talk, "egressd: question: %s\n", printable.Text(q.Ask(o.daemon.flag)))
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
