package log

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// killsVariable says how many times TestKillNine kills, instead of ten.
const killsVariable = "EGRESSD_E2E_KILLS"

// TestKillNine kills egressd without warning while programs use it, several
// times, on one audit log in many segments. Whatever left the gateway has a record:
// every destination is used once only, so that none can stand for another. The log
// is good after each blow, but for a torn tail, which the next start mends.
func TestKillNine(t *testing.T) {
	world.Covers(t, "AU-01", "AU-04", "AU-12", "AU-19")
	for _, durability := range []string{"process", "disk"} {
		t.Run(durability, func(t *testing.T) { killNine(t, durability) })
	}
}

func killNine(t *testing.T, durability string) {
	const workers = 4
	rounds := 10
	if text := os.Getenv(killsVariable); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	d := world.NewDaemon(t, world.WithNames("version: 1\nallow: [\"203.0.0.0/16:443\", \"*.allowed.test\"]\n"))
	d.SetAudit(t, "durability: "+durability+", segment_bytes: 65536")
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked, arrivals := d.World.Zone.Mark(), d.World.Sink.Mark()
	var serial atomic.Uint32
	// A machine that is busy comes to little before a blow: there are more of them then.
	for round := 0; round < rounds || round < 100 && serial.Load() < 200; round++ {
		d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
		loadUntil(d, workers, &serial, time.Duration(rand.Int64N(int64(50*time.Millisecond))))
		if code, said := verifies(t, d); code != verify.Good && code != verify.TornTail {
			t.Fatalf("killed, the log is %d: %s", code, said)
		}
	}
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	if code, said := verifies(t, d); code != verify.Good {
		t.Errorf("started again, the log is %d: %s", code, said)
	}
	d.Stop(t)
	if code, said := verifies(t, d); code != verify.Good {
		t.Errorf("stopped, the log is %d: %s", code, said)
	}
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
	packets, err := d.World.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	expectRecorded(t, d, packets, d.World.Zone.Since(asked), d.Arrived(arrivals))
}

// loadUntil keeps egressd busy, kills it after a while, and returns when
// nobody uses it any more.
func loadUntil(d *world.Daemon, workers int, serial *atomic.Uint32, while time.Duration) {
	var busy sync.WaitGroup
	stop := make(chan struct{})
	for range workers {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					useOnce(d, serial.Add(1))
				}
			}
		})
	}
	time.Sleep(while) // the moment of the blow is what is random here
	d.Kill()
	close(stop)
	busy.Wait()
}

// useOnce sends something to a place that is used never before or after: a
// tunnel to an address, by CONNECT or SOCKS, or a request or question for a name.
func useOnce(d *world.Daemon, n uint32) {
	switch n % 4 {
	case 0:
		ask(d, fmt.Sprintf("n%d.allowed.test", n))
		return
	case 1:
		lookUp(d, fmt.Sprintf("q%d.allowed.test", n))
		return
	case 2:
		openSOCKS(d, fmt.Sprintf("203.0.%d.%d:443", 50+n>>8, n&255))
		return
	}
	c, status, err := d.OpenTunnel(fmt.Sprintf("203.0.%d.%d:443", 50+n>>8, n&255), "")
	if err != nil || status != http.StatusOK {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	c.Write([]byte("\x16\x03\x01")) // the beginning of a hello
}

// openSOCKS opens a tunnel by SOCKS5, and sends the beginning of a hello.
func openSOCKS(d *world.Daemon, to string) {
	c, err := d.Dial()
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	request, _ := world.SocksRequest(world.WaySOCKSIP, to)
	answer := make([]byte, 10)
	if _, err := c.Write([]byte{5, 1, 0}); err != nil {
		return
	}
	if _, err := io.ReadFull(c, answer[:2]); err != nil {
		return
	}
	if _, err := c.Write(request); err != nil {
		return
	}
	if _, err := io.ReadFull(c, answer); err == nil && answer[1] == 0 {
		c.Write([]byte("\x16\x03\x01"))
	}
}

// lookUp asks egressd for the addresses of a name.
func lookUp(d *world.Daemon, name string) {
	c, err := d.World.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)))
	if err != nil {
		return
	}
	defer c.Close()
	wire, err := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA).Pack()
	if err != nil {
		return
	}
	c.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := c.Write(wire); err == nil {
		c.Read(make([]byte, 512))
	}
}

func ask(d *world.Daemon, host string) {
	c, err := d.Dial()
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host, host)
	c.Read(make([]byte, 512))
}

// expectRecorded checks that each packet, query and request has a record.
func expectRecorded(t *testing.T, d *world.Daemon, packets []lab.Packet, queries []string, reached []world.Arrival) {
	t.Helper()
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]bool{}
	for _, r := range records {
		if r.DNS != nil && r.Decision != nil && r.Decision.Action == "allow" {
			hosts[r.DNS.Name] = true
		}
		if r.Dst != nil && r.Decision != nil && r.Decision.Action == "allow" && r.Kind != record.KindClose {
			hosts[r.Dst.Host] = true
		}
	}
	seen := 0
	for _, p := range packets {
		if to := p.To.Addr().String(); strings.HasPrefix(to, "203.0.") {
			seen++
			if !hosts[to] {
				t.Errorf("a packet to %s has no record", to)
			}
		}
	}
	for _, name := range slices.Compact(queries) {
		if seen++; !hosts[name] {
			t.Errorf("a query for %s has no record", name)
		}
	}
	for _, a := range reached {
		if host := hostOf(a.Received); host != "" && !hosts[host] {
			t.Errorf("a request for %s arrived and has no record", host)
		}
	}
	if seen < 50 {
		t.Errorf("only %d destinations were used: nothing is shown", seen)
	}
	t.Logf("%d destinations, %d records", seen, len(records))
}

func hostOf(request string) string {
	_, rest, found := strings.Cut(request, "\r\nHost: ")
	host, _, ended := strings.Cut(rest, "\r\n")
	if !found || !ended {
		return ""
	}
	return host
}

// TestSecondEgressdOnOneLog is refused: two writers would tear the log.
func TestSecondEgressdOnOneLog(t *testing.T) {
	world.Covers(t, "AU-23")
	d := world.Start(t, world.PolicyText(t, "P0"))
	second := world.NewDaemon(t, world.PolicyText(t, "P0"))
	second.Port++
	policy := strings.Replace(world.PolicyText(t, "P0")+fmt.Sprintf(world.ListenConfig+world.CommonConfig, lab.GatewayIPv4, second.Port, lab.GatewayIPv6, second.Port, world.Resolver), "dir: audit", "dir: "+d.Log.Dir, 1)
	if err := os.WriteFile(second.Config, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	code, said := second.Fails(t)
	if code == 0 || !strings.Contains(said, "egressd: hint: ") {
		t.Errorf("exit %d, said %q", code, said)
	}
}
