package e2e

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

// An origin is every host of the internet: it answers TLS with a certificate
// for whatever name it is asked for, HTTP in clear and inside TLS, and echoes
// what is neither. Its answers begin with "origin" and the address dialled.
type origin struct {
	mux   *http.ServeMux
	conns chan net.Conn
	ca    *authority
	tls   *tls.Config
}

func newOrigin() (*origin, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	o := &origin{mux: http.NewServeMux(), conns: make(chan net.Conn), ca: ca}
	o.tls = &tls.Config{GetCertificate: ca.certificate, NextProtos: []string{"h2", "http/1.1"}}
	o.routes()
	server := &http.Server{Handler: o.mux, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(o)
	return o, nil
}

func (o *origin) routes() {
	o.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "origin %s host=%s %s %s", localAddr(r), r.Host, r.Method, r.URL.Path)
	})
	o.mux.HandleFunc("/r", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://10.0.0.5/", http.StatusFound)
	})
	o.mux.HandleFunc("/count", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "origin received %d bytes, %v", n, err)
	})
	o.mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		var n int64
		fmt.Sscan(r.URL.Query().Get("n"), &n)
		io.CopyN(w, zeros{}, n)
	})
	o.mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for name, answer := range hostileAnswers() {
		o.mux.HandleFunc("/hostile/"+name, func(w http.ResponseWriter, r *http.Request) { answerRaw(w, answer) })
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
func (o *origin) handle(a *lab.Arrival) {
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
		o.conns <- tls.Server(c, o.tls)
	case 'A' <= first[0] && first[0] <= 'Z':
		o.conns <- c
	default:
		fmt.Fprintf(a, "origin %s ", a.To)
		io.Copy(a, c.r)
		return
	}
	<-c.done
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

// Accept, Close and Addr make o the listener of its own HTTP server.
func (o *origin) Accept() (net.Conn, error) { return <-o.conns, nil }
func (o *origin) Close() error              { return nil }
func (o *origin) Addr() net.Addr            { return net.TCPAddrFromAddrPort(netip.AddrPort{}) }

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
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &ca.key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: ca.key}, nil
}

func (ca *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// file writes the authority's certificate where a program can be told of it.
func (ca *authority) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
