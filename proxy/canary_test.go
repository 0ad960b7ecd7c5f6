package proxy

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

const canaryPolicy = `version: 1
allow:
  - {host: "allowed.test:*", methods: [GET, POST], upgrade: websocket, id: all}
  - {host: "*.allowed.test:*", methods: [GET], id: below}
  - {host: "opaque.test:*", id: opaque}
unsafe_allow: ["127.0.0.1:*"]
`

const canaryText = "AKIAQ3EGCANARY77+x/Z9kLm"

// guarded gives a world a canary.
func guarded(t *testing.T, w *inspectWorld) {
	t.Helper()
	c, err := secret.NewCanaries([]secret.Canary{{Name: "aws-key", Text: []byte(canaryText)}})
	if err != nil {
		t.Fatal(err)
	}
	w.Gate.SetCanaries(c)
}

// leaked is what an origin was told.
type leaked struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *leaked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *leaked) check(t *testing.T, says, written string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(l.text.String(), written) {
		t.Errorf("%s: the origin was told all of it", says)
	}
}

// sounded waits for the record of an alarm and checks that no record has the canary.
func (w *inspectWorld) sounded(t *testing.T, where string) {
	t.Helper()
	s := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindSignal })
	if s.Signal.Name != "aws-key" || !strings.HasPrefix(s.Signal.Where, where) {
		t.Errorf("recorded %+v, want it in %s", s.Signal, where)
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Flow == s.Flow && r.Decision != nil && r.Decision.Class == string(policy.Canary)
	})
	text, err := os.ReadFile(filepath.Join(w.log, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{canaryText, strings.ToLower(canaryText), url.QueryEscape(canaryText), hex.EncodeToString([]byte(canaryText)), base64.StdEncoding.EncodeToString([]byte(canaryText))} {
		if bytes.Contains(text, []byte(form)) {
			t.Errorf("the log has %s", form)
		}
	}
}

func gzipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.String()
}

// bodies are how a canary may stand in what is sent.
func bodies() map[string]string {
	some := strings.Repeat(`{"role":"user","content":"words"}`, 500)
	return map[string]string{
		"plain":       some + canaryText + some,
		"base64":      some + base64.StdEncoding.EncodeToString([]byte("export KEY="+canaryText+"\n")),
		"hex":         some + hex.EncodeToString([]byte(canaryText)),
		"JSON":        some + strings.ReplaceAll(canaryText, "/", `\/`),
		"first byte":  canaryText,
		"over chunks": strings.Repeat("x", exchange.BodyBuffer-7) + canaryText + some,
	}
}

// TestNoCanaryInABody sends one in each form, in a body of known length and in pieces,
// over HTTP/1 and HTTP/2.
func TestNoCanaryInABody(t *testing.T) {
	all := bodies()
	all["gzip"], all["zstd"] = gzipped(all["plain"]), zstandard(randomText(4000)+canaryText)
	if strings.Contains(all["zstd"], canaryText[:12]) {
		t.Fatal("it can be read without being decompressed")
	}
	for says, body := range all {
		for _, how := range []string{"length", "chunked", "h2"} {
			t.Run(says+" "+how, func(t *testing.T) {
				w := newInspectWorld(t, canaryPolicy, nil)
				guarded(t, w)
				told := new(leaked)
				o := w.pki.secureOrigin(t, how == "h2", func(rw http.ResponseWriter, r *http.Request) { io.Copy(told, r.Body) }, nil)
				var status int
				switch how {
				case "length":
					c := w.inside(t, "allowed.test", o.port)
					go io.WriteString(c, insideRequest("POST", "allowed.test", o.port, "/up", "Content-Length: "+strconv.Itoa(len(body)))+body)
					resp, _ := c.response("POST")
					status = resp.StatusCode
				case "chunked":
					c := w.inside(t, "allowed.test", o.port)
					go func() {
						io.WriteString(c, insideRequest("POST", "allowed.test", o.port, "/up", "Transfer-Encoding: chunked"))
						r := rand.New(rand.NewPCG(1, uint64(len(body))))
						for at := 0; at < len(body); {
							n := min(1+r.IntN(3000), len(body)-at)
							io.WriteString(c, strconv.FormatInt(int64(n), 16)+"\r\n"+body[at:at+n]+"\r\n")
							at += n
						}
						io.WriteString(c, "0\r\n\r\n")
					}()
					resp, _ := c.response("POST")
					status = resp.StatusCode
				case "h2":
					resp, _ := roundTrip(t, w.h2(t, "allowed.test", o.port), "POST", "https://allowed.test:"+o.port+"/up", strings.NewReader(body))
					status = resp.StatusCode
				}
				if status != 403 {
					t.Errorf("answered %d", status)
				}
				w.sounded(t, "body")
				told.check(t, says, canaryText)
			})
		}
	}
}

