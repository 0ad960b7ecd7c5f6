package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/miekg/dns"
)

// floodVariable says how long TestAFloodOfDenials lasts, instead of two seconds.
const floodVariable = "EGRESSD_E2E_FLOOD"

// TestAFloodOfDenials has a sandbox ask for what it may not have as fast as it is answered.
// The records say how often to the last one, take a small part of the room that one for
// each would, and what is allowed is served meanwhile.
func TestAFloodOfDenials(t *testing.T) {
	world.Covers(t, "LC-07")
	lasts, err := time.ParseDuration(firstSet(os.Getenv(floodVariable), "2s"))
	if err != nil {
		t.Fatal(err)
	}
	d := world.NewDaemon(t, world.WithNames(world.PolicyText(t, "P0")+"limits: {dns_queries_per_second: 1048576, dns_name_bytes: 1073741824}\n"))
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	var asked, tunnels atomic.Int64
	over := make(chan struct{})
	var flood sync.WaitGroup
	for i := range 4 {
		flood.Go(func() { floodQuestions(t, d, fmt.Sprintf("q%d.evil.test", i%2), &asked, over) })
		flood.Go(func() { floodTunnels(t, d, "evil.test:443", &tunnels, over) })
	}
	served, began := 0, time.Now()
	for ; time.Since(began) < lasts || served == 0; served++ {
		d.ExpectBody(t, d.HTTPClient(nil), "GET", "http://allowed.test/meanwhile", nil, "/meanwhile")
	}
	close(over)
	flood.Wait()
	took := time.Since(began)
	d.Stop(t)
	recorded, records, size := denials(t, d)
	if recorded["dns"] != asked.Load() || recorded["connect"] != tunnels.Load() {
		t.Errorf("%d questions and %d tunnels were denied, and %v are recorded", asked.Load(), tunnels.Load(), recorded)
	}
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
	// Of a kind no more than eleven records come in a second: ten, and a sum. Of the end of
	// the flood a part of a second is left, and so is of its beginning.
	kinds, seconds := 3, int(took/time.Second)+3
	if most := kinds * 11 * seconds; records > most {
		t.Errorf("%d records of denials in %v, want %d at most", records, took, most)
	}
	t.Logf("%d denials in %d records, %d KiB of log, %d requests were served meanwhile", asked.Load()+tunnels.Load(), records, size>>10, served)
}

func firstSet(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// floodQuestions asks for a name again and again, each time when it was refused.
func floodQuestions(t *testing.T, d *world.Daemon, name string, asked *atomic.Int64, over <-chan struct{}) {
	c, err := d.World.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)))
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	wire, err := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA).Pack()
	if err != nil {
		t.Error(err)
		return
	}
	answer := make([]byte, 512)
	for {
		select {
		case <-over:
			return
		default:
		}
		c.SetDeadline(time.Now().Add(world.Patience))
		if _, err := c.Write(wire); err != nil {
			t.Error(err)
			return
		}
		if n, err := c.Read(answer); err != nil || n < 12 || answer[3]&15 != dns.RcodeRefused {
			t.Errorf("answered %x: %v", answer[:n], err)
			return
		}
		asked.Add(1)
	}
}

// floodTunnels does so for a tunnel.
func floodTunnels(t *testing.T, d *world.Daemon, to string, asked *atomic.Int64, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		c, status, err := d.OpenTunnel(to, "")
		if err != nil || status != http.StatusForbidden {
			t.Errorf("%s: %d, %v", to, status, err)
			return
		}
		world.Abandon(c.Conn)
		asked.Add(1)
	}
}

// denials counts by way in how many denials are recorded, in how many records and bytes.
func denials(t *testing.T, d *world.Daemon) (times map[string]int64, records int, size int) {
	t.Helper()
	all, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	times = map[string]int64{}
	for i := range all {
		if r := &all[i]; r.Decision != nil && r.Decision.Action == "deny" {
			times[r.Via] += r.Times()
			records++
		}
		size += len(d.Log.Lines[i]) + 1
	}
	return times, records, size
}

// TestABudgetOfBytes sends more than a rule lets up, by all that can be sent.
func TestABudgetOfBytes(t *testing.T) {
	world.Covers(t, "LC-01")
	const budget = 10 << 20
	d := world.StartRego(t, "version: 1\nrego: [policy]\n", fmt.Sprintf("package egress\n\nallow contains {\"rule\": \"uploads\", \"max_bytes_up\": %d} if input.destination.host == \"allowed.test\"\n", budget))
	arrivals := d.World.Sink.Mark()
	for _, announced := range []int64{100 << 20, -1} {
		body := &endless{left: 100 << 20}
		request, err := http.NewRequest("POST", "http://allowed.test/count", body)
		if err != nil {
			t.Fatal(err)
		}
		request.ContentLength = announced
		response, err := d.HTTPClient(nil).Do(request)
		if err == nil {
			text, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(text), "byte-budget") {
				t.Errorf("a body of %d: %s %s", announced, response.Status, text)
			}
		}
		if announced < 0 && body.left == 0 {
			t.Error("all of a body was taken that is ten times the budget")
		}
	}
	c, status, err := d.OpenTunnel("allowed.test:22", "") // whose host reads all
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	if n, err := io.Copy(c.Conn, &endless{left: 100 << 20}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a tunnel took %d bytes: %v", n, err)
	}
	var ended int
	if !world.Eventually(world.Settling, func() bool { ended = ofBudget(t, d, budget); return ended >= 2 }) {
		t.Errorf("%d flows ended by their budget", ended)
	}
	for _, a := range d.World.Sink.Since(arrivals) {
		if _, n := a.Received(); n > budget+64<<10 {
			t.Errorf("%d bytes reached %s", n, a.To)
		}
	}
}

// ofBudget counts the flows that ended because of their budget, with no more sent.
func ofBudget(t *testing.T, d *world.Daemon, budget int64) (n int) {
	t.Helper()
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Outcome == "byte-budget" {
			n++
			if r.Bytes.Up > budget+64<<10 {
				t.Errorf("%d bytes went up", r.Bytes.Up)
			}
		}
	}
	return n
}

// An endless body has so many bytes left.
type endless struct{ left int64 }

func (e *endless) Read(b []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(b)), e.left)
	e.left -= n
	return int(n), nil
}

// TestHostsOfManyAreFlagged has policy check look at rules that let data out to whoever
// rents or registers a host.
func TestHostsOfManyAreFlagged(t *testing.T) {
	world.Covers(t, "LC-05")
	for pattern, flagged := range map[string]bool{
		"*.github.io": true, "*.s3.amazonaws.com": true, "*.githubusercontent.com": true, "raw.githubusercontent.com": true, "*": true,
		"*.com": true, "*.co.uk": true, "0.0.0.0/0": true, "bucket.s3.amazonaws.com": false, "someone.github.io": false, "*.example.com": false, "api.github.com": false,
	} {
		path := filepath.Join(t.TempDir(), "egressd.yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, "version: 1\nallow: [%q]\n", pattern), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(world.Egressd.Path(), "policy", "check", "--json", "--config", path).Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || bytes.Contains(out, []byte(`"error"`)) {
			t.Fatalf("%s: %v %s", pattern, err, out)
		}
		if warned := bytes.Contains(out, []byte(`"severity":"warning"`)); warned != flagged {
			t.Errorf("%s: %s", pattern, out)
		}
	}
}
