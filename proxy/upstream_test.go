package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// upstreamOf is an HTTP proxy that answers each whole request by handle, and notes requests as they came.
func upstreamOf(t *testing.T, handle http.HandlerFunc) upstream.Proxy {
	t.Helper()
	o := webOrigin(t, handle)
	dst, err := policy.ParseDestination("127.0.0.1:" + o.port)
	if err != nil {
		t.Fatal(err)
	}
	return upstream.Proxy{At: dst, ByName: true, User: "egressd", Password: "geheim"}
}

// TestPlainHTTPGoesWholeToAnUpstreamProxy with its password, and without what a sandbox
// sends in the place of one.
func TestPlainHTTPGoesWholeToAnUpstreamProxy(t *testing.T) {
	var last atomic.Value
	p := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		last.Store(fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host, " ", r.Header["Proxy-Authorization"], r.Header["Max-Forwards"]))
		fmt.Fprint(w, "far")
	})
	w := newWorld(t, openPolicy, nil)
	w.Gate.Route.Through(&p)
	c := w.dial(t)
	for _, path := range []string{"/a?b=c", "/d"} {
		c.send(get("allowed.test", "8080", path, "Proxy-Authorization: Basic Zm9vOmJhcg==", "Max-Forwards: 0"))
		if resp, body := c.response("GET"); resp.StatusCode != 200 || body != "far" {
			t.Fatalf("%s %q", resp.Status, body)
		}
		want := "GET http://allowed.test:8080" + path + " allowed.test:8080 [Basic ZWdyZXNzZDpnZWhlaW0=] []"
		if got := last.Load(); got != want {
			t.Errorf("it got %q, not %q", got, want)
		}
	}
}

// TestARefusalOfAnUpstreamProxyIsNotOurs, whichever way the request came, and its record says what it answered.
func TestARefusalOfAnUpstreamProxyIsNotOurs(t *testing.T) {
	for says, row := range map[string]struct {
		status int
		field  string
		whole  bool // the answer counts as that of the server
	}{
		"it wants a password":        {407, "Proxy-Authenticate: Basic", false},
		"squid":                      {403, "X-Squid-Error: ERR_ACCESS_DENIED 0", false},
		"Proxy-Status":               {502, "Proxy-Status: office; error=dns_error", false},
		"the server itself":          {403, "Server: far", true},
		"the server, with no error=": {200, "Proxy-Status: office; error=x", true},
	} {
		t.Run(says, func(t *testing.T) {
			p := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
				name, value, _ := strings.Cut(row.field, ": ")
				w.Header().Set(name, value)
				w.WriteHeader(row.status)
			})
			w := newWorld(t, openPolicy, nil)
			w.Gate.Route.Through(&p)
			c := w.dial(t)
			c.send(get("allowed.test", "8080", "/"))
			resp, body := c.response("GET")
			if row.whole {
				if resp.StatusCode != row.status {
					t.Errorf("got %s %s", resp.Status, body)
				}
				return
			}
			if resp.StatusCode != 502 || !strings.Contains(body, `"class":"upstream-refused"`) || resp.Header.Get("Proxy-Authenticate") != "" {
				t.Errorf("got %s %s", resp.Status, body)
			}
			w.recorded(t, func(r record.Record) bool {
				return r.Kind == record.KindClose && r.Outcome == record.Outcome(policy.UpstreamRefused) && strings.Contains(r.Note, fmt.Sprint(row.status))
			})
		})
	}
}

// TestAnUpstreamProxyRefusesATunnel of each way in.
func TestAnUpstreamProxyRefusesATunnel(t *testing.T) {
	p := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	w := newWorld(t, openPolicy, nil)
	w.Gate.Route.Through(&p)
	c := w.dial(t)
	c.send("CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n")
	resp, body := c.response("CONNECT")
	if resp.StatusCode != 502 || !strings.Contains(body, "the upstream proxy refused it: 403 Forbidden") || strings.Contains(body, `"retryable":true`) {
		t.Errorf("got %s %s", resp.Status, body)
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Outcome == record.Outcome(policy.UpstreamRefused) && strings.Contains(r.Note, "403 Forbidden")
	})
	s, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fmt.Fprint(s, "\x05\x01\x00\x05\x01\x00\x03\x0callowed.test\x01\xbb")
	in := bufio.NewReader(s)
	answer := make([]byte, 4)
	for i := range answer {
		answer[i], _ = in.ReadByte()
	}
	if answer[3] != 1 {
		t.Errorf("SOCKS answered % x", answer)
	}
}
