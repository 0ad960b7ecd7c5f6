package log

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// TestASlowSyncHoldsUpNoTunnel has each sync of the log take a second while others open connections. What goes through a
// tunnel that is open already waits for nothing. With durability "disk", a new connection waits for its record to be synced.
// With "process", it waits for nothing either.
func TestASlowSyncHoldsUpNoTunnel(t *testing.T) {
	for _, durability := range []string{"disk", "process"} {
		t.Run(durability, func(t *testing.T) { slowSync(t, durability) })
	}
}

func slowSync(t *testing.T, durability string) {
	const (
		delay  = time.Second
		atMost = delay / 2 // of one round trip
	)
	opened := 6 // tunnels during the slow syncs
	if durability == "process" {
		opened = 300 // over some of them, too
	}
	f := &faulty{Daemon: world.NewDaemon(t, "version: 1\nallow: [\"203.0.0.0/16:443\", \"203.0.0.0/16:7777\"]\n")}
	if durability == "disk" {
		f.SetAudit(t, "durability: disk")
	}
	if err := os.Mkdir(f.Log.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", f.Log.Dir) // where a sync takes no time
	t.Cleanup(f.end)
	f.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", f.Config))
	for range 100 { // syncs that are quick: none may be done on the way of a connection for that
		c, _, err := f.pinged("203.0.199.8:7777")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	var tunnels []*world.Tunnel
	for range 16 {
		tunnel, _, err := f.pinged("203.0.199.9:7777")
		if err != nil {
			t.Fatal(err)
		}
		defer tunnel.Close()
		tunnels = append(tunnels, tunnel)
	}
	f.while(t, logFault{"fdatasync", fmt.Sprintf("delay_exit=%d", delay.Microseconds())}, func() {
		waits := f.openMore(opened)
		longest, slowest, pings := time.Duration(0), time.Duration(0), 0
		pace := time.NewTicker(10 * time.Millisecond) // between which there is nothing to do
		defer pace.Stop()
		for over := false; !over; <-pace.C {
			took, err := ping(tunnels[pings%len(tunnels)])
			if err != nil {
				t.Fatal(err)
			}
			longest, pings = max(longest, took), pings+1
			select {
			case wait, more := <-waits:
				slowest, over = max(slowest, wait), !more
			default:
			}
		}
		t.Logf("%s: the slowest of %d round trips took %v, the first of %d new tunnels up to %v", durability, pings, longest, opened, slowest)
		if longest > atMost {
			t.Errorf("a round trip took %v", longest)
		}
		if waited := slowest >= delay; waited != (durability == "disk") {
			t.Errorf("a new tunnel waited %v for a slow sync", slowest)
		}
	})
	f.Stop(t)
}

// openMore opens n tunnels, one after the other, and sends how long each took. It closes the channel at the end.
func (f *faulty) openMore(n int) <-chan time.Duration {
	waits := make(chan time.Duration, n)
	go func() {
		defer close(waits)
		for i := range n {
			began := time.Now()
			if c, _, err := f.pinged(fmt.Sprintf("203.0.%d.%d:7777", 200+i/250, i%250+1)); err == nil {
				waits <- time.Since(began)
				c.Close()
			}
		}
	}()
	return waits
}

// pinged opens a tunnel and sends a line through it. It returns how long the line took to come back.
func (f *faulty) pinged(to string) (c *world.Tunnel, took time.Duration, err error) {
	if c, _, err = f.OpenTunnel(to, ""); err != nil {
		return nil, 0, err
	}
	took, err = ping(c)
	return c, took, err
}

// ping sends a line through a tunnel to an origin that echoes, and returns how long it took to come back.
func ping(c *world.Tunnel) (time.Duration, error) {
	began := time.Now()
	fmt.Fprintln(c, "ping")
	for {
		line, err := c.R.ReadString('\n')
		if err != nil || strings.Contains(line, "ping") {
			return time.Since(began), err
		}
	}
}
