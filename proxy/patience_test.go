package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// settled waits until no flow and no connection is left.
func (w *world) settled(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); w.Gate.Flows.Count() > 0 || w.connections.Count() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d flows and %d connections are left", w.Gate.Flows.Count(), w.connections.Count())
		}
	}
}

func (w *world) count(t *testing.T, fits func(record.Record) bool) (n int) {
	t.Helper()
	for _, r := range w.records(t) {
		if fits(r) {
			n++
		}
	}
	return n
}

func opened(r record.Record) bool { return r.Kind == record.KindOpen }

func TestAnEagerHelloWaitsForTheTunnel(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-evil")
	c := w.dial(t).send(connectTo("slow.test", o.port))
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
	c.send(first)
	time.Sleep(20 * time.Millisecond) // for the bytes to arrive while the name is looked up
	close(w.answer)
	if got := c.expect(established).rest(); got != string(accessDenied) {
		t.Errorf("a hello for another host was answered with %q", got)
	}
	w.recorded(t, ended("name-mismatch"))
}

func TestNothingBehindAConnectIsAnotherRequest(t *testing.T) {
	t.Parallel()
	w, o := newWorld(t, openPolicy, nil), echo(t)
	c := w.dial(t).send(connectTo("slow.test", o.port))
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
	c.send(connectTo("allowed.test", o.port))
	time.Sleep(20 * time.Millisecond)
	close(w.answer)
	if got := c.rest(); strings.Count(got, " 200 ") != 1 {
		t.Errorf("the client read %q", got)
	}
	w.settled(t)
	if n := w.count(t, opened); n != 1 {
		t.Errorf("%d tunnels were opened", n)
	}
}

func TestARefusedPasswordIsTheEndOfItsConnection(t *testing.T) {
	t.Parallel()
	w, o := newWorld(t, openPolicy+"sandboxes: [{name: ci, token_file: ci.token}]\n", withToken), echo(t)
	with := func(encoded string) string {
		return "CONNECT allowed.test:" + o.port + " HTTP/1.1\r\nProxy-Authorization: Basic " + encoded + "\r\nHost: x\r\n\r\n"
	}
	c := w.dial(t).send(with("Y2k6d3Jvbmc=")) // ci:wrong
	w.recorded(t, opened)
	if got := c.send(with("Y2k6cmlnaHQ=")).rest(); !strings.HasPrefix(got, "HTTP/1.1 407 ") || strings.Contains(got, " 200 ") {
		t.Errorf("the client read %q", got)
	}
	w.settled(t)
	if n := w.count(t, opened); n != 1 {
		t.Errorf("%d attempts were heard on one connection", n)
	}
}

func TestAClientThatLeavesEarlyLeavesNothingBehind(t *testing.T) {
	t.Run("while its name is looked up", func(t *testing.T) {
		w, o := newWorld(t, openPolicy, nil), echo(t)
		c := w.dial(t).send(connectTo("slow.test", o.port))
		w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Close()
		time.Sleep(20 * time.Millisecond)
		close(w.answer)
		w.recorded(t, ended("client-left"))
		w.settled(t)
	})
	t.Run("with an ordinary close, while its upstream says nothing", func(t *testing.T) {
		w := newWorld(t, openPolicy, nil)
		hold := make(chan struct{})
		o := newOrigin(t, func(net.Conn) { <-hold })
		defer close(hold)
		c := w.dial(t).send(connectTo("slow.test", o.port))
		w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
		c.Close()
		time.Sleep(20 * time.Millisecond)
		close(w.answer)
		w.settled(t)
	})
	t.Run("before it has said anything", func(t *testing.T) {
		w := newWorld(t, openPolicy, nil)
		w.dial(t).Close()
		w.settled(t)
	})
	t.Run("in its tunnel, before a byte", func(t *testing.T) {
		w, o := newWorld(t, openPolicy, nil), echo(t)
		w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).Close()
		w.settled(t)
		if n := w.count(t, func(r record.Record) bool { return r.Kind == record.KindClose }); n != 1 {
			t.Errorf("%d close records", n)
		}
	})
}

func TestAPolicyChangeReachesAConnectionThatIsStillOpening(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	c := w.dial(t).send(connectTo("slow.test", o.port))
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
	w.Gate.Shut()
	close(w.answer)
	if got := c.rest(); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("the client read %q", got)
	}
	w.settled(t)
}

// TestABodyThatFailedIsNeverReadAsARequest has an upstream that answers and
// resets while the body, which looks like a request, is on its way.
func TestABodyThatFailedIsNeverReadAsARequest(t *testing.T) {
	for range 10 {
		w := newWorld(t, openPolicy, nil)
		o := newOrigin(t, func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				c.(*net.TCPConn).SetLinger(0)
			}
		})
		smuggled := strings.Repeat(get("allowed.test", o.port, "/smuggled"), 1000)
		c := w.dial(t)
		go io.WriteString(c, request("POST", "allowed.test", o.port, "/", "Content-Length: 1000000")+"\r\n"+smuggled)
		c.rest()
		w.settled(t)
		if n := w.count(t, func(r record.Record) bool {
			return r.Kind == record.KindRefused || r.HTTP != nil && r.HTTP.Path == "/smuggled"
		}); n > 0 {
			t.Fatalf("%d requests were made of a body", n)
		}
	}
}

func TestAnUpstreamThatBreaksOffDuringTheUploadIsToldOf(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := newOrigin(t, func(c net.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		c.(*net.TCPConn).SetLinger(0)
	})
	got := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Content-Length: 1000000") + "\r\nsome of it").rest()
	if !strings.HasPrefix(got, "HTTP/1.1 502 ") {
		t.Errorf("the client read %q", got)
	}
	w.recorded(t, ended("network-reset"))
}

func TestWhatAnUpstreamSaysUnaskedAnswersNothing(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := newOrigin(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			time.Sleep(10 * time.Millisecond)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
		}
	})
	c := w.dial(t)
	for range 2 {
		if _, body := c.send(get("allowed.test", o.port, "/")).response("GET"); body != "ok" {
			t.Fatalf("answered %q", body)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestTrailersCannotSpeakForEgressd(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := newOrigin(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Egressd-Id: FORGED\r\nX-Fine: yes\r\n\r\n")
		}
	})
	got := w.dial(t).send(get("allowed.test", o.port, "/", "Connection: close")).rest()
	if strings.Contains(got, "FORGED") || !strings.Contains(got, "X-Fine: yes") {
		t.Errorf("the client read %q", got)
	}
}

func TestABodyHasItsOwnTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits.Head = time.Second })
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) { io.Copy(rw, r.Body) })
	c := w.dial(t).send(get("allowed.test", o.port, "/"))
	c.response("GET")
	c.send(request("POST", "allowed.test", o.port, "/", "Content-Length: 4") + "\r\n")
	time.Sleep(w.Limits.Head + 100*time.Millisecond)
	if _, body := c.send("late").response("POST"); body != "late" {
		t.Errorf("answered %q", body)
	}
}

func TestShutdownDoesNotWaitForNames(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	w.dial(t).send(connectTo("slow.test", o.port))
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	w.Shutdown(ctx)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("Shutdown took %s", took)
	}
}

func TestAServerThatSpokeIsNoHTTPServer(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := newOrigin(t, func(c net.Conn) {
		io.WriteString(c, "220 ready\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		io.WriteString(c, "got "+line)
	})
	w.dial(t).send(connectTo("allowed.test", o.port)).expect(established + "220 ready\r\n").
		send("GET / HTTP/1.1\r\n").expect("got GET / HTTP/1.1\r\n")
}
