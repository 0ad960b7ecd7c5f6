package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const switchedToTCP = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"

// toTCP is an origin that changes to a protocol of its own, and has serve speak it.
func toTCP(t *testing.T, serve func(c net.Conn, in *bufio.Reader)) *origin {
	return newOrigin(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		if _, err := http.ReadRequest(in); err == nil {
			io.WriteString(c, switchedToTCP)
			serve(c, in)
		}
	})
}

// changed is a client whose request has changed to the protocol of the origin.
func (w *inspectWorld) changed(t *testing.T, o *origin) *testClient {
	t.Helper()
	c := w.dial(t).send(request("POST", "other.test", o.port, "/attach", "Connection: Upgrade", "Upgrade: tcp") + "\r\n")
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	return c
}

// changedEnd waits for the record of how that ended.
func (w *inspectWorld) changedEnd(t *testing.T) record.Outcome {
	t.Helper()
	return w.recorded(t, closeOf(w.recorded(t, requestTo("/attach")))).Outcome
}

func halfClose(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
}

// TestAnotherProtocolHasHalves, as docker exec has, whose output goes on once its input has ended.
func TestAnotherProtocolHasHalves(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, webSocketPolicy, nil)
	o := toTCP(t, func(c net.Conn, in *bufio.Reader) {
		input, err := io.ReadAll(in)
		if err != nil {
			t.Error(err)
		}
		io.WriteString(c, "read "+string(input))
		halfClose(t, c)
	})
	c := w.changed(t, o).send("input")
	halfClose(t, c.Conn)
	c.expect("read input")
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the output ends with %v", err)
	}
	o = toTCP(t, func(c net.Conn, in *bufio.Reader) {
		halfClose(t, c)
		if input, err := io.ReadAll(in); string(input) != "late" || err != nil {
			t.Errorf("read %q, %v", input, err)
		}
	})
	c = w.changed(t, o)
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the output ends with %v", err)
	}
	c.send("late")
	c.Close()
	w.closed(t)
	if n := w.count(t, func(r record.Record) bool { return r.Kind == record.KindClose && r.Outcome != record.OutcomeClosed }); n > 0 {
		t.Errorf("%d did not end in order", n)
	}
}

// TestAnotherProtocolIsBrokenOffAsOne: nobody takes what came for all.
func TestAnotherProtocolIsBrokenOffAsOne(t *testing.T) {
	for name, serve := range map[string]func(t *testing.T) (o *origin, client func(*testClient)){
		"by the upstream": func(t *testing.T) (*origin, func(*testClient)) {
			o := toTCP(t, func(c net.Conn, in *bufio.Reader) {
				in.ReadByte()
				carry.Abort(c)
			})
			return o, func(c *testClient) {
				if _, err := c.send("x").in.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the client reads %v", err)
				}
			}
		},
		"by the client": func(t *testing.T) (*origin, func(*testClient)) {
			o := toTCP(t, func(_ net.Conn, in *bufio.Reader) {
				if _, err := in.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the upstream reads %v", err)
				}
			})
			return o, func(c *testClient) { carry.Abort(c.Conn) }
		},
		"by a client that had sent all": func(t *testing.T) (*origin, func(*testClient)) {
			read, over := make(chan struct{}), make(chan struct{})
			o := toTCP(t, func(_ net.Conn, in *bufio.Reader) {
				io.Copy(io.Discard, in)
				close(read)
				<-over // it has nothing to say
			})
			t.Cleanup(func() { close(over) })
			return o, func(c *testClient) {
				halfClose(t, c.Conn)
				<-read
				carry.Abort(c.Conn)
			}
		},
		"by an upstream that had sent all": func(t *testing.T) (*origin, func(*testClient)) {
			goOn := make(chan struct{})
			o := toTCP(t, func(c net.Conn, _ *bufio.Reader) {
				halfClose(t, c)
				<-goOn
				carry.Abort(c)
			})
			return o, func(c *testClient) {
				io.Copy(io.Discard, c.in)
				close(goOn)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newInspectWorld(t, webSocketPolicy, nil)
			o, client := serve(t)
			client(w.changed(t, o))
			if outcome := w.changedEnd(t); outcome != record.OutcomeReset {
				t.Errorf("recorded as %s", outcome)
			}
			w.closed(t)
		})
	}
}

// TestASwitchLeavesNoBodyBehind: an upstream has to ask for the body before it changes to another protocol (RFC 9110 section
// 7.8), or the body would be read as that.
func TestASwitchLeavesNoBodyBehind(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, webSocketPolicy, nil)
	o := toTCP(t, func(_ net.Conn, in *bufio.Reader) {
		if n, _ := io.Copy(io.Discard, in); n > 0 {
			t.Errorf("%d bytes went up", n)
		}
	})
	c := w.dial(t).send(request("POST", "other.test", o.port, "/attach", "Connection: Upgrade", "Upgrade: tcp", "Expect: 100-continue", "Content-Length: 4") + "\r\n")
	resp, body := c.response("POST")
	reply{resp, body}.refused(t, 502, policy.MalformedResponse)
	c.Close()
	if outcome := w.changedEnd(t); outcome != record.Outcome(policy.MalformedResponse) {
		t.Errorf("recorded as %s", outcome)
	}
	w.closed(t)
}
