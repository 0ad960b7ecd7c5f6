package proxy

import (
	"errors"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// A told is what an end of a connection sends, or is sent, one after the other.
type told struct {
	sent  bool // to the end
	n     int
	frame func(*http2.Framer)
}

func comes(n int, frame func(*http2.Framer)) told { return told{n: n, frame: frame} }
func goes(frame func(*http2.Framer)) told         { return told{sent: true, n: 1, frame: frame} }

func (e *emptyFrameLimit) told(all ...told) error {
	for _, f := range all {
		b := sentAs(f.n, f.frame)
		if f.sent {
			e.sent(b)
		} else if err := e.inPieces(b, 11); err != nil {
			return err
		}
	}
	return nil
}

func reset(id uint32) func(*http2.Framer) {
	return func(f *http2.Framer) { f.WriteRSTStream(id, http2.ErrCodeNo) }
}

func bodyOf(id uint32, size int) func(*http2.Framer) {
	return func(f *http2.Framer) { f.WriteData(id, false, make([]byte, size)) }
}

func endOf(id uint32) func(*http2.Framer) {
	return func(f *http2.Framer) { f.WriteData(id, true, nil) }
}

func update(n uint32) func(*http2.Framer) {
	return func(f *http2.Framer) { f.WriteWindowUpdate(0, n) }
}

func leave(last uint32) func(*http2.Framer) {
	return func(f *http2.Framer) { f.WriteGoAway(last, http2.ErrCodeNo, []byte("bye")) }
}

// TestWhatComesOnAStreamThatIsOver counts, but for what was under way when the other end
// ended it.
func TestWhatComesOnAStreamThatIsOver(t *testing.T) {
	const many = 5 * emptyAtOnce
	opened, other := comes(1, headOf(1, false)), comes(1, headOf(3, false))
	for says, tt := range map[string]struct {
		flood bool
		told  []told
	}{
		"DATA after the client's end":                 {true, []told{opened, comes(1, endOf(1)), comes(many, bodyOf(1, 1))}},
		"DATA after a head that ends":                 {true, []told{comes(1, headOf(1, true)), comes(many, bodyOf(1, 1))}},
		"DATA after the client's reset":               {true, []told{opened, comes(1, reset(1)), comes(many, bodyOf(1, 1))}},
		"DATA on a stream that never was":             {true, []told{comes(many, bodyOf(1, 1))}},
		"ends":                                        {true, []told{opened, comes(many, endOf(1))}},
		"ends of a stream that was reset":             {true, []told{opened, goes(reset(1)), comes(many, endOf(1))}},
		"heads of one stream":                         {true, []told{comes(many, headOf(1, false))}},
		"trailers":                                    {true, []told{opened, comes(many, headOf(1, true))}},
		"DATA that was under way":                     {false, []told{opened, goes(reset(1)), comes(firstWindow, bodyOf(1, 1))}},
		"DATA that was granted before the reset":      {false, []told{opened, goes(update(many)), goes(reset(1)), comes(firstWindow+many, bodyOf(1, 1))}},
		"DATA that was granted after the reset":       {true, []told{opened, goes(reset(1)), goes(update(many)), comes(firstWindow+many, bodyOf(1, 1))}},
		"DATA after what other streams had":           {true, []told{opened, other, goes(reset(1)), goes(update(many)), comes(1, bodyOf(3, firstWindow)), comes(many, bodyOf(1, 1))}},
		"DATA on another stream":                      {false, []told{opened, other, goes(reset(1)), comes(firstWindow+many, bodyOf(3, 1))}},
		"padding counts as flow control has it":       {true, []told{opened, goes(reset(1)), comes(firstWindow/256+many, func(f *http2.Framer) { f.WriteDataPadded(1, false, []byte("x"), make([]byte, 254)) })}},
		"what another stream was granted":             {true, []told{opened, goes(func(f *http2.Framer) { f.WriteWindowUpdate(1, many) }), goes(reset(1)), comes(firstWindow+many, bodyOf(1, 1))}},
		"heads after egressd left":                    {true, []told{opened, goes(leave(1)), comes(many, heads(false))}},
		"whole requests after egressd left":           {true, []told{opened, goes(leave(1)), comes(many, heads(true))}},
		"DATA after a request that egressd left":      {true, []told{opened, goes(leave(1)), comes(1, headOf(3, true)), comes(many, bodyOf(3, 1))}},
		"DATA under way after egressd left":           {false, []told{opened, goes(leave(1)), other, comes(many, bodyOf(3, 1))}},
		"DATA under way that egressd has not read":    {false, []told{opened, other, goes(leave(1)), comes(many, bodyOf(3, 1))}},
		"DATA of what is newer than egressd takes":    {true, []told{opened, goes(leave(1)), other, goes(update(many)), comes(firstWindow+many, bodyOf(3, 1))}},
		"DATA of what was newer than egressd takes":   {true, []told{opened, other, goes(leave(1)), goes(update(many)), comes(firstWindow+many, bodyOf(3, 1))}},
		"DATA of what egressd still takes":            {false, []told{opened, goes(leave(1)), comes(firstWindow+many, bodyOf(1, 1))}},
		"DATA of more streams than there are at once": {true, append(resets(lateMost+1), comes(many, bodyOf(3, 1)))},
		"DATA of as many":                             {false, append(resets(lateMost), comes(many, bodyOf(3, 1)))},
	} {
		if err := newEmptyFrameLimit(false).told(tt.told...); errors.Is(err, errEmptyFrames) != tt.flood {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// resets are n streams, from 3 on, each of which is reset.
func resets(n int) (all []told) {
	for id := uint32(3); len(all) < 2*n; id += 2 {
		all = append(all, comes(1, headOf(id, false)), goes(reset(id)))
	}
	return all
}

// TestWhatAnUpstreamSendsOnAStreamThatIsOver is TestWhatComesOnAStreamThatIsOver the other way round.
func TestWhatAnUpstreamSendsOnAStreamThatIsOver(t *testing.T) {
	const many = 5 * emptyAtOnce
	asked := goes(headOf(1, true))
	for says, tt := range map[string]struct {
		flood bool
		told  []told
	}{
		"ends":                                  {true, []told{asked, comes(1, headOf(1, false)), comes(many, endOf(1))}},
		"DATA after its end":                    {true, []told{asked, comes(1, headOf(1, true)), comes(many, bodyOf(1, 1))}},
		"DATA that nobody asked for":            {true, []told{comes(many, bodyOf(1, 1))}},
		"DATA of a body":                        {false, []told{asked, comes(1, headOf(1, false)), comes(many, bodyOf(1, 1))}},
		"DATA that was under way":               {false, []told{asked, goes(reset(1)), comes(firstWindow, bodyOf(1, 1))}},
		"DATA that was granted after the reset": {true, []told{asked, goes(reset(1)), goes(update(many)), comes(firstWindow+many, bodyOf(1, 1))}},
	} {
		if err := newEmptyFrameLimit(true).told(tt.told...); errors.Is(err, errEmptyFrames) != tt.flood {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestUploadsThatAreRefused go on in small pieces, as if the client had not read that they are.
func TestUploadsThatAreRefused(t *testing.T) {
	w := newInsideWorld(t, insidePolicy, nil)
	o := w.pki.secureOrigin(t, true, func(http.ResponseWriter, *http.Request) {}, nil)
	s := startSpeaking(t, w.tunnel(t, "allowed.test", o.port, "h2"))
	for id := uint32(1); id <= 5; id += 2 {
		block := s.encode(":method", "POST", ":scheme", "https", ":authority", "allowed.test:"+o.port, ":path", "/private")
		s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		s.flush(t)
		s.until(t, func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream && f.Header().StreamID == id })
		for range 2 * emptyAtOnce {
			s.frames.WriteData(id, false, []byte("x"))
		}
		s.flush(t)
	}
	s.frames.WritePing(false, [8]byte{})
	s.flush(t)
	s.until(t, func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
}
