package proxy

import (
	"slices"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/sniff"
)

// A word is the few bytes with which a client began, and after which it sent nothing more,
// such as JDWP-Handshake: they may begin a request of HTTP or a ClientHello, and may be all that the
// client says before it is answered. Where the rules let any protocol pass, they go on after a
// pause. What follows is held again as soon as it tells what they began, and judged together with them: they are
// too few for a server to act on as either.
//
// A nil word is none.
type preamble struct {
	pause  *relay.Timer
	paused bool   // the pause is
	sent   []byte // went to the upstream
}

// wordPause is how long a client may say nothing before what it has begun with is a word.
const preamblePause = time.Second

// heardWord judges first bytes that are too few to tell what they begin.
func (c *conn) awaitPreamble(first []byte) (relay.Judgement, []byte) {
	switch {
	case c.clientFirst() || sniff.Detect(first) != sniff.Undecided:
		return relay.More, nil
	case c.preamble == nil:
		w := new(preamble)
		w.pause = c.loop.After(min(preamblePause, c.server.shared.limits.Hello/2), func() {
			w.paused = true
			c.tunnel.Again()
		})
		c.preamble = w
		return relay.More, nil
	case !c.preamble.paused || c.preamble.passed():
		return relay.More, nil
	}
	return c.decide(first, nil, otherProtocol, func(first []byte) (relay.Judgement, []byte) {
		c.preamble.sent = slices.Clone(first)
		c.tunnel.Limit(c.flow.Budget())
		return relay.Follow, nil
	})
}

// followWord lets what follows a word pass for as long as that tells nothing more.
func (c *conn) followPreamble(up bool, next []byte) relay.Judgement {
	if !up {
		return relay.Follow
	}
	all := c.preamble.with(next)
	if sniff.Detect(all) != sniff.Undecided {
		return relay.More
	}
	c.preamble.sent = all
	return relay.Follow
}

// before returns all that the client has sent, of which b has not passed.
func (w *preamble) with(b []byte) []byte {
	if !w.passed() {
		return b
	}
	return slices.Concat(w.sent, b)
}

// passed reports whether w went to the upstream.
func (w *preamble) passed() bool { return w != nil && w.sent != nil }

// size is how many bytes went to the upstream.
func (w *preamble) size() int64 {
	if w == nil {
		return 0
	}
	return int64(len(w.sent))
}

// forget is for when the client's first bytes have been judged.
func (w *preamble) stop(loop *relay.Loop) {
	if w != nil {
		loop.Stop(w.pause)
	}
}
