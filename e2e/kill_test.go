package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/lab"
)

// TestKillNine kills egressd without warning while programs use it, several
// times, on one audit log. Whatever left the gateway has a record: every
// destination is used once only, so that none can stand for another.
func TestKillNine(t *testing.T) {
	const rounds, workers = 8, 4
	d := newDaemon(t, "version: 1\nallow: [\"203.0.0.0/16:443\", \"*.allowed.test\"]\n")
	wire, err := d.world.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked, arrivals := d.world.zone.mark(), d.world.Sink.Mark()
	var serial atomic.Uint32
	for range rounds {
		d.run(t, exec.Command(os.Getenv(binaryVariable), "serve", "--config", d.config))
		d.loadUntil(workers, &serial, time.Duration(rand.Int64N(int64(50*time.Millisecond))))
	}
	d.run(t, exec.Command(os.Getenv(binaryVariable), "serve", "--config", d.config))
	d.stop(t)
	for _, p := range d.log.flawed() {
		t.Errorf("the audit log: %s", p)
	}
	packets, err := d.world.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	d.expectRecorded(t, packets, d.world.zone.since(asked), d.arrived(arrivals))
}

// loadUntil keeps egressd busy, kills it after a while, and returns when
// nobody uses it any more.
func (d *daemon) loadUntil(workers int, serial *atomic.Uint32, while time.Duration) {
	var busy sync.WaitGroup
	stop := make(chan struct{})
	for range workers {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					d.useOnce(serial.Add(1))
				}
			}
		})
	}
	time.Sleep(while) // the moment of the blow is what is random here
	d.kill()
	close(stop)
	busy.Wait()
}

// useOnce sends something to a place that is used never before or after: a
// tunnel to an address, or a request for a name.
func (d *daemon) useOnce(n uint32) {
	if n%3 == 0 {
		d.ask(fmt.Sprintf("n%d.allowed.test", n))
		return
	}
	c, status, err := d.open(fmt.Sprintf("203.0.%d.%d:443", 50+n>>8, n&255), "")
	if err != nil || status != http.StatusOK {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	c.Write([]byte("\x16\x03\x01")) // the beginning of a hello
}

func (d *daemon) ask(host string) {
	c, err := d.dial()
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host, host)
	c.Read(make([]byte, 512))
}

// expectRecorded checks that each packet, query and request has a record.
func (d *daemon) expectRecorded(t *testing.T, packets []lab.Packet, queries []string, reached []arrived) {
	t.Helper()
	records, err := d.log.since(0)
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]bool{}
	for _, r := range records {
		if r.Dst != nil && r.Decision != nil && r.Decision.Action == "allow" && r.Kind != egress.KindClose {
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
		if host := hostOf(a.received); host != "" && !hosts[host] {
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
	d := start(t, policyText(t, "P0"))
	second := newDaemon(t, policyText(t, "P0"))
	second.port++
	policy := strings.Replace(policyText(t, "P0")+fmt.Sprintf(listeners+rest, lab.GatewayIPv4, second.port, lab.GatewayIPv6, second.port, resolver), "dir: audit", "dir: "+d.log.dir, 1)
	if err := os.WriteFile(second.config, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	code, said := second.fails(t)
	if code == 0 || !strings.Contains(said, "egressd: hint: ") {
		t.Errorf("exit %d, said %q", code, said)
	}
}

// fails runs egressd, which has to end by itself and leave nothing listening.
func (d *daemon) fails(t *testing.T) (code int, said string) {
	t.Helper()
	cmd := exec.Command(os.Getenv(binaryVariable), "serve", "--config", d.config)
	cmd.Dir, cmd.Stderr = d.dir, &d.talk
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.dir, "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	if err := d.world.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
	defer late.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if c, err := d.dial(); err == nil {
		c.Close()
		t.Errorf("something listens on %s", d.address())
	} else if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
		t.Errorf("dialling the port took too long")
	}
	return code, d.talk.String()
}
