package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// A bodyReading policy lets a request pass whose body begins with "good", by as much of it as it needs under a path. It reads
// no other body.
type bodyReading struct {
	seen  chan string
	needs map[string]policy.Needs
}

func (b bodyReading) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	h := r.HTTP
	if h == nil {
		return policy.Decision{Verdict: policy.Inspect, Needs: policy.NeedsPath, Rule: "reads"}, nil
	}
	needs := b.needs[h.Path]
	switch {
	case needs == 0:
		return policy.Decision{Verdict: policy.Allow, Rule: "reads"}, nil
	case h.Unread() && (h.Body == nil || needs == policy.NeedsBody || len(h.Body.Bytes) < 4):
		return policy.Decision{Verdict: policy.Inspect, Needs: needs, Rule: "reads"}, nil
	}
	var body []byte
	if h.Body != nil {
		body = h.Body.Bytes
	}
	if needs == policy.NeedsBody {
		b.seen <- string(body)
	}
	if bytes.HasPrefix(body, []byte("good")) {
		return policy.Decision{Verdict: policy.Allow, Rule: "reads"}, nil
	}
	return policy.Decision{Class: policy.BodyDenied, Rule: "reads", Reason: "the body is not good"}, nil
}

const bodyPolicy = "version: 1\nallow: [\"allowed.test:*\"]\nunsafe_allow: [\"127.0.0.1:*\"]\n"

func newBodyWorld(t *testing.T, limits Limits) (*inspectWorld, chan string) {
	t.Helper()
	w := newLimitedWorld(t, bodyPolicy, limits, nil)
	seen := make(chan string, 16)
	w.obeyBodies(t, seen, map[string]policy.Needs{"/start": policy.NeedsBodyStart, "/whole": policy.NeedsBody})
	return w, seen
}

// obeyBodies puts a policy in force that reads bodies.
func (w *inspectWorld) obeyBodies(t *testing.T, seen chan string, needs map[string]policy.Needs) {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(bodyPolicy))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{bodyReading{seen, needs}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "reads bodies"); err != nil {
		t.Fatal(err)
	}
}

// TestABodyIsReadBeforeItIsDecided: nothing of a request goes up before, and all of it after.
func TestABodyIsReadBeforeItIsDecided(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w, seen := newBodyWorld(t, Limits{})
		up := make(chan string, 16)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			up <- r.URL.Path + " " + string(body)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		long := "good" + strings.Repeat("x", 300_000)
		for _, body := range []io.Reader{strings.NewReader(long), io.MultiReader(strings.NewReader(long))} { // the second has no length
			if r := ask(t, rt, "POST", o.url("allowed.test", "/whole"), body); r.StatusCode != 200 {
				t.Fatalf("answered %d %s", r.StatusCode, r.body)
			}
			if got := <-seen; got != long {
				t.Errorf("the policy read %d bytes, want %d", len(got), len(long))
			}
			if got := <-up; got != "/whole "+long {
				t.Errorf("%d bytes went up", len(got))
			}
		}
		ask(t, rt, "POST", o.url("allowed.test", "/whole"), strings.NewReader("bad")).refused(t, 403, policy.BodyDenied)
		ask(t, rt, "POST", o.url("allowed.test", "/start"), strings.NewReader("bad!")).refused(t, 403, policy.BodyDenied)
		ask(t, rt, "POST", o.url("allowed.test", "/whole"), nil).refused(t, 403, policy.BodyDenied)
		if r := ask(t, rt, "POST", o.url("allowed.test", "/other"), strings.NewReader("bad")); r.StatusCode != 200 {
			t.Errorf("a body that no rule reads: %d", r.StatusCode)
		}
		if got := <-up; got != "/other bad" || len(up) > 0 {
			t.Errorf("went up: %q and %d more", got, len(up))
		}
		denied := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest && r.Decision.Action == "deny" })
		sum := sha256.Sum256([]byte("bad"))
		if denied.Decision.Class != string(policy.BodyDenied) || denied.HTTP.Path != "/whole" || denied.Body == nil || denied.Body.Bytes != 3 || denied.Body.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("recorded %+v %+v %+v", denied.Decision, denied.HTTP, denied.Body)
		}
		for _, r := range w.records(t) {
			if r.Body != nil && (r.Kind != record.KindRequest || r.HTTP.Path == "/other" || (r.Body.SHA256 == "") != (r.HTTP.Path == "/start")) {
				t.Errorf("recorded %+v %+v", r, r.Body)
			}
		}
		w.nothingHeld(t)
	})
}

