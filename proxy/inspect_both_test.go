package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// eachVersion runs test for the two versions of HTTP that a tunnel may speak.
func eachVersion(t *testing.T, test func(t *testing.T, overH2 bool)) {
	t.Run("HTTP1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP2", func(t *testing.T) { test(t, true) })
}

// visitor sends requests inside tunnels to a host: over HTTP/1 with as many
// tunnels as it takes, over HTTP/2 in one.
func (w *inspectWorld) visitor(t *testing.T, overH2 bool, host, port string) http.RoundTripper {
	t.Helper()
	if overH2 {
		return w.h2(t, host, port)
	}
	return h1Over(t, func() net.Conn { return w.tunnel(t, host, port) })
}

// An h1Client knows its dials: a request that finds a connection that has become idle leaves its own dial behind.
type h1Client struct {
	*http.Transport
	dials sync.WaitGroup
}

// awaitDials waits for dials that no request of rt waits for any more.
func awaitDials(rt http.RoundTripper) {
	if c, ok := rt.(*h1Client); ok {
		c.dials.Wait()
	}
}

// h1Over speaks HTTP/1 over the connections that dial makes.
func h1Over(t *testing.T, dial func() net.Conn) http.RoundTripper {
	rt := &h1Client{}
	rt.Transport = &http.Transport{
		DisableCompression: true,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			rt.dials.Add(1)
			defer rt.dials.Done()
			return dial(), nil
		},
	}
	t.Cleanup(rt.CloseIdleConnections)
	return rt
}

// over speaks, on a tunnel, the version that was agreed on.
func over(t *testing.T, c *tls.Conn) http.RoundTripper {
	t.Helper()
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		return h1Over(t, func() net.Conn { return c })
	}
	cc, err := (&http2.Transport{}).NewClientConn(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// start sends a request with fields such as "Range: bytes=0-1" and returns the
// response when its head is there.
func start(t *testing.T, rt http.RoundTripper, method, url string, body io.Reader, fields ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		r.Header.Add(name, value)
	}
	resp, err := rt.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A reply is a response that was read to its end.
type reply struct {
	*http.Response
	body string
}

// ask is start, and reads the body.
func ask(t *testing.T, rt http.RoundTripper, method, url string, body io.Reader, fields ...string) reply {
	t.Helper()
	resp := start(t, rt, method, url, body, fields...)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("after %q: %v", text, err)
	}
	return reply{resp, string(text)}
}

// all is everything that the client was told.
func (r reply) all() string { return fmt.Sprint(r.Status, r.Header, r.body, r.Trailer) }

// refused checks that a reply is a refusal of that status and class.
func (r reply) refused(t *testing.T, status int, class policy.Class) {
	t.Helper()
	if r.StatusCode != status || !strings.Contains(r.body, `"class":"`+string(class)+`"`) {
		t.Errorf("answered %d %s, want %d and class %s", r.StatusCode, r.body, status, class)
	}
}

// obey puts another policy in force, with opinions beside its text.
func (w *world) obey(t *testing.T, text string, beside ...policy.Evaluator) {
	t.Helper()
	parsed, err := file.Parse("next.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Inspection: true, Evaluators: beside})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "next"); err != nil {
		t.Fatal(err)
	}
}

// closed waits until every flow has ended and checks that each that was let
// pass has one close record, and that the log does not hold any of secrets.
func (w *world) closed(t *testing.T, secrets ...string) {
	t.Helper()
	w.settled(t)
	ends := map[string]int{}
	for _, r := range w.records(t) {
		if r.Kind == record.KindClose {
			ends[r.Flow]++
		}
	}
	for _, r := range w.records(t) {
		passed := r.Decision != nil && r.Decision.Action == "allow"
		if (r.Kind == record.KindOpen || r.Kind == record.KindRequest) && passed && ends[r.Flow] != 1 {
			t.Errorf("%d close records of %+v", ends[r.Flow], r)
		}
	}
	text, err := os.ReadFile(filepath.Join(w.log, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("the log holds %q", secret)
		}
	}
}

// rawOrigin hands every connection to serve once its TLS stands.
func (p *pki) rawOrigin(t *testing.T, serve func(net.Conn), protos ...string) *origin {
	t.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{p.Server(t, nil, testNames...)}, NextProtos: protos}
	return newOrigin(t, func(c net.Conn) {
		secure := tls.Server(&gatheringConn{Conn: c}, config)
		if secure.Handshake() == nil {
			serve(secure)
		}
	})
}

// url is an address inside the tunnel to host.
func (o *origin) url(host, path string) string { return "https://" + host + ":" + o.port + path }