// TestBodiesWithoutACanaryPassUnchanged sends what begins like one, and what is packed.
func TestBodiesWithoutACanaryPassUnchanged(t *testing.T) {
	w := newInspectWorld(t, canaryPolicy, nil)
	guarded(t, w)
	for _, h2 := range []bool{false, true} {
		o := w.pki.secureOrigin(t, h2, func(rw http.ResponseWriter, r *http.Request) { io.Copy(rw, r.Body) }, nil)
		random := make([]byte, 3<<19)
		for i := range random {
			random[i] = byte(rand.Uint32())
		}
		for says, body := range map[string]string{
			"nearly": canaryText[:20] + "x" + canaryText[:23], "packed": gzipped(strings.Repeat("words", 10000)),
			"large": gzipped(string(random)), "no gzip": "\x1f\x8b and then nothing", "one byte": "A",
		} {
			var got string
			if h2 {
				_, got = roundTrip(t, w.h2(t, "allowed.test", o.port), "POST", "https://allowed.test:"+o.port+"/up", strings.NewReader(body))
			} else {
				c := w.inside(t, "allowed.test", o.port)
				go io.WriteString(c, insideRequest("POST", "allowed.test", o.port, "/up", "Content-Length: "+strconv.Itoa(len(body)))+body)
				_, got = c.response("POST")
			}
			if got != body {
				t.Errorf("%s (h2 %v): %d bytes came as %d", says, h2, len(body), len(got))
			}
		}
	}
}

// TestNoCanaryInAHead names one in every part of a request.
func TestNoCanaryInAHead(t *testing.T) {
	coded := base64.StdEncoding.EncodeToString([]byte("user:" + canaryText))
	for where, head := range map[string]struct{ path, field string }{
		"path":                 {"/a/" + url.PathEscape(canaryText), "X: y"},
		"query":                {"/a?k=" + url.QueryEscape(canaryText), "X: y"},
		"header authorization": {"/a", "Authorization: Basic " + coded},
		"header cookie":        {"/a", "Cookie: a=b; c=" + hex.EncodeToString([]byte(canaryText))},
	} {
		t.Run(where, func(t *testing.T) {
			w := newInspectWorld(t, canaryPolicy, nil)
			guarded(t, w)
			o := w.pki.secureOrigin(t, false, func(rw http.ResponseWriter, r *http.Request) { t.Error("it went up") }, nil)
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideGet("allowed.test", o.port, head.path, head.field))
			resp, body := c.response("GET")
			reply{resp, body}.refused(t, 403, policy.Canary)
			if strings.Contains(body, "aws-key") {
				t.Errorf("the reply names the canary: %s", body)
			}
			w.sounded(t, where)
		})
	}
}

// TestNoCanaryInAName asks for a host whose labels hold one.
func TestNoCanaryInAName(t *testing.T) {
	w := newInspectWorld(t, canaryPolicy, nil)
	guarded(t, w)
	coded := hex.EncodeToString([]byte(canaryText))
	c := w.dial(t).send(connectTo(coded[:30]+"."+coded[30:]+".allowed.test", "443"))
	resp, body := c.response("CONNECT")
	reply{resp, body}.refused(t, 403, policy.Canary)
	w.sounded(t, "name")
	r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindOpen })
	if r.Dst.Host != "*.allowed.test" {
		t.Errorf("recorded as %s", r.Dst.Host)
	}
}