// nothingHeld waits until no memory is held for bodies.
func (w *inspectWorld) nothingHeld(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		held, _ := w.forwarder.BodyMemory.Held()
		if held == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are held after all requests", held)
		}
	}
}

// TestTheStartOfABodyIsReadAndTheRestStreams: the upstream has the start while the client still sends.
func TestTheStartOfABodyIsReadAndTheRestStreams(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w, _ := newBodyWorld(t, Limits{BodyBytes: 100})
		begun, up := make(chan string, 1), make(chan int64, 1)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			first := make([]byte, 5)
			io.ReadFull(r.Body, first)
			begun <- string(first)
			rest, _ := io.Copy(io.Discard, r.Body)
			up <- rest
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		body, sender := io.Pipe()
		answer := make(chan reply, 1)
		go func() { answer <- ask(t, rt, "POST", o.url("allowed.test", "/start"), body) }()
		for _, part := range []string{"g", "oo", "d!"} {
			io.WriteString(sender, part)
		}
		if got := <-begun; got != "good!" {
			t.Errorf("the upstream read %q first", got)
		}
		io.WriteString(sender, strings.Repeat("x", 200_000))
		sender.Close()
		if got := <-up; got != 200_000 {
			t.Errorf("%d bytes came after", got)
		}
		if r := <-answer; r.StatusCode != 200 {
			t.Errorf("answered %d", r.StatusCode)
		}
		w.nothingHeld(t)
	})
}

// TestABodyThatIsHeldIsBounded, by its length and by what the sandbox has open besides.
func TestABodyThatIsHeldIsBounded(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w, seen := newBodyWorld(t, Limits{BodyBytes: 70_000})
		o := w.pki.secureOrigin(t, overH2, func(http.ResponseWriter, *http.Request) {}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		most := "good" + strings.Repeat("x", 70_000-len("good"))
		if r := ask(t, rt, "POST", o.url("allowed.test", "/whole"), strings.NewReader(most)); r.StatusCode != 200 || len(<-seen) != 70_000 {
			t.Errorf("as long as it may be: %d", r.StatusCode)
		}
		for len(seen) > 0 {
			<-seen
		}
		ask(t, rt, "POST", o.url("allowed.test", "/whole"), strings.NewReader(most+"x")).refused(t, 413, policy.BodyTooLarge)
		ask(t, rt, "POST", o.url("allowed.test", "/whole"), io.MultiReader(strings.NewReader(most+"x"))).refused(t, 413, policy.BodyTooLarge)
		if len(seen) > 0 {
			t.Error("the policy decided a part of a body")
		}
		w.nothingHeld(t)
		w.forwarder.BodyMemory.SetMost(60_000)
		ask(t, rt, "POST", o.url("allowed.test", "/whole"), strings.NewReader(most)).refused(t, 429, policy.TooManyFlows)
		w.nothingHeld(t)
	})
}

