package inspect

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/internal/testpki"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// problems has a watch see what is sent, in pieces of the given size.
func problems(sent []byte, size int) (all []string, w *headWatch) {
	w = newHeadWatch(64<<10, nil, func(problem string) { all = append(all, problem) })
	walk := frameWalk{preface: len(http2.ClientPreface), begin: w.begin, payload: w.payload}
	for piece := range slices.Chunk(sent, size) {
		walk.see(piece)
	}
	return all, w
}

func TestHeadsThatTheLibraryRefusesInSilence(t *testing.T) {
	good := []string{":method", "GET", ":scheme", "https", ":authority", "allowed.test", ":path", "/"}
	for _, row := range []struct {
		says string
		head []string
		want string
	}{
		{"an ordinary head", good, ""},
		{"TE of trailers", append(good, "te", "trailers"), ""},
		{"a value with spaces around it", append(good, "x", " v "), ""}, // open refuses it
		{"a name in upper case", append(good, "X-Upper", "v"), "a field name that is not in lower case"},
		{"a name with a colon", append(good, "x:y", "v"), "a field with characters that it may not have"},
		{"a value with CR LF", append(good, "x", "v\r\n"), "a field with characters that it may not have"},
		{":path with NUL", append(good[:6:6], ":path", "/\x00"), "a pseudo-header field with characters that it may not have"},
		{"a pseudo-header field after others", append([]string{"x", "y"}, good...), "a pseudo-header field after others"},
		{"an unknown one", append(good, ":x", "y"), "a pseudo-header field that does not exist"},
		{"one twice", append(good, ":path", "/"), "a pseudo-header field twice"},
		{"one of responses", append(good, ":status", "200"), "a pseudo-header field of responses"},
		{"Connection", append(good, "connection", "close"), "a field that concerns a connection: connection"},
		{"TE of gzip", append(good, "te", "gzip"), "a TE field of something else than trailers"},
		{"two TE fields", append(good, "te", "trailers", "te", "trailers"), "a TE field of something else than trailers"},
		{"too many fields", append(good, slices.Repeat([]string{"x", strings.Repeat("v", 1000)}, 70)...), "more header fields than fit"},
		{"too many trailers", append(good, "trailer", strings.Repeat("a,", 3000)), "more header fields than fit"},
		{"many trailers", append(good, "trailer", strings.Repeat("a,", 1000)), ""},
		{"no :path, which the library counts", append(good[:6:6], "connection", "close"), ""},
		{":scheme ftp, which the library counts", []string{":method", "GET", ":scheme", "ftp", ":path", "/", "connection", "close"}, ""},
	} {
		for _, parts := range []int{1, 3} {
			for _, size := range []int{1, 7, 1 << 20} {
				s := newSpoken()
				s.frames.WritePing(false, [8]byte{})
				s.head(1, parts, row.head...)
				s.frames.WriteData(1, true, []byte("PRI * HTTP/2.0"))
				s.head(3, 1, good...)
				got, w := problems(s.Bytes(), size)
				if strings.Join(got, "; ") != row.want || w.blind || w.last != 3 {
					t.Errorf("%s, in %d frames: %q, want %q (blind: %v, stream %d)", row.says, parts, got, row.want, w.blind, w.last)
				}
			}
		}
	}
}

func TestATrailerIsNoHead(t *testing.T) {
	s := newSpoken()
	s.head(5, 1, ":method", "POST", ":scheme", "https", ":path", "/")
	s.head(5, 1, ":method", "POST", ":scheme", "https", ":path", "/", "connection", "close") // the library counts it
	s.head(5, 1, "X-Upper", "v")
	if got, _ := problems(s.Bytes(), 100); len(got) != 1 || !strings.Contains(got[0], "lower case") {
		t.Errorf("reported %q", got)
	}
}

