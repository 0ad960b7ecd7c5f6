package inspect

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// inPieces has e see whole frames in pieces of a size.
func (e *emptyFrameLimit) inPieces(b []byte, size int) error {
	walk := frameWalk{begin: e.received}
	for piece := range slices.Chunk(b, size) {
		walk.see(piece)
	}
	return e.err()
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
	if newEmptyFrameLimit(true).inPieces(sentAs(2*emptyAtOnce, heads(false)), 4096) == nil {
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
		e.inPieces(sentAs(1, headOf(1, false)), 4096)
		if err := e.inPieces(sentAs(5*emptyAtOnce, write), 5); err != nil {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestWhatIsSentIsAnswered has an end that is sent much answer with as much.
func TestWhatIsSentIsAnswered(t *testing.T) {
	update := sentAs(2, func(f *http2.Framer) { f.WriteWindowUpdate(0, 1) })
	data := sentAs(1, func(f *http2.Framer) { f.WriteData(1, false, make([]byte, 100)) })
	e := newEmptyFrameLimit(true)
	sent := frameWalk{begin: e.sent, preface: len(http2.ClientPreface)}
	sent.see([]byte(http2.ClientPreface))
	for i := range 10 * emptyAtOnce {
		sent.see(data)
		if err := e.inPieces(update, 4096); err != nil {
			t.Fatalf("after %d frames: %v", i, err)
		}
	}
	if err := e.inPieces(sentAs(2*(emptySaved+emptyAtOnce), emptyKinds["PING"]), 4096); err == nil {
		t.Error("what is saved has no end")
	}
}

// A message is what an end of a connection sends, or is sent, one after the other.
type message struct {
	sent  bool // to the end
	n     int
	frame func(*http2.Framer)
}

func comes(n int, frame func(*http2.Framer)) message { return message{n: n, frame: frame} }

func goes(frame func(*http2.Framer)) message { return message{sent: true, n: 1, frame: frame} }

func (e *emptyFrameLimit) exchange(all ...message) error {
	for _, f := range all {
		b := sentAs(f.n, f.frame)
		if f.sent {
			sent := frameWalk{begin: e.sent}
			sent.see(b)
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
		flood    bool
		messages []message
	}{
		"DATA after the client's end":                 {true, []message{opened, comes(1, endOf(1)), comes(many, bodyOf(1, 1))}},
		"DATA after a head that ends":                 {true, []message{comes(1, headOf(1, true)), comes(many, bodyOf(1, 1))}},
		"DATA after the client's reset":               {true, []message{opened, comes(1, reset(1)), comes(many, bodyOf(1, 1))}},
		"DATA on a stream that never was":             {true, []message{comes(many, bodyOf(1, 1))}},
		"ends":                                        {true, []message{opened, comes(many, endOf(1))}},
		"ends of a stream that was reset":             {true, []message{opened, goes(reset(1)), comes(many, endOf(1))}},
		"heads of one stream":                         {true, []message{comes(many, headOf(1, false))}},
		"trailers":                                    {true, []message{opened, comes(many, headOf(1, true))}},
		"DATA that was under way":                     {false, []message{opened, goes(reset(1)), comes(firstWindow, bodyOf(1, 1))}},
		"DATA that was granted before the reset":      {false, []message{opened, goes(update(many)), goes(reset(1)), comes(firstWindow+many, bodyOf(1, 1))}},
		"DATA that was granted after the reset":       {true, []message{opened, goes(reset(1)), goes(update(many)), comes(firstWindow+many, bodyOf(1, 1))}},
		"DATA after what other streams had":           {true, []message{opened, other, goes(reset(1)), goes(update(many)), comes(1, bodyOf(3, firstWindow)), comes(many, bodyOf(1, 1))}},
		"DATA on another stream":                      {false, []message{opened, other, goes(reset(1)), comes(firstWindow+many, bodyOf(3, 1))}},
		"padding counts as flow control has it":       {true, []message{opened, goes(reset(1)), comes(firstWindow/256+many, func(f *http2.Framer) { f.WriteDataPadded(1, false, []byte("x"), make([]byte, 254)) })}},
		"what another stream was granted":             {true, []message{opened, goes(func(f *http2.Framer) { f.WriteWindowUpdate(1, many) }), goes(reset(1)), comes(firstWindow+many, bodyOf(1, 1))}},
		"heads after egressd left":                    {true, []message{opened, goes(leave(1)), comes(many, heads(false))}},
		"whole requests after egressd left":           {true, []message{opened, goes(leave(1)), comes(many, heads(true))}},
		"DATA after a request that egressd left":      {true, []message{opened, goes(leave(1)), comes(1, headOf(3, true)), comes(many, bodyOf(3, 1))}},
		"DATA under way after egressd left":           {false, []message{opened, goes(leave(1)), other, comes(many, bodyOf(3, 1))}},
		"DATA under way that egressd has not read":    {false, []message{opened, other, goes(leave(1)), comes(many, bodyOf(3, 1))}},
		"DATA of what is newer than egressd takes":    {true, []message{opened, goes(leave(1)), other, goes(update(many)), comes(firstWindow+many, bodyOf(3, 1))}},
		"DATA of what was newer than egressd takes":   {true, []message{opened, other, goes(leave(1)), goes(update(many)), comes(firstWindow+many, bodyOf(3, 1))}},
		"DATA of what egressd still takes":            {false, []message{opened, goes(leave(1)), comes(firstWindow+many, bodyOf(1, 1))}},
		"DATA of more streams than there are at once": {true, append(resets(lateMost+1), comes(many, bodyOf(3, 1)))},
		"DATA of as many":                             {false, append(resets(lateMost), comes(many, bodyOf(3, 1)))},
	} {
		if err := newEmptyFrameLimit(false).exchange(tt.messages...); errors.Is(err, errEmptyFrames) != tt.flood {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// resets are n streams, from 3 on, each of which is reset.
func resets(n int) (all []message) {
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
		flood    bool
		messages []message
	}{
		"ends":                                  {true, []message{asked, comes(1, headOf(1, false)), comes(many, endOf(1))}},
		"DATA after its end":                    {true, []message{asked, comes(1, headOf(1, true)), comes(many, bodyOf(1, 1))}},
		"DATA that nobody asked for":            {true, []message{comes(many, bodyOf(1, 1))}},
		"DATA of a body":                        {false, []message{asked, comes(1, headOf(1, false)), comes(many, bodyOf(1, 1))}},
		"DATA that was under way":               {false, []message{asked, goes(reset(1)), comes(firstWindow, bodyOf(1, 1))}},
		"DATA that was granted after the reset": {true, []message{asked, goes(reset(1)), goes(update(many)), comes(firstWindow+many, bodyOf(1, 1))}},
	} {
		if err := newEmptyFrameLimit(true).exchange(tt.messages...); errors.Is(err, errEmptyFrames) != tt.flood {
			t.Errorf("%s: %v", says, err)
		}
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
	if err := client.inPieces(given, 4096); err != nil {
		t.Errorf("requests that are given up: %v", err)
	}
	upstream := newEmptyFrameLimit(true)
	const frames = 12_800 // 200 MiB
	sent := frameWalk{begin: upstream.sent}
	sent.see(sentAs(frames, func(f *http2.Framer) { f.WriteData(1, false, []byte("x")) }))
	if err := upstream.inPieces(sentAs(8*frames, func(f *http2.Framer) { f.WriteWindowUpdate(1, 1) }), 4096); err != nil {
		t.Errorf("a long body that is read late: %v", err)
	}
}