// TestNoCanaryInAMessage sends one through a WebSocket, in frames that cut it up.
func TestNoCanaryInAMessage(t *testing.T) {
	for says, frames := range map[string]func(*rand.Rand) string{
		"one frame":  func(r *rand.Rand) string { return frame(r, 0x81, "secret: "+canaryText+" !") },
		"many":       func(r *rand.Rand) string { return cutUp(r, base64.StdEncoding.EncodeToString([]byte("xy"+canaryText))) },
		"long frame": func(r *rand.Rand) string { return frame(r, 0x82, strings.Repeat("y", 70_000)+canaryText) },
		"ping":       func(r *rand.Rand) string { return frame(r, 0x89, canaryText) },
		"unmasked":   func(r *rand.Rand) string { return "\x82\x98mask" + canaryText },
	} {
		for seed := range uint64(4) {
			t.Run(says, func(t *testing.T) {
				w := newInspectWorld(t, canaryPolicy, nil)
				guarded(t, w)
				told := new(leaked)
				o := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, func(c net.Conn) { io.Copy(told, c) }) })
				c := w.inside(t, "allowed.test", o.port)
				c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
				if status := c.head(); status != http.StatusSwitchingProtocols {
					t.Fatalf("answered %d", status)
				}
				r := rand.New(rand.NewPCG(seed, 2))
				c.send(emptyFrame).expect(emptyFrame[:3])
				text := frames(r)
				go func() {
					for at := 0; at < len(text); {
						n := min(1+r.IntN(5000), len(text)-at)
						if _, err := io.WriteString(c, text[at:at+n]); err != nil {
							return
						}
						at += n
					}
				}()
				w.recorded(t, ended(string(policy.Canary)))
				w.sounded(t, map[bool]string{true: "control message", false: "message"}[says == "ping"])
				told.mu.Lock()
				if n := told.text.Len(); n > len(text)-12 {
					t.Errorf("the origin was told %d bytes of %d", n, len(text))
				}
				told.mu.Unlock()
			})
		}
	}
}

// emptyFrame is an empty message of a client, the first three bytes of which talk repeats.
const emptyFrame = "\x81\x80mask"

// frame is one masked frame (RFC 6455 §5.2).
func frame(r *rand.Rand, first byte, text string) string {
	b := []byte{first}
	switch n := len(text); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = append(b, 0x80|126, byte(n>>8), byte(n))
	default:
		b = append(b, 0x80|127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	mask := [4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}
	b = append(b, mask[:]...)
	for i := range len(text) {
		b = append(b, text[i]^mask[i&3])
	}
	return string(b)
}

func cutUp(r *rand.Rand, text string) string {
	var b strings.Builder
	first := byte(1)
	for len(text) > 0 {
		n := min(r.IntN(9), len(text))
		b.WriteString(frame(r, first, text[:n]))
		if r.IntN(4) == 0 {
			b.WriteString(frame(r, 0x89, "ping"))
		}
		first, text = 0, text[n:]
	}
	return b.String() + frame(r, 0x80, "")
}

// TestMessagesWithoutACanaryPassAtOnce speaks in turns, each message ending as a canary
// begins by accident.
func TestMessagesWithoutACanaryPassAtOnce(t *testing.T) {
	w := newInspectWorld(t, canaryPolicy, nil)
	guarded(t, w)
	o := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, func(c net.Conn) { io.Copy(c, c) }) })
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/live", append(webSocketFields, "Sec-WebSocket-Extensions: permessage-deflate")...))
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	c.send(emptyFrame).expect(emptyFrame)
	r := rand.New(rand.NewPCG(3, 3))
	c.SetDeadline(time.Now().Add(20 * time.Second))
	for i := range 200 {
		f := frame(r, 0x81, strings.Repeat("z", r.IntN(300))+canaryText[:i%8])
		c.send(f).expect(f)
	}
}

