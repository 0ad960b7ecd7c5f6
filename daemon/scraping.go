package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
)

// scraping shows metrics to programs on other machines: the section "metrics". The zero value shows none.
type scraping struct {
	daemon   *Daemon
	listener net.Listener
	server   *admin.Server
	serving  sync.WaitGroup

	parts atomic.Pointer[scrapeParts]
	bound atomic.Pointer[netip.AddrPort]
}

// scrapeParts are what the section names in files.
type scrapeParts struct {
	token       string
	certificate *tls.Certificate // nil: plain HTTP
	clients     *x509.CertPool   // nil: no certificate is asked for
}

// minScrapeToken is how short a token may be, in bytes.
const minScrapeToken = 16

// read reads what the section names. No error holds the token.
func (s *scraping) read(c *config.Config) (parts *scrapeParts, err error) {
	of, parts := &c.File.Metrics, new(scrapeParts)
	if of.Listen == "" || s.daemon.tailor.Change != nil { // a run ends too soon to be scraped
		return parts, nil
	}
	wrong := func(key string, err error) (*scrapeParts, error) {
		return nil, hint.Misused(fmt.Errorf("metrics.%s: %w", key, err), "correct metrics in "+c.Path)
	}
	if of.TokenFile != "" {
		text, err := readPrivate(c.Relative(of.TokenFile))
		if err != nil {
			return wrong("token_file", err)
		}
		parts.token = string(bytes.TrimSpace(text))
		if len(parts.token) < minScrapeToken || bytes.ContainsAny(bytes.TrimSpace(text), " \t\r\n") {
			return wrong("token_file", fmt.Errorf("it does not hold one word of %d bytes or more", minScrapeToken))
		}
	}
	if of.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.Relative(of.CertFile), c.Relative(of.KeyFile))
		if err != nil {
			return wrong("cert_file", err)
		}
		parts.certificate = &cert
	}
	if of.ClientCA != "" {
		text, err := os.ReadFile(c.Relative(of.ClientCA))
		if err == nil {
			parts.clients, err = clientAuthorities(text)
		}
		if err != nil {
			return wrong("client_ca", err)
		}
	}
	return parts, nil
}

// open opens the listener, if the file has one and this is no run.
func (s *scraping) open() error {
	of := &s.daemon.Config.File.Metrics
	if of.Listen == "" || s.daemon.tailor.Change != nil {
		return nil
	}
	l, err := net.Listen("tcp", of.Listen)
	if err != nil {
		return hint.Failed(fmt.Errorf("metrics.listen: %w", err), "free it, or change metrics.listen in "+s.daemon.Path)
	}
	bound := addrPortOf(l.Addr())
	s.bound.Store(&bound)
	s.listener = l
	if of.CertFile != "" {
		s.listener = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: s.overTLS})
	}
	s.server = &admin.Server{
		Gate: s.daemon.Gate, Log: s.daemon.Log, OnError: s.daemon.Complain, Collect: s.daemon.admin.collect,
		Scraped: &admin.Scraped{Token: func() string { return s.parts.Load().token }},
	}
	return nil
}

// overTLS returns what one handshake goes by, as the files were read last.
func (s *scraping) overTLS(*tls.ClientHelloInfo) (*tls.Config, error) {
	now := s.parts.Load()
	if now.certificate == nil {
		return nil, errors.New("there is no certificate")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*now.certificate}, SessionTicketsDisabled: true}
	if now.clients != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, now.clients
	}
	return c, nil
}

// use has these parts count from now on. Parts of a file without the section change nothing until the next start.
func (s *scraping) use(parts *scrapeParts) {
	if before := s.parts.Load(); before == nil || parts.token != "" || parts.clients != nil {
		s.parts.Store(parts)
	}
}

// where returns the address of the listener.
func (s *scraping) where() []netip.AddrPort {
	if at := s.bound.Load(); at != nil {
		return []netip.AddrPort{*at}
	}
	return nil
}

// serve answers until end.
func (s *scraping) serve() {
	if s.server == nil {
		return
	}
	s.use(s.daemon.reloads.made.scrape)
	s.serving.Go(func() {
		if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.daemon.admin.isLost("metrics.listen", err)
		}
	})
	fmt.Fprintf(s.daemon.Talk, "egressd: listening on %s (metrics)\n", s.bound.Load())
}

// end closes the listener.
func (s *scraping) end() {
	if s.listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminDrain)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.daemon.Complain(err)
	}
	s.listener.Close() // where it was never served
	s.serving.Wait()
	s.listener = nil
}
