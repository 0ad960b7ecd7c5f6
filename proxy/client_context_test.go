package proxy

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// asked waits until the gate has a question at which so many flows wait.
func (w *world) asked(t *testing.T, waiting int) record.ID {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); time.Now().Before(late); time.Sleep(time.Millisecond) {
		for _, q := range w.Gate.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
			if q.Waiting == waiting {
				id, _ := record.ParseID(q.ID)
				return id
			}
		}
	}
	t.Fatalf("nothing is asked: %+v", w.Gate.Approvals.Questions(t.Context(), ^uint64(0)))
	return 0
}

// TestWhoHasLeftIsNotServed: what a client asked for is not done once it has gone, whether a
// person approves that before egressd has seen it or after.
func TestWhoHasLeftIsNotServed(t *testing.T) {
	body := "POST http://allowed.test:PORT/ HTTP/1.1\r\nHost: allowed.test:PORT\r\nContent-Length: 2\r\n\r\nhi"
	for name, say := range map[string]func(*testClient, string){
		"HTTP": func(c *testClient, port string) { c.send(strings.ReplaceAll(body, "PORT", port)) },
		"SOCKS5": func(c *testClient, port string) {
			c.send("\x05\x01\x00").expect("\x05\x00").send(socksTo("allowed.test", port))
		},
	} {
		t.Run(name, func(t *testing.T) {
			reached := make(chan struct{}, 8)
			o := newOrigin(t, func(net.Conn) { reached <- struct{}{} })
			w := newWorld(t, "version: 1\nask: [\"allowed.test:*\"]\nunsafe_allow: [\"127.0.0.1:*\"]\n", nil)
			w.Gate.Approvals.Open(true, time.Minute)
			early, late := w.dial(t), w.dial(t)
			say(early, o.port)
			w.asked(t, 1)
			early.Close()
			w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Class == string(policy.AskTimeout) })
			say(late, o.port)
			id := w.asked(t, 1)
			late.Close()
			time.Sleep(25 * time.Millisecond) // for the end to arrive, and for nobody to have looked
			if err := w.Gate.Approvals.Answer(id, approvals.Answer{Yes: true, Lasts: time.Hour}); err != nil {
				t.Fatal(err)
			}
			w.settled(t)
			select {
			case <-reached:
				t.Error("the destination was reached for a client that had left")
			default:
			}
			stays := w.dial(t) // and one that is there is served
			say(stays, o.port)
			select {
			case <-reached:
			case <-time.After(30 * time.Second):
				t.Error("nobody is served")
			}
		})
	}
}
