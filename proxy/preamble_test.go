package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// worded is a world in which what a word begins has little time.
func worded(t *testing.T) *world {
	return newWorld(t, openPolicy, func(s *Server) { s.Limits.Hello = 2 * time.Second })
}

// awaits is an upstream that answers the word it is sent, and sends back what follows.
func awaits(t *testing.T, word string) *origin {
	return newOrigin(t, func(c net.Conn) {
		got := make([]byte, len(word))
		if _, err := io.ReadFull(c, got); err == nil && string(got) == word {
			io.WriteString(c, "OK")
			io.Copy(c, c)
		}
	})
}

func TestAClientMayWaitForAnAnswerToAWord(t *testing.T) {
	for _, word := range []string{
		"JDWP-Handshake", // a debugger of Java
		"HZC",            // a member of Hazelcast
		"a",              // a key that somebody pressed
		"\x16", "\x15\x01", "\x80\x2e", "PRI * HTTP",
		"0033git-upload-pack /project.git\x00host=allowed.test\x00",
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			w, o := worded(t), awaits(t, word)
			w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(word).expect("OK").send("\x00more").expect("\x00more").Close()
			if r := w.recorded(t, ended("closed")); r.Bytes.Up != int64(len(word)+len("\x00more")) {
				t.Errorf("recorded %+v", r.Bytes)
			}
		})
	}
}

// TestWhatFollowsAWordIsJudgedWithIt has words that turn out to begin what is no word.
func TestWhatFollowsAWordIsJudgedWithIt(t *testing.T) {
	honest, evil := hello(t, "base-allowed"), hello(t, "base-evil")
	for says, row := range map[string]struct {
		word, then string
		passes     bool
		class      string
	}{
		"a hello for the host":               {word: honest[:1], then: honest[1:], passes: true},
		"a hello for another host":           {word: evil[:1], then: evil[1:], class: "name-mismatch"},
		"half a hello":                       {word: evil[:1], then: evil[1:100], class: "first-bytes-late"},
		"a hello that no parser should take": {word: "\x15", then: "\x03\x01\x00\x02\x01\x00" + evil, class: "not-tls"},
		"a request whose line never ends":    {word: "GE", then: "T /secret HTTP/1.1", class: "first-bytes-late"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w, o := worded(t), newWitness(t, "")
			c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(row.word)
			o.await(t, row.word)
			c.send(row.then)
			if row.passes {
				o.await(t, row.word+row.then)
				c.Close()
				w.recorded(t, ended("closed"))
				return
			}
			c.rest()
			w.recorded(t, ended(row.class))
			if got := o.got(); got != row.word {
				t.Errorf("the upstream got %d bytes behind the word", len(got)-len(row.word))
			}
		})
	}
}

func (w *witness) await(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); w.got() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the upstream got %q", w.got())
		}
	}
}

// TestARequestBehindAWordIsDecided has one begin with a word, which went to the upstream, and
// name the tunnel's host or another one.
func TestARequestBehindAWordIsDecided(t *testing.T) {
	for host, status := range map[string]string{"allowed.test": "HTTP/1.1 204 ", "evil.test": "HTTP/1.1 421 "} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			w, begun := worded(t), make(chan bool, 2)
			o := newOrigin(t, func(c net.Conn) {
				r := bufio.NewReader(c)
				r.Peek(len("GE"))
				begun <- true
				if _, err := http.ReadRequest(r); err == nil {
					io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
				}
			})
			c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send("GE")
			<-begun
			c.send("T / HTTP/1.1\r\nHost: " + host + ":" + o.port + "\r\nConnection: close\r\n\r\n")
			if got := c.rest(); !strings.HasPrefix(got, status) {
				t.Errorf("a request for %s was answered %q", host, got)
			}
			if r := w.recorded(t, ended("http")); r.Bytes.Up != int64(len("GE")) {
				t.Errorf("the tunnel's record has %+v", r.Bytes)
			}
			if reached := len(begun) > 0; reached != (host == "allowed.test") {
				t.Errorf("a request for %s reached the upstream: %v", host, reached)
			}
		})
	}
}

// TestNoWordPasses where rules look at requests, since all that is said there has to be one, and
// where it begins a request for certain.
func TestNoWordPasses(t *testing.T) {
	limits := Limits{Hello: 200 * time.Millisecond}
	for says, row := range map[string]struct {
		host, word string
	}{
		"where rules look at requests": {"allowed.test", "GE"},
		"that begins a request":        {"opaque.test", "GET /secret"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w, o := newLimitedWorld(t, inspectPolicy, limits, nil), newWitness(t, "")
			w.dial(t).send(connectTo(row.host, o.port)).expect(established).send(row.word).rest()
			w.recorded(t, ended("first-bytes-late"))
			if o.got() != "" {
				t.Errorf("the upstream got %q", o.got())
			}
		})
	}
}
