package load

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

const routedText = `version: 1
allow: ["allowed.test:*"]
sandboxes:
  - {name: near, source: [10.99.0.1/32]}
  - {name: other, source: [10.97.0.1/32]}
`

// TestAPacketFilterCostsItsOwnSandbox gives one routed sandbox a packet filter of 20,000 rules, which the kernel runs
// for each packet that egressd sends there, and 16 busy tunnels. The tunnel of another sandbox does not notice.
func TestAPacketFilterCostsItsOwnSandbox(t *testing.T) {
	d := world.Start(t, routedText)
	other, err := world.Neighbour()
	if err != nil {
		t.Fatal(err)
	}
	quiet := echoThrough(t, other, d.Address())
	busy := make([]net.Conn, 16)
	for i := range busy {
		busy[i] = echoThrough(t, d.World.Sandbox, d.Address())
	}
	without := medianBeside(t, quiet, busy)
	loadRules(t, d.World.Sandbox, 20_000)
	with := medianBeside(t, quiet, busy)
	t.Logf("an answer takes %v while the other sandbox is busy, and %v while it has a filter", without, with)
	if with > 2*without+2*time.Millisecond {
		t.Error("the packet filter of one sandbox holds up another")
	}
}

// echoThrough opens a tunnel to a server that sends everything back.
func echoThrough(t *testing.T, from *lab.Net, proxy string) net.Conn {
	t.Helper()
	c, err := from.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * world.Patience))
	fmt.Fprintf(c, "CONNECT allowed.test:7777 HTTP/1.1\r\nHost: allowed.test:7777\r\n\r\n")
	r := bufio.NewReader(c)
	if a, err := world.ReadAnswer(r, http.MethodConnect); err != nil || a.Status != http.StatusOK {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := c.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadBytes(0); err != nil { // behind the server's greeting
		t.Fatal(err)
	}
	return c
}

// roundTrip sends b and waits until it has come back.
func roundTrip(c net.Conn, b []byte) error {
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

// medianBeside returns how long a round trip of quiet takes while others send large messages.
func medianBeside(t *testing.T, quiet net.Conn, busy []net.Conn) time.Duration {
	t.Helper()
	over := make(chan struct{})
	var running sync.WaitGroup
	for _, c := range busy {
		running.Go(func() {
			message := make([]byte, 64<<10)
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := roundTrip(c, message); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	took := make([]time.Duration, 200)
	for i := range took {
		began := time.Now()
		if err := roundTrip(quiet, make([]byte, 5)); err != nil {
			t.Error(err)
			break
		}
		took[i] = time.Since(began)
	}
	close(over)
	running.Wait()
	slices.Sort(took)
	return took[len(took)/2]
}

// loadRules has a namespace look at so many rules for each packet that arrives.
func loadRules(t *testing.T, n *lab.Net, rules int) {
	t.Helper()
	load := func(text string) {
		if err := n.Load(text); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { load("delete table inet slow\n") })
	load("table inet slow {\nchain arriving {\ntype filter hook prerouting priority 0; policy accept\n}\n}\n")
	const together = 200 // which fit into one message to the kernel
	for first := 0; first < rules; first += together {
		var text strings.Builder
		for i := first; i < first+together; i++ {
			fmt.Fprintf(&text, "add rule inet slow arriving ip saddr 192.0.2.%d tcp dport %d drop\n", i%256, 1+i/256)
		}
		load(text.String())
	}
}
