package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/sandbox"
)

// entryOf is what tells the sandbox s from the others. Its token is named
// only, until [config.entries] puts it in.
func entryOf(s *policy.SandboxRules) *sandbox.Entry {
	return &sandbox.Entry{
		Name: s.Name, Token: s.TokenFile, Listener: s.Listen, Enter: s.Enter,
		UIDs: s.UIDs, Sources: s.Sources, Certificate: s.Certificate, Docker: s.Docker,
	}
}

// serveOn serves one listener until the server is shut down.
func (d *daemon) serveOn(l boundListener) error {
	if strings.HasPrefix(l.name, policy.TLSListener) {
		return d.server.ServeTLS(l.Listener, l.name, d.overTLS.Load)
	}
	return d.server.Serve(l.Listener, l.name)
}

// tlsListener makes what the TLS listeners show and ask for, or nil where
// there is none. with, where it is given, has the authority already.
func (d *daemon) tlsListener(c *config, with *proxy.Inspection) (*proxy.TLSListener, error) {
	if !slices.ContainsFunc(c.allListeners(), func(l string) bool { return strings.HasPrefix(l, policy.TLSListener) }) {
		return nil, nil
	}
	l := &proxy.TLSListener{Names: append(ownNames(), c.file.Listen.ServerNames...)}
	if with != nil {
		l.Authority = with.Authority
	} else {
		dir, err := c.caDir()
		if err != nil {
			return nil, err
		}
		if l.Authority, err = openAuthority(dir, d.talk); err != nil {
			return nil, err
		}
	}
	if c.file.Listen.ClientCA == "" {
		return l, nil
	}
	text, err := os.ReadFile(c.relative(c.file.Listen.ClientCA))
	if err == nil {
		l.Clients, err = clientAuthorities(text)
	}
	if err != nil {
		return nil, cli.Misused(fmt.Errorf("listen.client_ca: %w", err), "correct listen.client_ca in "+c.path)
	}
	return l, nil
}

// ownNames are the names of this host that clients may know it by.
func ownNames() []string {
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		if name, err := policy.ParseName(host); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// clientAuthorities reads certificates of authorities, and nothing else.
func clientAuthorities(text []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), 0
	for rest := bytes.TrimSpace(text); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("it holds something else than certificates in PEM")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", found+1, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d is not one of an authority", found+1)
		}
		pool.AddCert(cert)
		found++
	}
	if found == 0 {
		return nil, errors.New("it holds no certificate")
	}
	return pool, nil
}

// allListeners are the proxy's listeners, shared ones first.
func (c *config) allListeners() []string {
	all := slices.Clone(c.file.Listen.Proxy)
	for i := range c.file.Sandboxes {
		if l := c.file.Sandboxes[i].Listen; l != "" {
			all = append(all, l)
		}
	}
	return all
}

// listenerOf returns the listener by which a sandbox can come: its own, or the
// first that has what it is told by, and "" where there is none.
func (c *config) listenerOf(s *policy.SandboxRules) string {
	if s.Listen != "" {
		return s.Listen
	}
	if s.Enter != "" && s.TokenFile == "" && len(s.UIDs) == 0 && len(s.Sources) == 0 && s.Certificate == "" {
		return "" // it hands its network in
	}
	fits := func(l string) bool {
		unix, tls := strings.HasPrefix(l, policy.UnixListener), strings.HasPrefix(l, policy.TLSListener)
		return (len(s.UIDs) == 0 || unix) && (len(s.Sources) == 0 && !s.Docker.Given() || !unix) && (s.Certificate == "" || tls)
	}
	if i := slices.IndexFunc(c.file.Listen.Proxy, fits); i >= 0 {
		return c.file.Listen.Proxy[i]
	}
	return ""
}

// The modes of sockets: for egressd's own group, as long as reaching one is all
// that it takes, and for everybody once who connects is what counts.
const (
	ofGroup    = fs.FileMode(0o660)
	ofEveryone = fs.FileMode(0o666)
)

// admitUsers lets everybody connect to the sockets at which the kernel says who
// they are, and is asked.
func (d *daemon) admitUsers(c *config) error {
	for _, l := range d.listening {
		if l.file == nil {
			continue
		}
		mode := ofGroup
		if c.asksForUsers(l.name) {
			mode = ofEveryone
		}
		if err := l.file.chmod(mode); err != nil {
			return cli.Failed(err, "let egressd own "+l.file.held.Name())
		}
	}
	return d.admitVisitors(c)
}

// asksForUsers reports whether a socket is one that sandboxes with users come
// by: their own, or a shared one.
func (c *config) asksForUsers(socket string) bool {
	return slices.ContainsFunc(c.file.Sandboxes, func(s policy.SandboxRules) bool {
		shared := s.Listen == "" && slices.Contains(c.file.Listen.Proxy, socket)
		return len(s.UIDs) > 0 && (s.Listen == socket || shared)
	})
}

// overflowUID is the user that the kernel shows in place of each that a user
// namespace has no number for (user_namespaces(7)).
const overflowUID = 65534

// checkUsers refuses a user who may be anybody.
func (c *config) checkUsers() error {
	for i := range c.file.Sandboxes {
		s := &c.file.Sandboxes[i]
		if !slices.Contains(s.UIDs, overflowUID) {
			continue
		}
		text, err := os.ReadFile("/proc/self/uid_map")
		if err != nil || !mapsEveryone(string(text)) {
			err := fmt.Errorf("sandbox %s: egressd runs in a user namespace, in which uid %d is every user that has no number there", s.Name, overflowUID)
			return cli.Misused(err, "give the program another user, or run egressd outside of the namespace")
		}
	}
	return nil
}

// mapsEveryone reports whether a user namespace with that uid_map has a number
// for each user.
func mapsEveryone(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}