// TestABodyThatBreaksOffIsRefused: the policy is never asked about a part.
func TestABodyThatBreaksOffIsRefused(t *testing.T) {
	t.Parallel()
	w, seen := newBodyWorld(t, Limits{Idle: 500 * time.Millisecond})
	o := w.pki.secureOrigin(t, false, func(http.ResponseWriter, *http.Request) { t.Error("it went up") }, nil)
	for says, row := range map[string]struct{ field, body string }{
		"a bad chunk":      {"Transfer-Encoding: chunked", "4\r\ngood\r\nx\r\n"},
		"late":             {"Content-Length: 10", "good"},
		"a chunk, late":    {"Transfer-Encoding: chunked", "4\r\ngood\r\n"},
		"a chunk too long": {"Transfer-Encoding: chunked", "4\r\ngood!\r\n0\r\n\r\n"},
	} {
		c := w.inside(t, "allowed.test", o.port)
		c.send(insideRequest("POST", "allowed.test", o.port, "/whole", row.field) + row.body)
		resp, body := c.response("POST")
		if resp.StatusCode != 400 || !strings.Contains(body, `"class":"malformed-request"`) {
			t.Errorf("%s: answered %d %s", says, resp.StatusCode, body)
		}
	}
	if len(seen) > 0 {
		t.Error("the policy decided a part of a body")
	}
	w.nothingHeld(t)
}

// TestAClientThatWaitsForContinueIsToldOnceItsHeadIsAllowed, by egressd, and not where the head is refused. Trailers, which
// no rule reads, do not go up.
func TestAClientThatWaitsForContinueIsToldOnceItsHeadIsAllowed(t *testing.T) {
	t.Parallel()
	w, seen := newBodyWorld(t, Limits{BodyBytes: 1000})
	o := newWitness(t, "")
	c := w.dial(t)
	c.send(request("POST", "allowed.test", o.port, "/whole", "Transfer-Encoding: chunked", "Expect: 100-continue") + "\r\n")
	c.expect("HTTP/1.1 100 Continue\r\n\r\n")
	c.send("4\r\ngood\r\n0\r\nX-After: late\r\n\r\n")
	if got := <-seen; got != "good" {
		t.Errorf("the policy read %q", got)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.HasSuffix(o.got(), "0\r\n\r\n"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("went up: %q", o.got())
		}
	}
	if got := o.got(); strings.Contains(got, "X-After") || strings.Contains(got, "Expect") {
		t.Errorf("went up: %q", got)
	}
	c.Conn.(*net.TCPConn).SetLinger(0) // the upstream never answers
	c.Close()
	c = w.dial(t)
	c.send(request("POST", "allowed.test", o.port, "/whole", "Content-Length: 1001", "Expect: 100-continue") + "\r\n")
	if got := c.rest(); !strings.HasPrefix(got, "HTTP/1.1 413 ") {
		t.Errorf("a body that is too long: answered %q", got)
	}
}

// TestAPolicyThatBeginsToReadBodiesCutsWhatWasNotRead, and leaves alone what was.
func TestAPolicyThatBeginsToReadBodiesCutsWhatWasNotRead(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w, seen := newBodyWorld(t, Limits{})
		arrived, finish := make(chan string, 2), make(chan struct{})
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			arrived <- r.URL.Path
			select {
			case <-finish:
			case <-r.Context().Done():
			}
		}, nil)
		answers := make(chan reply, 1)
		go func() {
			answers <- ask(t, w.visitor(t, overH2, "allowed.test", o.port), "POST", o.url("allowed.test", "/whole"), strings.NewReader("good"))
		}()
		<-arrived
		cut := make(chan error, 1)
		go func() {
			r, _ := http.NewRequest("POST", o.url("allowed.test", "/other"), strings.NewReader("bad"))
			resp, err := w.visitor(t, overH2, "allowed.test", o.port).RoundTrip(r)
			if err == nil {
				resp.Body.Close()
			}
			cut <- err
		}()
		<-arrived
		finished := sync.OnceFunc(func() { close(finish) })
		defer finished()
		w.obeyBodies(t, seen, map[string]policy.Needs{"/whole": policy.NeedsBody, "/other": policy.NeedsBody})
		select {
		case err := <-cut:
			if err == nil {
				t.Error("a request whose body was not read is answered")
			}
		case <-time.After(10 * time.Second):
			t.Error("a request whose body was not read goes on")
		}
		finished()
		if r := <-answers; r.StatusCode != 200 {
			t.Errorf("a request whose body was read: %d", r.StatusCode)
		}
	})
}
