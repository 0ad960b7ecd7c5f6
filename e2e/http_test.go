package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// browser is an ordinary HTTP client in the sandbox that uses the proxy.
func (d *daemon) browser(user *url.Userinfo) *http.Client {
	proxy := &url.URL{Scheme: "http", Host: d.address(), User: user}
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyURL(proxy),
			DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
				return d.world.Sandbox.Dial(network, address)
			},
			TLSClientConfig:   &tls.Config{RootCAs: d.world.origin.ca.pool()},
			DisableKeepAlives: true,
		},
	}
}

// TestOrdinaryTraffic carries what programs really send.
func TestOrdinaryTraffic(t *testing.T) {
	covers(t, "H1-01", "H2-14", "SP-08")
	d := start(t, policyText(t, "P0"))
	c := d.browser(nil)
	for _, scheme := range []string{"http", "https"} {
		base := scheme + "://a.allowed.test"
		t.Run(scheme+" GET", func(t *testing.T) { d.expectBody(t, c, "GET", base+"/x?q=1", nil, "GET /x") })
		t.Run(scheme+" HEAD", func(t *testing.T) { d.expectBody(t, c, "HEAD", base+"/", nil, "") })
		t.Run(scheme+" POST", func(t *testing.T) {
			d.expectBody(t, c, "POST", base+"/count", bytes.NewReader(make([]byte, 100_000)), "received 100000 bytes, <nil>")
		})
		t.Run(scheme+" chunked POST", func(t *testing.T) {
			d.expectBody(t, c, "POST", base+"/count", io.MultiReader(strings.NewReader("abc"), bytes.NewReader(make([]byte, 1<<20))), "received 1048579 bytes, <nil>")
		})
		t.Run(scheme+" large answer", func(t *testing.T) { d.expectLarge(t, c, base) })
	}
	t.Run("HTTP/2 in a tunnel", func(t *testing.T) { d.expectHTTP2(t) })
}

func (d *daemon) expectHTTP2(t *testing.T) {
	t.Helper()
	c := d.browser(nil)
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	response, err := c.Get("https://a.allowed.test/h2")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.ProtoMajor != 2 || !strings.Contains(string(body), "GET /h2") {
		t.Errorf("%s %q, %v", response.Proto, body, err)
	}
}

func (d *daemon) expectBody(t *testing.T, c *http.Client, method, url string, body io.Reader, want string) {
	t.Helper()
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 || !strings.Contains(string(got), want) {
		t.Errorf("%s %s: %s, %q, %v", method, url, response.Status, got, err)
	}
}

// expectLarge downloads more than egressd may hold in memory.
func (d *daemon) expectLarge(t *testing.T, c *http.Client, base string) {
	t.Helper()
	const size = 192 << 20
	response, err := c.Get(fmt.Sprintf("%s/big?n=%d", base, size))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, response.Body)
	if err != nil || n != size {
		t.Errorf("received %d bytes of %d: %v", n, size, err)
	}
	want := sha256.New()
	io.CopyN(want, zeros{}, size)
	if !bytes.Equal(sum.Sum(nil), want.Sum(nil)) {
		t.Error("the bytes arrived changed")
	}
	if kib := d.memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
}

// memory returns the most resident memory that the process ever had, in KiB.
func (d *daemon) memory(t *testing.T) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	fmt.Sscan(rest, &kib)
	return kib
}

// TestHostileUpstream has hosts answer what would desynchronise the client or
// speak in egressd's name. The client reads the answer to what it asked, or an
// error, and nothing else.
func TestHostileUpstream(t *testing.T) {
	covers(t, "H1-25")
	d := start(t, policyText(t, "P0"))
	for name := range hostileAnswers() {
		t.Run(name, func(t *testing.T) { d.survives(t, name) })
	}
	if kib := d.memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
	d.healthy(t, d.descriptors())
}

func (d *daemon) survives(t *testing.T, name string) {
	c, err := d.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET http://allowed.test/hostile/%s HTTP/1.1\r\nHost: allowed.test\r\n\r\nGET http://allowed.test/after HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", name)
	got, err := io.ReadAll(c)
	if err != nil && !gone(err) {
		t.Fatalf("no end: %v after %q", err, shorten(string(got)))
	}
	d.notFooled(t, string(got))
}

// notFooled checks what a client read that asked twice, first for a hostile
// answer.
func (d *daemon) notFooled(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, "X-Second") || strings.Contains(text, "second") || strings.Contains(text, "FORGED") {
		t.Errorf("the client got %q", shorten(text))
	}
	if n := strings.Count(text, "HTTP/1.1 "); n == 0 && text != "" || n > 2 {
		t.Errorf("%d answers to two requests: %q", n, shorten(text))
	}
	if strings.Contains(text, "X-Egressd-Id") && !strings.HasPrefix(text, "HTTP/1.1 502 ") {
		t.Errorf("the failure is not the network's: %q", shorten(text))
	}
	if !d.alive() {
		t.Fatal("egressd ended")
	}
}

// TestRebinding asks again and again for a name whose address changes to
// loopback after the first answer. What was decided is what is dialled, each
// time.
func TestRebinding(t *testing.T) {
	covers(t, "DN-12")
	d := start(t, policyText(t, "P0"))
	allow := expectation{Allow: []string{allowedIPv4}}
	deny := expectation{Deny: []policy.Class{policy.AddressDenied}, DstClass: "loopback", Asks: true}
	v := &vector{ID: "DN-12", Says: "a name that moves to loopback", Policy: "P0", Expect: allow, Or: &deny}
	first := d.world.zone.mark()
	deadline := time.Now().Add(30 * time.Second)
	asked := func() int { return countOf(d.world.zone.since(first), "rebind.allowed.test") }
	for n := 0; n < 100 || asked() < 4 && time.Now().Before(deadline); n++ {
		d.try(t, v, []string{wayConnect, wayHTTP, waySOCKS}[n%3], "rebind.allowed.test:443")
		if t.Failed() {
			return
		}
	}
	if asked() < 4 {
		t.Errorf("the name was resolved %d times: nothing was rebound", asked())
	}
}

func countOf(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}
