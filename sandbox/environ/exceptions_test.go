package environ

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
)

// TestClientsReachTheMachineItself has programs that read the variables ask for pages of this machine, which no proxy has
// to do with, and for one elsewhere, which the proxy has to see.
func TestClientsReachTheMachineItself(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the proxy") }))
	defer proxy.Close()
	vars, _, err := ForProxy(strings.TrimPrefix(proxy.URL, "http://"), nil)
	if err != nil {
		t.Fatal(err)
	}
	page := func(address string) string {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") })}}
		s.Start()
		t.Cleanup(s.Close)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return port
	}
	v4, v6 := page("127.0.0.1"), page("::1")
	clients := map[string][]string{
		"curl":   {"curl", "-s", "-m9"},
		"wget":   {"wget", "-qO-", "-T9", "-t1"},
		"python": {"python3", "-c", "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=9).read().decode())"},
	}
	for name, argv := range clients {
		for url, want := range map[string]string{
			"http://localhost:" + v4 + "/": "the page",
			"http://127.0.0.1:" + v4 + "/": "the page",
			"http://[::1]:" + v6 + "/":     "the page",
			"http://a.example/":            "the proxy",
		} {
			if name == "python" && strings.Contains(url, "[") {
				want = "the proxy" // see Exceptions
			}
			cmd := exec.CommandContext(t.Context(), argv[0], append(argv[1:], url)...)
			cmd.Env = With([]string{"PATH=/usr/bin:/bin:/usr/local/bin", "HOME=" + t.TempDir(), "no_proxy=*"}, vars)
			if got, err := cmd.CombinedOutput(); string(got) != want {
				t.Errorf("%s %s: %q, want %q (%v)", name, url, got, want, err)
			}
		}
	}
}

// TestNoProxyHoldsNoBrackets with which a Python program that uses httpx ends: it takes what is behind their colons for a port.
func TestNoProxyHoldsNoBrackets(t *testing.T) {
	vars, _, err := ForProxy("127.0.0.1:3128", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vars {
		if strings.EqualFold(v.Name, "no_proxy") && strings.ContainsAny(v.Value, "[]* ") {
			t.Errorf("%s is %q", v.Name, v.Value)
		}
	}
}
