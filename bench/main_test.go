//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// forwardFlag makes the test binary a small forward proxy, so that the
// harness can be tested with a proxy that is a process of its own.
const forwardFlag = "-forward-on"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(roleVariable) != "":
		main()
	case len(os.Args) == 6 && os.Args[1] == forwardFlag:
		fmt.Fprintln(os.Stderr, forward(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
		os.Exit(1)
	default:
		os.Exit(m.Run())
	}
}

// forward is a proxy that knows originName and the names below it, and refuses
// everything else. It looks into the tunnels to two ports, with an authority
// whose certificate it writes to a file.
func forward(port, inspected, h2, file string) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, ca.pem(), 0o644); err != nil {
		return err
	}
	return http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, originPort, _ := strings.Cut(r.Host, ":")
		switch {
		case name != originName && !strings.HasSuffix(name, "."+originName):
			http.Error(w, "no", http.StatusForbidden)
		case r.Method == http.MethodConnect && originPort == inspected:
			splice(w, originPort, func(up, down net.Conn) (net.Conn, net.Conn) { return inside(ca, name, "http/1.1", up, down) })
		case r.Method == http.MethodConnect && originPort == h2:
			splice(w, originPort, func(up, down net.Conn) (net.Conn, net.Conn) { return inside(ca, name, "h2", up, down) })
		case r.Method == http.MethodConnect:
			splice(w, originPort, func(up, down net.Conn) (net.Conn, net.Conn) { return up, down })
		default:
			fetchFor(w, originPort)
		}
	}))
}

// inside is what up and down say within TLS, down's by a leaf of ca for name.
func inside(ca *authority, name, protocol string, up, down net.Conn) (net.Conn, net.Conn) {
	issue := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		leaf, err := ca.issue(name)
		return &leaf, err
	}
	return tls.Client(up, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}), tls.Server(down, &tls.Config{GetCertificate: issue, NextProtos: []string{protocol}})
}

func splice(w http.ResponseWriter, port string, through func(up, down net.Conn) (net.Conn, net.Conn)) {
	up, err := net.Dial("tcp4", "127.0.0.1:"+port)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	down, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
	up, down = through(up, down)
	for _, pair := range [][2]net.Conn{{up, down}, {down, up}} {
		go func() {
			defer pair[0].Close()
			io.Copy(pair[0], pair[1])
		}()
	}
}

func fetchFor(w http.ResponseWriter, port string) {
	answer, err := http.Get("http://127.0.0.1:" + port + "/")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.Header().Set("Content-Length", answer.Header.Get("Content-Length"))
	io.Copy(w, answer.Body)
}

func forwardProxy() *proxy {
	return &proxy{name: "forward", host: originName, certificate: "ca.pem", h2: true, command: func(dir string, port int, o origins) (*exec.Cmd, error) {
		return exec.Command("/proc/self/exe", forwardFlag, fmt.Sprint(port), fmt.Sprint(o.Inspected), fmt.Sprint(o.H2), filepath.Join(dir, "ca.pem")), nil
	}}
}

// newTestBench returns a bench with its processes, direct, and a proxy.
func newTestBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{errOut: io.Discard, options: options{
		length: 20 * time.Millisecond, rounds: 2, tunnels: 40, starts: 3, scenarios: proxied(),
	}}
	t.Cleanup(b.close)
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	if err := b.add(forwardProxy(), nil); err != nil {
		t.Fatal(err)
	}
	return b
}

// proxied are the scenarios that are measured through proxies.
func proxied() []scenario {
	return slices.DeleteFunc(scenarios(), func(s scenario) bool { return s.alone != nil })
}

func TestEveryScenarioWorksDirectlyAndThroughAProxy(t *testing.T) {
	b := newTestBench(t)
	for _, name := range []string{floorHTTP, floorEpoll} {
		if err := b.add(peer(name, "", b.base)); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := b.measure(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, s := range proxied() {
		want += len(b.contendersOf(s))
	}
	if len(rows) != want {
		t.Fatalf("%d rows for %d cells", len(rows), want)
	}
	for _, r := range rows {
		if r.Errors != 0 || r.Rounds != 2 {
			t.Errorf("%s, %s: %d errors in %d rounds: %s", r.Scenario, r.Proxy, r.Errors, r.Rounds, r.First)
		}
		idle := r.Scenario == "idle"
		if !idle && !(r.Value > 0) {
			t.Errorf("%s, %s: measured %v", r.Scenario, r.Proxy, r.Value)
		}
		if compared := r.Ratio != nil; compared != (r.Proxy != direct && !idle) {
			t.Errorf("%s, %s: ratio is %v", r.Scenario, r.Proxy, r.Ratio)
		}
	}
}

func TestOnlyThoseThatInspectTakePartInside(t *testing.T) {
	named := func(name string, p *proxy) *contender { return &contender{name: name, proxy: p} }
	b := &bench{contenders: []*contender{
		named("direct", nil),
		named("opaque", &proxy{}),
		named("both", &proxy{certificate: "ca.pem"}),
		named("inside", &proxy{certificate: "ca.pem", insideOnly: true}),
		named("h2", &proxy{certificate: "ca.pem", h2: true}),
		named("tunnels", &proxy{tunnelsOnly: true}),
	}}
	for name, want := range map[string]string{
		"connect":        "direct opaque both h2 tunnels",
		"http":           "direct opaque both h2",
		"idle":           "direct opaque both h2 tunnels",
		"inspected-new":  "direct both inside h2",
		"inspected-kept": "direct both inside h2",
		"inspected-h2":   "direct h2",
	} {
		var got []string
		for _, c := range b.contendersOf(scenarioNamed(t, name)) {
			got = append(got, c.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s is measured with %q, want %q", name, got, want)
		}
	}
}

func TestAProxyWithoutItsCertificateEndsTheRun(t *testing.T) {
	b := newTestBench(t)
	b.contenders[1].proxy.certificate = "nowhere.pem"
	b.options.scenarios = []scenario{scenarioNamed(t, "inspected-new")}
	if _, err := b.measure(context.Background()); err == nil || !strings.Contains(err.Error(), "nowhere.pem") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestAProxyThatDiesShowsInTheCellAndEndsTheRun(t *testing.T) {
	b := newTestBench(t)
	b.contenders[1].running.stop()
	b.options.scenarios = b.options.scenarios[:1]
	if _, err := b.measure(context.Background()); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("error %v, want one that says that the process has ended", err)
	}
}

func TestAStoppedRunReportsWhatItHas(t *testing.T) {
	b := newTestBench(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if rows, err := b.measure(ctx); err == nil || len(rows) != 0 {
		t.Errorf("%d rows, error %v", len(rows), err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	b := newTestBench(t)
	pids := []int{b.load.cmd.Process.Pid, b.originRole.cmd.Process.Pid, b.contenders[1].running.cmd.Process.Pid}
	b.close()
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d still runs", pid)
		}
	}
	if _, err := os.Stat(b.base); err == nil {
		t.Errorf("%s still exists", b.base)
	}
}