// TestWatchGivesUp where the library ends the connection: nothing that comes
// later may be taken for a head.
func TestWatchGivesUp(t *testing.T) {
	for _, row := range []struct {
		says string
		send func(*spoken)
		want string
	}{
		{"a frame of 16 MiB", func(s *spoken) { s.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}) }, "a frame of more than the advertised size"},
		{"a frame between parts", func(s *spoken) {
			s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			s.frames.WritePing(false, [8]byte{})
			s.frames.WriteContinuation(1, true, []byte{0x40, 1, 'X', 1, 'v'})
		}, ""},
		{"a continuation of nothing", func(s *spoken) { s.frames.WriteContinuation(1, true, []byte{0x82}) }, ""},
		{"a frame between a head that is passed over and its continuation", func(s *spoken) {
			s.Write([]byte{0, 0, 2, 1, 8, 0, 0, 0, 1, 9, 0})
			s.frames.WritePing(false, [8]byte{})
		}, ""},
		{"an index that does not exist", func(s *spoken) {
			s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0x7f}, EndHeaders: true})
		}, ""},
		{"half a field", func(s *spoken) {
			s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x40, 9, 'x'}, EndHeaders: true})
		}, ""},
	} {
		s := newSpoken()
		row.send(s)
		s.head(3, 1, "X-Upper", "v")
		got, w := problems(s.Bytes(), 5)
		if !w.blind || strings.Join(got, "; ") != row.want {
			t.Errorf("%s: blind %v, reported %q, want %q", row.says, w.blind, got, row.want)
		}
	}
}

// TestWatchPassesOver a head with more padding than its frame has bytes, and
// what continues it: the library resets the stream for the first, counts it,
// ignores the others, and goes on.
func TestWatchPassesOver(t *testing.T) {
	for says, send := range map[string]func(*spoken){
		"in one frame": func(s *spoken) { s.Write([]byte{0, 0, 2, 1, 0xd, 0, 0, 0, 1, 9, 0}) },
		"with continuations": func(s *spoken) {
			s.Write([]byte{0, 0, 2, 1, 8, 0, 0, 0, 1, 9, 0})
			s.frames.WriteContinuation(1, false, []byte{0x40, 1, 'X', 1, 'v'})
			s.frames.WriteContinuation(1, true, []byte{0x40, 1, 'Y', 1, 'v'})
		},
	} {
		s := newSpoken()
		send(s)
		s.frames.WritePing(false, [8]byte{})
		s.head(1, 1, ":method", "GET", ":scheme", "https", ":path", "/", "X-Upper", "v")
		s.head(3, 1, ":method", "GET", ":scheme", "https", ":path", "/", "x", "v")
		got, w := problems(s.Bytes(), 5)
		if w.blind || w.last != 3 || strings.Join(got, "; ") != "a field name that is not in lower case" {
			t.Errorf("%s: blind %v, stream %d, reported %q", says, w.blind, w.last, got)
		}
	}
}

// FuzzHeadWatch compares the watch with the library's own reading of a header
// block: it reports what the library resets a stream for, and only that, or a
// head that the library takes and its server answers itself.
func FuzzHeadWatch(f *testing.F) {
	f.Add([]byte{0x82, 0x87, 0x84}, 3)
	f.Add([]byte{0x82, 0x87, 0x84, 0x40, 1, 'X', 1, 'v'}, 1)
	f.Add([]byte{0x82, 0x87, 0x84, 0x40, 2, 't', 'e', 1, 'v'}, 9)
	f.Add([]byte{0x40, 1, 'x', 1, '\n', 0x82}, 2)
	f.Add([]byte{0x88, 0x82}, 2)
	f.Add([]byte("\x10\x00\x00\x0e\x8200"), 41)                             // an error that the library passes over
	f.Add([]byte("\x832\x8b\x01\x90\xa30000000\xf2\xf2\xf2\xf2\xf2000"), 7) // one that it does not
	f.Fuzz(func(t *testing.T, block []byte, size int) {
		if len(block) > 4096 || size < 1 {
			return
		}
		s := newSpoken()
		s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
		got, w := problems(s.Bytes(), size)
		s.head(3, 1, "X-Upper", "v")
		if next, _ := problems(s.Bytes(), size); !w.blind && len(next) != len(got)+1 {
			t.Errorf("after %q, the next head is reported as %q", got, next)
		}
		reader := http2.NewFramer(nil, bytes.NewReader(s.Bytes()[len(http2.ClientPreface):]))
		reader.ReadMetaHeaders = hpack.NewDecoder(dynamicTable, nil)
		reader.MaxHeaderListSize = 64<<10 + listOverhead
		reader.ReadFrame() // SETTINGS
		frame, err := reader.ReadFrame()
		var reset http2.StreamError
		switch {
		case errors.As(err, &reset):
			if len(got) != 1 {
				t.Errorf("the library resets (%v), the watch reports %q", err, got)
			}
		case err != nil:
			if !w.blind {
				t.Errorf("the library ends the connection (%v), the watch reads on", err)
			}
		case len(got) > 0 && !answersItself(frame.(*http2.MetaHeadersFrame)):
			t.Errorf("the library takes the head, the watch reports %q", got)
		}
	})
}

