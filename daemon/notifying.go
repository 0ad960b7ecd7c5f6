package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/notify"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/sandbox"
)

// notifying tells people elsewhere of questions, and takes their answers: the section "notify". The zero value tells nobody.
type notifying struct {
	daemon   *Daemon
	listener net.Listener
	links    *admin.Links
	server   *admin.Server
	serving  sync.WaitGroup
	notifier *notify.Notifier

	ctx         context.Context                 // of the notifier; nil before serve
	certificate atomic.Pointer[tls.Certificate] // nil: plain HTTP
	bound       atomic.Pointer[netip.AddrPort]
}

// notifyParts are what the section names in files.
type notifyParts struct {
	receivers   []notify.Receiver
	certificate *tls.Certificate
}

// read reads what the section names. No error holds a URL or a header.
func (n *notifying) read(c *config.Config) (parts notifyParts, err error) {
	if n.daemon.tailor.Change != nil { // a run is answered on its terminal, or by the daemon beside it
		return parts, nil
	}
	of := &c.File.Notify
	for i := range of.To {
		to := &of.To[i]
		one := notify.Receiver{Name: to.Name, Type: to.Type}
		if err := readReceiver(c, &one, to.URLFile, to.HeadersFile, to.CAFile); err != nil {
			return parts, hint.Misused(fmt.Errorf("notify.to %s: %w", to.Name, err), "correct notify.to in "+c.Path)
		}
		parts.receivers = append(parts.receivers, one)
	}
	if of.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.Relative(of.CertFile), c.Relative(of.KeyFile))
		if err != nil {
			return parts, hint.Misused(fmt.Errorf("notify.cert_file: %w", err), "correct notify in "+c.Path)
		}
		parts.certificate = &cert
	}
	return parts, nil
}

func readReceiver(c *config.Config, one *notify.Receiver, urlFile, headersFile, caFile string) (err error) {
	text, err := readPrivate(c.Relative(urlFile))
	if err != nil {
		return err
	}
	one.URL = string(bytes.TrimSpace(text))
	if headersFile != "" {
		if one.Headers, err = readHeaders(c, headersFile); err != nil {
			return err
		}
	}
	if one.Roots, err = authorities(c, caFile); err != nil {
		return err
	}
	return one.Check()
}

// open opens the listener for answers, if the file has one and this is no run.
func (n *notifying) open() error {
	if n.daemon.tailor.Change != nil {
		return nil
	}
	n.notifier = &notify.Notifier{Gate: n.daemon.Gate, Flags: n.daemon.flag}
	of := &n.daemon.Config.File.Notify
	if of.Answers == "" {
		return nil
	}
	l, err := net.Listen("tcp", of.Answers)
	if err != nil {
		return hint.Failed(fmt.Errorf("notify.answers: %w", err), "free it, or change notify.answers in "+n.daemon.Path)
	}
	bound := addrPortOf(l.Addr())
	n.bound.Store(&bound)
	n.listener = l
	base := of.URL
	if base == "" {
		base = "http://" + bound.String()
	}
	if of.CertFile != "" {
		n.listener = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if now := n.certificate.Load(); now != nil {
				return now, nil
			}
			return nil, errors.New("there is no certificate")
		}})
		if of.URL == "" {
			base = "https://" + bound.String()
		}
	}
	n.notifier.Link = func(receiver string, q *egress.Question) string { return n.links.To(receiver, q) }
	n.links = &admin.Links{
		Base: base, FromSandbox: n.isSandbox, ForGood: n.mayForGood,
		Asked: &admin.Asked{Gate: n.daemon.Gate, Grants: n.daemon.Grants(), File: n.daemon.File(), Complain: n.daemon.Complain},
	}
	n.server = &admin.Server{Gate: n.daemon.Gate, Log: n.daemon.Log, OnError: n.daemon.Complain, Links: n.links}
	return nil
}

// mayForGood reports whether the policy in force lets links approve for good.
func (n *notifying) mayForGood() bool {
	now := n.daemon.current.Load()
	return now != nil && now.config.File.Notify.ForGood
}

// isSandbox reports whether a connection from an address would count as a sandbox's by that address.
func (n *notifying) isSandbox(at netip.AddrPort) bool {
	who, err := n.daemon.sandboxes.Identify(sandbox.Peer{Addr: at})
	return err == nil && who.Name != sandbox.Default
}

// where returns the address of the listener for answers.
func (n *notifying) where() []netip.AddrPort {
	if at := n.bound.Load(); at != nil {
		return []netip.AddrPort{*at}
	}
	return nil
}

// serve tells of questions and takes answers, until end.
func (n *notifying) serve(ctx context.Context) {
	n.ctx = ctx
	if n.server != nil {
		n.serving.Go(func() {
			if err := n.server.Serve(n.listener); !errors.Is(err, http.ErrServerClosed) {
				n.daemon.admin.isLost("notify.answers", err)
			}
		})
		fmt.Fprintf(n.daemon.Talk, "egressd: listening on %s (answers)\n", n.bound.Load())
	}
	n.use(n.daemon.reloads.made.notify)
}

// use has these receivers told from now on. Only the goroutine that reloads calls it.
func (n *notifying) use(parts notifyParts) {
	n.certificate.Store(parts.certificate)
	if n.ctx != nil {
		n.notifier.Apply(n.ctx, parts.receivers)
	}
}

// states returns what came of the messages.
func (n *notifying) states() []policystatus.Notified {
	if n.notifier == nil {
		return nil
	}
	return n.notifier.States()
}

// end tells nobody any more, and closes the listener.
func (n *notifying) end() {
	if n.notifier != nil {
		n.notifier.Stop()
	}
	if n.listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminDrain)
	defer cancel()
	if err := n.server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		n.daemon.Complain(err)
	}
	n.listener.Close() // where it was never served
	n.serving.Wait()
	n.listener = nil
}

// collect adds the metrics of messages and of answers by link.
func (n *notifying) collect(m *admin.Metrics) {
	states := n.states()
	m.Family("egressd_notified_total", admin.Counter, "Messages about questions that a receiver of notify has taken.")
	for i := range states {
		m.Sample(float64(states[i].Sent), "receiver", states[i].Name)
	}
	m.Family("egressd_notify_failed_total", admin.Counter, "Attempts to send such a message that failed.")
	for i := range states {
		m.Sample(float64(states[i].Failed), "receiver", states[i].Name)
	}
	m.Family("egressd_notify_failing", admin.Gauge, "1 if the last attempt failed.")
	for i := range states {
		m.Sample(truth(states[i].Error != ""), "receiver", states[i].Name)
	}
	if n.links == nil {
		return
	}
	m.Family("egressd_link_answers_total", admin.Counter, "Answers by links of notify; refused ones changed nothing.")
	m.Sample(float64(n.links.Approved.Load()), "answer", "yes")
	m.Sample(float64(n.links.Rejected.Load()), "answer", "no")
	m.Sample(float64(n.links.Refused.Load()), "answer", "refused")
}