// TestNoCanaryInFirstBytes begins a tunnel that is not TLS with one.
func TestNoCanaryInFirstBytes(t *testing.T) {
	w := newInspectWorld(t, canaryPolicy, nil)
	guarded(t, w)
	told := new(leaked)
	o := newOrigin(t, func(c net.Conn) { io.Copy(told, c) })
	c := w.dial(t).send(connectTo("opaque.test", o.port)).expect(established)
	c.send("\x00\x01put " + canaryText + "\n").rest()
	w.recorded(t, ended(string(policy.Canary)))
	w.sounded(t, "first bytes")
	told.check(t, "first bytes", canaryText)
}

// TestFramesThatNoClientSendsAreRefused: an upstream that takes them could read in them
// what was not searched.
func TestFramesThatNoClientSendsAreRefused(t *testing.T) {
	for name, says := range map[string]string{
		"a reserved bit":              "\xc1\x83mask\x00\x00\x00",
		"the second":                  "\xa1\x83mask\x00\x00\x00",
		"the third":                   "\x91\x83mask\x00\x00\x00",
		"of a control frame":          "\xc9\x81mask\x00",
		"unmasked":                    "\x81\x03abc",
		"a control frame unmasked":    "\x89\x01a",
		"no beginning":                "\x80\x81mask\x00",
		"another beginning":           "\x01\x81mask\x00\x81\x81mask\x00",
		"of no kind":                  "\x83\x81mask\x00",
		"a control frame of no kind":  "\x8b\x81mask\x00",
		"a control frame in parts":    "\x09\x81mask\x00",
		"a long control frame":        "\x89\xfe\x01\x00mask" + strings.Repeat("\x00", 256),
		"longer than there are bytes": "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xffmask",
		"a length in two bytes":       "\x82\xfe\x00\x01mask\x00",
		"a length in eight bytes":     "\x82\xff\x00\x00\x00\x00\x00\x00\x00\x01mask\x00",
		"a close frame of a byte":     "\x88\x81mask\x00",
		"a message behind the close":  "\x88\x80mask\x81\x81mask\x00",
		"no frames":                   "HELLO",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newInspectWorld(t, canaryPolicy, nil)
			guarded(t, w)
			told := new(leaked)
			o := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, func(c net.Conn) { io.Copy(told, c) }) })
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
			if status := c.head(); status != http.StatusSwitchingProtocols {
				t.Fatalf("answered %d", status)
			}
			c.send(emptyFrame).expect(emptyFrame[:3])
			c.send(says + frame(rand.New(rand.NewPCG(1, 1)), 0x89, "behind"))
			w.recorded(t, ended(string(policy.MalformedRequest)))
			told.check(t, name, says)
		})
	}
}

// TestFramesThatClientsSendPass sends every kind of frame, in pieces of several sizes.
func TestFramesThatClientsSendPass(t *testing.T) {
	w := newInspectWorld(t, canaryPolicy, nil)
	guarded(t, w)
	o := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, func(c net.Conn) { io.Copy(c, c) }) })
	r := rand.New(rand.NewPCG(4, 4))
	some := frame(r, 0x81, "text") + frame(r, 0x82, strings.Repeat("b", 126)) + frame(r, 0x01, "") + frame(r, 0x89, strings.Repeat("p", 125)) +
		frame(r, 0x00, "more") + frame(r, 0x8a, "") + frame(r, 0x80, "end")
	end := frame(r, 0x88, "\x03\xe8bye") + frame(r, 0x8a, "pong")
	for piece, text := range map[int]string{1: some + end, 7: some + end, 1000: some + frame(r, 0x82, strings.Repeat("c", 1<<16)) + end} {
		c := w.inside(t, "allowed.test", o.port)
		c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
		if status := c.head(); status != http.StatusSwitchingProtocols {
			t.Fatalf("answered %d", status)
		}
		c.send(emptyFrame).expect(emptyFrame)
		go func() {
			for at := 0; at < len(text); at += piece {
				if _, err := io.WriteString(c, text[at:min(at+piece, len(text))]); err != nil {
					return
				}
			}
		}()
		c.expect(text)
		c.Close()
	}
}