// answersItself reports whether a head may be one that the server of the
// library does not pass on.
func answersItself(f *http2.MetaHeadersFrame) bool {
	return f.Truncated || slices.ContainsFunc(f.RegularFields(), func(f hpack.HeaderField) bool {
		return slices.Contains([]string{"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te"}, f.Name)
	})
}

// TestAHeadHasItsTime, from its first byte to its last; between heads there is
// none to keep.
func TestAHeadHasItsTime(t *testing.T) {
	good := []string{":method", "GET", ":scheme", "https", ":authority", "allowed.test", ":path", "/"}
	s := newSpoken()
	s.head(1, 3, good...)
	whole := s.Bytes()
	for cut := len(whole) - 60; cut < len(whole); cut += 7 {
		synctest.Test(t, func(t *testing.T) {
			var late atomic.Bool
			w := tapClient(nil, 64<<10, newCountdown(10*time.Second, func() { late.Store(true) }), func(string) {})
			take := func(b []byte, d time.Duration) bool {
				w.in.see(b)
				w.check()
				time.Sleep(d)
				synctest.Wait()
				return late.Load()
			}
			if take(whole[:cut], 9*time.Second) || take(whole[cut:], time.Hour) {
				t.Errorf("%d and %d bytes: too late, in time", cut, len(whole)-cut)
			}
			s := newSpoken()
			s.head(3, 2, good...)
			head := s.Bytes()[len(newSpoken().Bytes()):]
			if take(head[:4], 9*time.Second) || !take(head[4:len(head)-1], time.Second) {
				t.Error("half a head was given more time for each part")
			}
		})
	}
}

// TestAHeadInTooManyFrames sends continuations without a byte in them, over
// a real connection, as the library would read it.
func TestAHeadInTooManyFrames(t *testing.T) {
	s := newSpoken()
	s.head(1, headParts, ":method", "GET", ":scheme", "https", ":path", "/")
	if got, w := problems(s.Bytes(), 100); len(got) > 0 || w.blind {
		t.Errorf("as many frames as may be: %q", got)
	}
	s.head(3, 10*headParts, ":method", "GET", ":scheme", "https", ":path", "/")
	near, far := net.Pipe()
	certificate := testpki.SelfSigned(t, nil)
	go func() {
		c := tls.Client(far, &tls.Config{InsecureSkipVerify: true})
		c.Write(s.Bytes())
		far.Close()
	}()
	var got []string
	w := tapClient(tls.Server(near, &tls.Config{Certificates: []tls.Certificate{certificate}}), 64<<10, nil, func(p string) { got = append(got, p) })
	defer near.Close()
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{w}); !errors.Is(err, errHeadParts) || len(got) != 1 {
		t.Errorf("%v, reported %q", err, got)
	}
	if !w.greeted.Load() {
		t.Error("the preface was not seen")
	}
}
