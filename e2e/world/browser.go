package world

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
)

// HTTPClient is an ordinary HTTP client in the sandbox that uses the proxy.
func (d *Daemon) HTTPClient(user *url.Userinfo) *http.Client {
	proxy := &url.URL{Scheme: "http", Host: d.Address(), User: user}
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyURL(proxy),
			DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
				return d.World.Sandbox.Dial(network, address)
			},
			TLSClientConfig:   &tls.Config{RootCAs: d.World.Origin.Ca.pool()},
			DisableKeepAlives: true,
		},
	}
}

// ExpectBody makes a request, and fails the test if the body of the response differs from want.
func (d *Daemon) ExpectBody(t *testing.T, c *http.Client, method, url string, body io.Reader, want string) {
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

// ExpectLarge downloads more than egressd may hold in memory.
func (d *Daemon) ExpectLarge(t *testing.T, c *http.Client, base string) {
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
	if kib := d.Memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
}

// Memory returns the most resident memory that the process ever had, in KiB.
func (d *Daemon) Memory(t *testing.T) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	fmt.Sscan(rest, &kib)
	return kib
}

// NotFooled checks what a client read that asked twice, first for a hostile
// answer.
func (d *Daemon) NotFooled(t *testing.T, text string) {
	t.Helper()
	for strings.HasPrefix(text, "HTTP/1.1 1") { // interim responses pass
		_, text, _ = strings.Cut(text, "\r\n\r\n")
	}
	if strings.Contains(text, "X-Second") || strings.Contains(text, "second") || strings.Contains(text, "FORGED") {
		t.Errorf("the client got %q", Shorten(text))
	}
	if n := strings.Count(text, "HTTP/1.1 "); n == 0 && text != "" || n > 2 {
		t.Errorf("%d answers to two requests: %q", n, Shorten(text))
	}
	if strings.Contains(text, "X-Egressd-Id") && !strings.HasPrefix(text, "HTTP/1.1 502 ") {
		t.Errorf("the failure is not the network's: %q", Shorten(text))
	}
	if !d.Alive() {
		t.Fatal("egressd ended")
	}
}
