package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
)

// emptyKinds are frames that carry nothing, of which an end may send so many.
var emptyKinds = map[string]func(*http2.Framer){
	"PING":                 func(f *http2.Framer) { f.WritePing(false, [8]byte{}) },
	"SETTINGS":             func(f *http2.Framer) { f.WriteSettings() },
	"WINDOW_UPDATE":        func(f *http2.Framer) { f.WriteWindowUpdate(0, 1) },
	"PRIORITY":             func(f *http2.Framer) { f.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
	"RST_STREAM":           func(f *http2.Framer) { f.WriteRSTStream(1, http2.ErrCodeCancel) },
	"DATA":                 func(f *http2.Framer) { f.WriteData(1, false, nil) },
	"DATA of padding":      func(f *http2.Framer) { f.WriteDataPadded(1, false, nil, make([]byte, 7)) },
	"CONTINUATION":         func(f *http2.Framer) { f.WriteContinuation(1, false, nil) },
	"GOAWAY":               func(f *http2.Framer) { f.WriteGoAway(1<<31-1, 0, []byte("bye")) },
	"what nobody knows of": func(f *http2.Framer) { f.WriteRawFrame(0xfa, 0, 1, []byte("x")) },
}

// sentAs returns n frames as they are sent.
func sentAs(n int, write func(*http2.Framer)) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	for range n {
		write(f)
	}
	return b.Bytes()
}

// inPieces has e see b in pieces of a size.
func (e *emptyFrameLimit) inPieces(b []byte, size int) (err error) {
	for len(b) > 0 && err == nil {
		n := min(size, len(b))
		err, b = e.received(b[:n]), b[n:]
	}
	return err
}

func TestFramesThatCarryNothingAreCounted(t *testing.T) {
	for says, write := range emptyKinds {
		for _, size := range []int{1, 7, 4096} {
			e := newEmptyFrameLimit(true)
			if err := e.inPieces(sentAs(emptyAtOnce, write), size); err != nil {
				t.Errorf("%s, %d bytes at a time: %v", says, size, err)
			}
			if err := e.inPieces(sentAs(emptyAtOnce, write), size); !errors.Is(err, errEmptyFrames) {
				t.Errorf("twice as many of %s, %d bytes at a time: %v", says, size, err)
			}
		}
	}
	if newEmptyFrameLimit(true).received(sentAs(2*emptyAtOnce, heads(false))) == nil {
		t.Error("heads that an upstream sends unasked are not counted")
	}
	for says, write := range map[string]func(*http2.Framer){
		"heads of requests": heads(false),
		"DATA":              func(f *http2.Framer) { f.WriteData(1, false, []byte("x")) },
		"padded DATA":       func(f *http2.Framer) { f.WriteDataPadded(1, false, []byte("x"), make([]byte, 7)) },
		"requests of one byte": func() func(*http2.Framer) {
			head, id := heads(false), uint32(1)
			return func(f *http2.Framer) {
				head(f)
				id += 2
				f.WriteData(id, true, []byte("x"))
			}
		}(),
	} {
		e := newEmptyFrameLimit(false)
		e.received(sentAs(1, headOf(1, false)))
		if err := e.inPieces(sentAs(5*emptyAtOnce, write), 5); err != nil {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// headOf writes the head of a request, or of an answer.
func headOf(id uint32, end bool) func(*http2.Framer) {
	return func(f *http2.Framer) {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: end})
	}
}

// heads writes the heads of streams, each newer than the last, from 3 on.
func heads(end bool) func(*http2.Framer) {
	id := uint32(1)
	return func(f *http2.Framer) {
		id += 2
		headOf(id, end)(f)
	}
}

// TestWhatIsSentIsAnswered has an end that is sent much answer with as much.
func TestWhatIsSentIsAnswered(t *testing.T) {
	update := sentAs(2, func(f *http2.Framer) { f.WriteWindowUpdate(0, 1) })
	data := sentAs(1, func(f *http2.Framer) { f.WriteData(1, false, make([]byte, 100)) })
	e := newEmptyFrameLimit(true)
	e.to = preface
	e.sent([]byte(http2.ClientPreface))
	for i := range 10 * emptyAtOnce {
		e.sent(data)
		if err := e.received(update); err != nil {
			t.Fatalf("after %d frames: %v", i, err)
		}
	}
	if err := e.received(sentAs(2*(emptySaved+emptyAtOnce), emptyKinds["PING"])); err == nil {
		t.Error("what is saved has no end")
	}
}

// TestAnUpstreamThatFloods is left, and the record says why.
func TestAnUpstreamThatFloods(t *testing.T) {
	w := newInsideWorld(t, insidePolicy, nil)
	flood := sentAs(100*emptyAtOnce, emptyKinds["PING"])
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		serveFrames(c).request()
		go c.Write(flood)
		io.Copy(io.Discard, c)
	}, "h2")
	r := ask(t, w.visitor(t, true, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil)
	r.refused(t, 502, policy.NetworkTLS)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); !strings.Contains(end.Note, errEmptyFrames.Error()) {
		t.Errorf("ended %+v", end)
	}
}

// TestWhatIsHonestIsNoFlood: a client whose requests run out of time before there is an answer, and a server that
// lets much come before it reads any.
func TestWhatIsHonestIsNoFlood(t *testing.T) {
	client := newEmptyFrameLimit(false)
	head := heads(true)
	given := sentAs(20*emptyAtOnce, func(f *http2.Framer) {
		head(f)
		f.WriteRSTStream(1, http2.ErrCodeCancel)
		f.WritePing(false, [8]byte{}) // as Go's client does, beside each
	})
	if err := client.received(given); err != nil {
		t.Errorf("requests that are given up: %v", err)
	}
	upstream := newEmptyFrameLimit(true)
	const frames = 12_800 // 200 MiB
	upstream.sent(sentAs(frames, func(f *http2.Framer) { f.WriteData(1, false, []byte("x")) }))
	if err := upstream.received(sentAs(8*frames, func(f *http2.Framer) { f.WriteWindowUpdate(1, 1) })); err != nil {
		t.Errorf("a long body that is read late: %v", err)
	}
}
