package world

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
)

// An Origin is every host of the internet: it answers TLS with a certificate
// for whatever name it is asked for, HTTP in clear and inside TLS, and echoes
// what is neither. Its answers begin with "origin" and the address dialled.
type Origin struct {
	Mux   *http.ServeMux
	conns chan net.Conn
	Ca    *authority
	tls   *tls.Config
	Heard heard
	Sites sync.Map // http.Handler by host, of those that a test has published
	Ports sync.Map // func(net.Conn) by port, for tests that serve a port as they like
}

// heard is what was said to hosts inside TLS, in the order in which it came:
// of HTTP/1 the bytes, of HTTP/2 each request's head as HTTP/1 writes it.
type heard struct {
	mu    sync.Mutex
	parts []string
}

// Mark returns how many bytes were heard so far.
func (h *heard) Mark() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.parts)
}

// Since returns the bytes that were heard after a mark.
func (h *heard) Since(mark int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.parts[mark:], "")
}

func (h *heard) add(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts = append(h.parts, s)
}

// A heardConn is an HTTP/1 connection inside TLS, of which the beginning is
// kept.
type heardConn struct {
	net.Conn
	by   *heard
	room int
}

func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if kept := min(n, c.room); kept > 0 {
		c.by.add(string(b[:kept]))
		c.room -= kept
	}
	return n, err
}

func newOrigin() (*Origin, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	o := &Origin{Mux: http.NewServeMux(), conns: make(chan net.Conn), Ca: ca}
	o.tls = &tls.Config{GetCertificate: ca.certificate, GetConfigForClient: o.flawed, NextProtos: []string{"h2", "http/1.1"}}
	o.routes()
	o.insideRoutes()
	server := &http.Server{Handler: o, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(o)
	return o, nil
}

func (o *Origin) routes() {
	o.Mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "origin %s host=%s %s %s", localAddr(r), r.Host, r.Method, r.URL.Path)
	})
	o.Mux.HandleFunc("/r", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://10.0.0.5/", http.StatusFound)
	})
	o.Mux.HandleFunc("/count", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "origin received %d bytes, %v", n, err)
	})
	o.Mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		var n int64
		fmt.Sscan(r.URL.Query().Get("n"), &n)
		io.CopyN(w, zeros{}, n)
	})
	o.Mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for name, answer := range HostileAnswers() {
		o.Mux.HandleFunc("/hostile/"+name, func(w http.ResponseWriter, r *http.Request) { answerRaw(w, answer) })
	}
}

func localAddr(r *http.Request) string {
	return r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func answerRaw(w http.ResponseWriter, answer string) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	rw.WriteString(answer)
	rw.Flush()
}

// handle serves one connection, by its port and first byte.
func (o *Origin) handle(a *lab.Arrival) {
	if serve, ok := o.Ports.Load(a.To.Port()); ok {
		serve.(func(net.Conn))(a)
		return
	}
	if a.To.Port() == 22 {
		io.WriteString(a, "SSH-2.0-lab\r\n")
		io.Copy(io.Discard, onlyReader{a})
		return
	}
	c := &peekedConn{Conn: a, r: bufio.NewReader(a), done: make(chan struct{})}
	first, err := c.r.Peek(1)
	switch {
	case err != nil:
		return
	case first[0] == 0x16:
		o.handleTLS(c)
	case 'A' <= first[0] && first[0] <= 'Z':
		o.conns <- c
	default:
		fmt.Fprintf(a, "origin %s ", a.To)
		io.Copy(a, c.r)
		return
	}
	<-c.done
}

func (o *Origin) handleTLS(c *peekedConn) {
	inner := tls.Server(c, o.tls)
	if err := inner.Handshake(); err != nil {
		c.Close()
		return
	}
	if inner.ConnectionState().NegotiatedProtocol == "h2" {
		o.conns <- inner
		return
	}
	const kept = 256 << 10
	o.conns <- &heardConn{inner, &o.Heard, kept}
}

// ServeHTTP implements [http.Handler] for every host.
func (o *Origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		var head strings.Builder
		fmt.Fprintf(&head, "%s %s %s\r\nHost: %s\r\n", r.Method, r.RequestURI, r.Proto, r.Host)
		r.Header.Write(&head)
		o.Heard.add(head.String() + "\r\n")
	}
	if site, ok := o.Sites.Load(r.Host); ok {
		site.(http.Handler).ServeHTTP(w, r)
		return
	}
	o.Mux.ServeHTTP(w, r)
}

type onlyReader struct{ io.Reader }

// A peekedConn tells when the server that was given it is through with it.
type peekedConn struct {
	net.Conn
	r    *bufio.Reader
	done chan struct{}
	once sync.Once
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *peekedConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// Accept returns the next connection that is plain HTTP. With Close and Addr it makes o the listener of its own HTTP server.
func (o *Origin) Accept() (net.Conn, error) { return <-o.conns, nil }

func (o *Origin) Close() error { return nil }

func (o *Origin) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPort{}) }

// An authority signs a certificate for every name it is asked for.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, key: key, leaves: map[string]*tls.Certificate{}}, err
}

func (ca *authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.TrimSuffix(hello.ServerName, ".")
	if name == "" {
		at, err := netip.ParseAddrPort(hello.Conn.LocalAddr().String())
		if err != nil {
			return nil, err
		}
		name = at.Addr().String()
	}
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if leaf := ca.leaves[name]; leaf != nil {
		return leaf, nil
	}
	leaf, err := ca.sign(name)
	ca.leaves[name] = leaf
	return leaf, err
}

func (ca *authority) sign(name string) (*tls.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, leafTemplate(name), ca.cert, &ca.key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: ca.key}, nil
}

func leafTemplate(name string) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "lab"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	return template
}

func (ca *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// File writes the authority's certificate where a program can be told of it.
func (ca *authority) File(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, ca.PEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// KeyPair writes a certificate for a name, and its key, where a server can be told of them.
func (ca *authority) KeyPair(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	leaf, err := ca.sign(name)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "leaf.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

// PEM returns the certificate of the authority.
func (ca *authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}
