package waysin

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestTooManyFlows has one sandbox open more than it may. Another one is not
// affected, and room that was given back can be used.
func TestTooManyFlows(t *testing.T) {
	world.Covers(t, "LC-09")
	const most = 8
	d := world.Start(t, world.PolicyText(t, "P-auth")+fmt.Sprintf("limits: {flows_per_sandbox: %d, head_timeout: 20s, hello_timeout: 60s}\n", most))
	before := d.Connections()
	const ci, web = "Proxy-Authorization: Basic Y2k6b3Blbi1zZXNhbWU=\r\n", "Proxy-Authorization: Basic d2ViOmFub3RoZXItc2VjcmV0\r\n"
	var tunnels []*world.Tunnel
	arrived := d.World.Sink.Mark()
	for range most {
		c, status, err := d.OpenTunnel("allowed.test:443", ci)
		if err != nil || status != http.StatusOK {
			t.Fatalf("tunnel %d: status %d, %v", len(tunnels), status, err)
		}
		tunnels = append(tunnels, c)
	}
	if !world.Eventually(world.Settling, func() bool { return d.World.Sink.Mark()-arrived >= most }) { // or they would be taken for the next one's
		t.Fatal("not all tunnels lead somewhere")
	}
	v := &world.Vector{
		ID: "LC-09", Says: "one more than allowed", Policy: "P-auth",
		Send:   []string{"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n" + ci + "\r\n"},
		Expect: world.Expectation{Status: []int{http.StatusTooManyRequests}, Deny: []policy.Class{policy.TooManyFlows}},
	}
	s := d.Observe(t, v, world.WayRaw, "")
	s.Held = 0 // the tunnels
	for _, p := range world.Judge(&v.Expect, s) {
		t.Errorf("one more: %s", p)
	}
	if len(s.Answers) == 1 && s.Answers[0].Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	if c, status, err := d.OpenTunnel("allowed.test:443", web); err != nil || status != http.StatusOK {
		t.Errorf("another sandbox: status %d, %v", status, err)
	} else {
		c.Close()
	}
	for _, c := range tunnels {
		c.Close()
	}
	again := func() bool {
		c, status, _ := d.OpenTunnel("allowed.test:443", ci)
		c.Close()
		return status == http.StatusOK
	}
	if !world.Eventually(world.Settling, again) {
		t.Error("closed tunnels still count")
	}
	if !world.Eventually(world.Settling, func() bool { return d.Connections() == before }) {
		t.Errorf("%d sockets are left, %d were there before", d.Connections(), before)
	}
}

// TestSlowClients sends a byte at a time, or nothing, at every step of every
// protocol, by many connections at once. Each is closed by its deadline, and
// others are served meanwhile.
func TestSlowClients(t *testing.T) {
	world.Covers(t, "H1-30", "SK-17", "TL-19")
	const deadline = time.Second
	d := world.Start(t, world.PolicyText(t, "P0")+"limits: {head_timeout: 1s, hello_timeout: 1s}\n")
	before := d.Descriptors()
	const connect = "CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n"
	var clients sync.WaitGroup
	for _, slow := range []struct{ says, at, drip string }{
		{"nothing at all", "", ""},
		{"a head", "", connect},
		{"half a head", connect[:20], ""},
		{"fields", "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n", strings.Repeat("X: y\r\n", 1000)},
		{"a hello", connect, strings.Repeat("\x16\x03\x01\x02\x00\x01", 100)},
		{"no hello", connect, ""},
		{"a SOCKS greeting", "\x05", "\x02\x00\x02"},
		{"a SOCKS request", "\x05\x01\x00", "\x05\x01\x00\x03\x0callowed.test"},
		{"a SOCKS hello", "\x05\x01\x00\x05\x01\x00\x03\x0callowed.test\x01\xbb", ""},
		{"the next request", "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n", ""},
	} {
		for range 20 {
			clients.Go(func() {
				if took, err := drip(d, slow.at, slow.drip); err != nil || took > world.Promptly {
					t.Errorf("%s: closed after %v (%v), the deadline is %v", slow.says, took, err, deadline)
				}
			})
		}
	}
	d.ExpectBody(t, d.HTTPClient(nil), "GET", "http://allowed.test/meanwhile", nil, "/meanwhile")
	clients.Wait()
	const pools = 8
	if !world.Eventually(world.Settling, func() bool { return d.Descriptors() <= before+pools }) {
		t.Errorf("%d descriptors are left, %d were there before", d.Descriptors(), before)
	}
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
}

