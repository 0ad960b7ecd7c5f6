//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// An operation is what reach counts the files of.
type operation struct {
	name   string
	beyond string // the baseline whose files do not count
	do     func(*world) error
}

var operations = []operation{
	{"allowed-connect", "idle", serving((*world).connect)},
	{"denied-connect", "idle", serving((*world).denied)},
	{"socks5", "idle", serving((*world).socks5)},
	{"captured", "captured idle", running("connect")},
	{"plain-http", "idle", serving((*world).plain)},
	{"inspected-h1", "idle", serving((*world).inspectedH1)},
	{"inspected-h2", "idle", serving((*world).inspectedH2)},
	{"new-name", "idle", serving((*world).newName)},
	{"reload", "idle", serving((*world).reload)},
}

// baselines are runs of egressd that an operation is compared with. That of a captured connection asks for the name.
var baselines = map[string]func(*world) error{
	"idle":          serving(func(*world) error { return nil }),
	"captured idle": running("resolve"),
}

func names() (all []string) {
	for _, o := range operations {
		all = append(all, o.name)
	}
	return all
}

// host is the name of every origin: that of the certificate of [net/http/httptest]. Reach's own name server answers for it.
const host = "example.com"

// fetch gets a page through the proxy, which is called by a scheme, and wants a protocol and a status.
func (w *world) fetch(scheme, page string, roots *x509.CertPool, protocol, status int) error {
	proxy, err := url.Parse(scheme + "://" + w.proxy)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		Proxy: http.ProxyURL(proxy), DisableKeepAlives: protocol == 1, ForceAttemptHTTP2: protocol == 2,
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Get(page)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.ProtoMajor != protocol || response.StatusCode != status {
		return fmt.Errorf("%s answered %s with status %d", page, response.Proto, response.StatusCode)
	}
	return nil
}

func (w *world) connect() error { return w.fetch("http", w.page("https", w.opaque), w.roots, 1, 200) }
func (w *world) socks5() error  { return w.fetch("socks5h", w.page("https", w.opaque), w.roots, 1, 200) }
func (w *world) plain() error   { return w.fetch("http", w.page("http", w.clear), nil, 1, 200) }
func (w *world) inspectedH1() error {
	return w.fetch("http", w.page("https", w.inspected), w.authority(), 1, 200)
}
func (w *world) inspectedH2() error {
	return w.fetch("http", w.page("https", w.inspected), w.authority(), 2, 200)
}

// denied has a CONNECT refused.
func (w *world) denied() error {
	c, err := net.DialTimeout("tcp", w.proxy, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "CONNECT denied.test:443 HTTP/1.1\r\nHost: denied.test:443\r\n\r\n")
	answer, err := io.ReadAll(c)
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 403 ")) {
		return fmt.Errorf("answered %.40q, %w", answer, err)
	}
	return nil
}

// newName has a name looked up that nobody has asked for.
func (w *world) newName() error {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", w.names)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := resolver.LookupNetIP(ctx, "ip4", host+".")
	return err
}

// reload changes the policy, and waits until it is in force.
func (w *world) reload() error {
	text, err := os.ReadFile(w.config)
	if err != nil {
		return err
	}
	fresh := filepath.Join(w.dir, "next.yaml")
	if err := os.WriteFile(fresh, bytes.Replace(text, []byte("allow:"), []byte("deny: [evil.test]\nallow:"), 1), 0o600); err != nil {
		return err
	}
	if err := os.Rename(fresh, w.config); err != nil {
		return err
	}
	return w.await("policy reloaded")
}

// inside is the argument by which reach starts itself as the program under egressd run.
const inside = "visit"

// visit is that program: it resolves the name of an origin, and also connects if what begins with "connect".
func visit(what string) int {
	step, port, _ := strings.Cut(what, ":")
	addrs, err := net.LookupHost(host)
	if err == nil && step == "connect" {
		err = fetchDirectly(net.JoinHostPort(addrs[0], port))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "reach: error: %v\n", err)
		return 1
	}
	return 0
}

// fetchDirectly does a TLS handshake and a request at an address. The name is that of the origin; who the origin is does not matter.
func fetchDirectly(at string) error {
	c, err := net.DialTimeout("tcp", at, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	inside := tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	if _, err := fmt.Fprintf(inside, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return err
	}
	answer, err := io.ReadAll(inside)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("answered %.40q", answer)
	}
	return nil
}
