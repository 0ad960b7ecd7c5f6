package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

const (
	bothPaths = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/stays", "/goes"], upgrade: websocket}
unsafe_allow: ["127.0.0.1:*"]
`
	onePath = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/stays"], upgrade: websocket}
unsafe_allow: ["127.0.0.1:*"]
`
)

// soon fails the test where done is not closed in good time. A cut takes a
// second at most; a machine that is busy gets more.
func soon(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: still not, after 30 s", what)
	}
}

// A slowOrigin begins each response and ends it when told to.
type slowOrigin struct {
	*origin
	release chan struct{}
	gone    chan struct{} // gets something when a client has left
}

func newSlowOrigin(t *testing.T, w *inspectWorld, overH2 bool) *slowOrigin {
	s := &slowOrigin{release: make(chan struct{}), gone: make(chan struct{}, 16)}
	s.origin = w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		control.EnableFullDuplex() // or the body would be waited for
		io.WriteString(rw, "begin ")
		control.Flush()
		select {
		case <-s.release:
			io.WriteString(rw, "end")
		case <-r.Context().Done():
			s.gone <- struct{}{}
		}
	}, nil)
	return s
}

func begun(t *testing.T, resp *http.Response) {
	t.Helper()
	var b [6]byte
	if _, err := io.ReadFull(resp.Body, b[:]); err != nil || string(b[:]) != "begin " {
		t.Fatalf("read %q, %v", b, err)
	}
}

// TestAPolicyCutsRequestsInProgress: of two, only the one that is now refused.
func TestAPolicyCutsRequestsInProgress(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, bothPaths, nil)
		o := newSlowOrigin(t, w, overH2)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		stays := start(t, rt, "GET", o.url("allowed.test", "/stays"), nil)
		goes := start(t, rt, "GET", o.url("allowed.test", "/goes"), nil)
		begun(t, stays)
		begun(t, goes)
		w.obey(t, onePath)
		soon(t, "the upstream learns of the cut", o.gone)
		if text, err := io.ReadAll(goes.Body); err == nil {
			t.Errorf("the refused response ended well, with %q", text)
		}
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/goes")))); end.Outcome != "cut" {
			t.Errorf("ended %+v", end)
		}
		close(o.release)
		if text, err := io.ReadAll(stays.Body); err != nil || string(text) != "end" {
			t.Errorf("the allowed response went on with %q, %v", text, err)
		}
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/stays")))); end.Outcome != "closed" {
			t.Errorf("ended %+v", end)
		}
	})
}

// TestAPolicyCutsUploadsInProgress has a body under way and no response yet.
func TestAPolicyCutsUploadsInProgress(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, bothPaths, nil)
		began, cut := make(chan struct{}), make(chan struct{})
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			io.ReadFull(r.Body, make([]byte, 5))
			close(began)
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				t.Error("the upstream took the body for complete")
			}
			close(cut)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		body, feed := io.Pipe()
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			r, _ := http.NewRequestWithContext(t.Context(), "POST", o.url("allowed.test", "/goes"), body)
			if resp, err := rt.RoundTrip(r); err == nil {
				t.Errorf("answered %s", resp.Status)
				resp.Body.Close()
			}
		}()
		io.WriteString(feed, "begin")
		soon(t, "the body arrives", began)
		w.obey(t, onePath)
		soon(t, "the upstream learns of the cut", cut)
		feed.Close()
		soon(t, "the client learns of the cut", answered)
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/goes")))); end.Outcome != "cut" {
			t.Errorf("ended %+v", end)
		}
	})
}

func TestAPolicyDecidesTheNextRequest(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, bothPaths, nil)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "fine") }, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		if r := ask(t, rt, "GET", o.url("allowed.test", "/goes"), nil); r.StatusCode != 200 {
			t.Fatal(r.all())
		}
		w.obey(t, onePath)
		ask(t, rt, "GET", o.url("allowed.test", "/goes"), nil).refused(t, 403, policy.PathDenied)
		if r := ask(t, rt, "GET", o.url("allowed.test", "/stays"), nil); r.StatusCode != 200 {
			t.Error(r.all())
		}
	})
}

// TestAPolicyCutsTunnels: all of a host that is refused altogether, idle ones
// too.
func TestAPolicyCutsTunnels(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, bothPaths, nil)
		o := newSlowOrigin(t, w, overH2)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		goes := start(t, rt, "GET", o.url("allowed.test", "/goes"), nil)
		begun(t, goes)
		w.obey(t, "version: 1\nallow: [other.test]\n")
		soon(t, "the upstream learns of the cut", o.gone)
		if text, err := io.ReadAll(goes.Body); err == nil {
			t.Errorf("the response ended well, with %q", text)
		}
		w.closed(t)
		if n := w.count(t, ended("cut")); n != 2 {
			t.Errorf("%d flows were cut, want the tunnel and its request", n)
		}
	})
}

func TestAPolicyCutsWebSockets(t *testing.T) {
	w := newInspectWorld(t, bothPaths, nil)
	gone := make(chan struct{}, 2)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		talk(t, c, func(c net.Conn) { io.Copy(c, c) })
		gone <- struct{}{}
	})
	open := func(path string) *testClient {
		c := w.inside(t, "allowed.test", o.port)
		c.send(insideGet("allowed.test", o.port, path, webSocketFields...))
		if status := c.head(); status != http.StatusSwitchingProtocols {
			t.Fatalf("answered %d", status)
		}
		return c.send("abc").expect("abc")
	}
	stays, goes := open("/stays"), open("/goes")
	w.obey(t, onePath)
	select {
	case <-gone:
	case <-time.After(30 * time.Second):
		t.Fatal("the upstream does not learn of the cut")
	}
	if _, err := goes.in.ReadByte(); err == nil {
		t.Error("the refused WebSocket goes on")
	}
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/goes")))); end.Outcome != "cut" {
		t.Errorf("ended %+v", end)
	}
	stays.send("more").expect("more").Close()
	w.closed(t)
}

// TestAPolicyThatHasToLookCutsOpaqueTunnels, and leaves those alone that it
// need not look into.
func TestAPolicyThatHasToLookCutsOpaqueTunnels(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.rawOrigin(t, func(c net.Conn) { io.Copy(c, c) })
	c := w.dial(t).send(connectTo("opaque.test", o.port)).expect(established)
	secure := tls.Client(c.Conn, &tls.Config{ServerName: "opaque.test", RootCAs: w.pki.Pool})
	echoed := func() error {
		if _, err := io.WriteString(secure, "abc"); err != nil {
			return err
		}
		_, err := io.ReadFull(secure, make([]byte, 3))
		return err
	}
	if err := echoed(); err != nil {
		t.Fatal(err)
	}
	w.obey(t, inspectPolicy+"deny: [evil.test]\n")
	if err := echoed(); err != nil {
		t.Fatalf("under a policy that says the same of it: %v", err)
	}
	w.obey(t, "version: 1\nallow: [{host: \"opaque.test:*\", methods: [GET]}]\nunsafe_allow: [\"127.0.0.1:*\"]\n")
	if _, err := secure.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel goes on unread")
	}
	w.closed(t)
	if n := w.count(t, ended("cut")); n != 1 {
		t.Errorf("%d flows were cut", n)
	}
}