// drip sends at once what stands in at, then drip byte by byte, until the
// other side closes, and returns how long that took.
func drip(d *world.Daemon, at, drip string) (time.Duration, error) {
	c, err := d.Dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	began := time.Now()
	io.WriteString(c, at)
	ended := make(chan error, 1)
	go func() {
		c.SetReadDeadline(began.Add(world.Patience))
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if world.Gone(err) {
				err = nil
			}
			return time.Since(began), err
		case <-tick.C:
			if drip != "" {
				io.WriteString(c, drip[:1])
				drip = drip[1:]
			}
		}
	}
}

// TestTunnelLifetime asks again and again over one kept-alive connection: its
// tunnel is never idle, and ends when it has lasted five seconds, the shortest
// lifetime that a policy file may give. The client then has to ask for another.
func TestTunnelLifetime(t *testing.T) {
	world.Covers(t, "LC-12")
	d := world.Start(t, world.PolicyText(t, "P0")+"limits: {tunnel_lifetime: 5s, idle_timeout: 10s}\n")
	client := d.HTTPClient(nil)
	client.Transport.(*http.Transport).DisableKeepAlives = false
	var old *record.Record
	for began := time.Now(); old == nil && time.Since(began) < 30*time.Second; time.Sleep(100 * time.Millisecond) {
		if resp, err := client.Get("https://allowed.test/again"); err == nil { // the tunnel may end in the middle of one
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		records, _ := d.Log.Since(0)
		for i := range records {
			if records[i].Outcome == "lifetime" {
				old = &records[i]
			}
		}
	}
	if old == nil {
		t.Fatal("the tunnel did not end")
	}
	if old.Kind != record.KindClose || old.Duration < 4_900 || old.Decision.Action != "allow" || old.Bytes.Up == 0 {
		t.Errorf("the close record says %+v", old)
	}
	d.ExpectBody(t, client, "GET", "https://allowed.test/after", nil, "/after")
}

// TestManyHandshakesCutShort leaves at every byte of every handshake.
func TestManyHandshakesCutShort(t *testing.T) {
	world.Covers(t, "SP-12")
	d := world.Start(t, world.PolicyText(t, "P0"))
	hello := string((&world.Vector{Hello: "base-allowed.bin"}).FirstBytes(t)[0])
	before := d.Descriptors()
	for _, whole := range []string{
		"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n" + hello,
		"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
		"POST http://allowed.test/count HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"\x05\x01\x00\x05\x01\x00\x03\x0callowed.test\x01\xbb" + hello,
	} {
		for n := range len(whole) {
			c, err := d.Dial()
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(c, whole[:n])
			c.Close()
		}
	}
	d.ExpectBody(t, d.HTTPClient(nil), "GET", "https://allowed.test/after", nil, "/after")
	if !world.Eventually(2*world.Settling, func() bool { return d.Connections() == 0 }) {
		t.Errorf("%d sockets are left", d.Connections())
	}
	d.Healthy(t, before)
}

// TestWrongPasswords are answered ever more slowly, and do not keep the one
// who knows it out.
func TestWrongPasswords(t *testing.T) {
	world.Covers(t, "SK-14")
	d := world.Start(t, world.PolicyText(t, "P-auth"))
	var guesses sync.WaitGroup
	began := time.Now()
	const tries = 40
	for i := range tries {
		guesses.Go(func() {
			c, err := d.Dial()
			if err != nil {
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * time.Second))
			guess := fmt.Sprintf("open-sesam%d", i)
			fmt.Fprintf(c, "\x05\x01\x02\x01\x02ci%c%s\x05\x01\x00\x03\x0callowed.test\x01\xbb", len(guess), guess)
			answer, _ := io.ReadAll(c)
			if len(answer) > 4 || len(answer) == 4 && answer[3] == 0 {
				t.Errorf("a wrong password was answered %x", answer)
			}
		})
	}
	d.ExpectBody(t, d.HTTPClient(url.UserPassword("ci", "open-sesame")), "GET", "https://allowed.test/", nil, "origin")
	guesses.Wait()
	if took := time.Since(began); took < time.Second {
		t.Errorf("%d wrong passwords were answered within %v", tries, took)
	}
	refused := func() int {
		n := 0
		records, _ := d.Log.Since(0)
		for _, r := range records {
			if r.Decision != nil && r.Decision.Class == string(policy.UnknownSandbox) && r.Kind != record.KindClose {
				n += int(r.Times())
			}
		}
		return n
	}
	if !world.Eventually(world.Settling, func() bool { return refused() == tries }) {
		t.Errorf("%d of %d wrong passwords are recorded", refused(), tries)
	}
	if d.Log.Holds("open-sesam") {
		t.Error("a password stands in the log")
	}
}
