package signals

import (
	"github.com/egressd/egressd/egress"
)

// What goes to and fro before anything is sent. It hides a small upload: a
// certificate that comes down is more than a key that goes up.
const (
	helloUp   = 1 << 10 // the least that a TLS client sends to set a tunnel up
	helloDown = 6 << 10 // what a server's certificates usually take at most
	headUp    = 1 << 10 // of a request without a body: more is data in its path or fields
	headDown  = 600     // of an answer that says no more than its status

	noHello = 1 << 10 // down: with less, and no name in it, there was no handshake
)

// smallUpload is the least that counts as one, half of it where nothing else can be in it, and smallFlow the most that is small.
const (
	smallUpload = 1 << 10
	smallFlow   = 64 << 10
	smallAnswer = 4 << 10
)

// A load is what a flow carried in each direction, without what every flow has.
type load struct {
	up, down int64
	bare     bool // it has none of that
}

func loadOf(r *egress.Record) load {
	if r.Bytes == nil {
		return load{}
	}
	up, down := r.Bytes.Up, r.Bytes.Down
	switch {
	case r.HTTP == nil && r.TLS == nil && down < noHello:
		return load{up, down, true}
	case r.HTTP == nil:
		return load{up: max(0, up-helloUp), down: max(0, down-helloDown)}
	case writes(r):
		return load{up, max(0, down-headDown), true}
	case up-headUp >= smallUpload: // what is asked in many words leaves whatever the answer is
		return load{up: up - headUp}
	}
	return load{down: down}
}

func (l load) sends() bool {
	least := int64(smallUpload)
	if l.bare {
		least /= 2
	}
	return l.up >= least && l.up > 2*l.down
}

func (l load) isSmall() bool { return l.up <= smallFlow && l.down <= smallAnswer }
