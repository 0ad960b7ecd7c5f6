package proxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/sandbox"
)

// A tlsWorld is a world with a TLS listener, called "tls", and sandboxes of
// every kind.
type tlsWorld struct {
	*world
	addr  string
	trust *x509.CertPool
	signs *testpki.Authority // of client certificates
}

const listed = `listen: {proxy: ["tls:127.0.0.1:3443", "unix:/p"], client_ca: ca.pem}
sandboxes:
  - {name: token, token_file: t}
  - {name: cert, certificate: ci.test}
  - {name: spiffe, certificate: "spiffe://test/ci"}
  - {name: user, uid: [0]}
`

func newTLSWorld(t *testing.T, certificates bool, change func(*Server)) *tlsWorld {
	t.Helper()
	w := &tlsWorld{trust: x509.NewCertPool(), signs: testpki.New(t)}
	authority, err := certs.Create(filepath.Join(t.TempDir(), "ca"))
	if err != nil {
		t.Fatal(err)
	}
	w.trust.AddCert(authority.Certificate())
	with := &TLSListener{Authority: authority, Names: []string{"localhost"}}
	if certificates {
		with.Clients = w.signs.Pool
	}
	w.world = newWorld(t, openPolicy+listed, func(s *Server) {
		err := s.Sandboxes.Set([]sandbox.Entry{
			{Name: "token", Token: "t"}, {Name: "cert", Certificate: "ci.test"}, {Name: "spiffe", Certificate: "spiffe://test/ci"},
			{Name: "user", UIDs: []uint32{uint32(os.Geteuid())}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(s)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { w.ServeTLS(l, "tls", func() *TLSListener { return with }) })
	t.Cleanup(func() { w.stopAccepting(); serving.Wait() })
	return w
}

// enter makes TLS with the proxy.
func (w *tlsWorld) enter(t *testing.T, certificates ...tls.Certificate) *testTLSClient {
	t.Helper()
	raw, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	below := &handshakeConn{Conn: raw, bound: exchange.HandshakeBound{Over: true}}
	c := tls.Client(below, &tls.Config{RootCAs: w.trust, ServerName: "127.0.0.1", Certificates: certificates})
	return &testTLSClient{testClient: &testClient{c, bufio.NewReader(c), t}, tls: c, raw: raw.(*net.TCPConn), below: below}
}

type testTLSClient struct {
	*testClient
	tls *tls.Conn
	raw *net.TCPConn

	below *handshakeConn
}

// end reads to the end, which an orderly one says that it is.
func (c *testTLSClient) end() (got string, orderly bool) {
	b, err := io.ReadAll(c.in)
	return string(b), err == nil && !c.below.closed
}

func tunnelTo(o *origin, more string) string {
	return "CONNECT allowed.test:" + o.port + " HTTP/1.1\r\nHost: allowed.test:" + o.port + "\r\n" + more + "\r\n"
}

const opaque = "\x00ping" // neither TLS nor the beginning of HTTP

const tokenField = "Proxy-Authorization: Basic dG9rZW46dA==\r\n" // token:t

// established reads the answer to a CONNECT.
func (c *testClient) established() *testClient {
	c.t.Helper()
	for line := ""; line != "\r\n"; {
		before := line
		var err error
		if line, err = c.in.ReadString('\n'); err != nil || before == "" && !strings.HasPrefix(line, "HTTP/1.1 200 ") {
			c.t.Fatalf("answered %q, %v", line, err)
		}
	}
	return c
}
