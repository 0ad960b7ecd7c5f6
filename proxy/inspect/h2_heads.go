package inspect

import (
	"errors"

	"golang.org/x/net/http2"
)

// headParts is how many frames one head may come in. The HTTP/2 library counts their bytes only, and would read empty
// ones for ever.
const headParts = 64

var errHeadParts = errors.New("a head in too many frames")

// A headLimit bounds the frames and the time in which a client sends a head.
type headLimit struct {
	parts    int // of the newest head
	spent    bool
	patience *countdown // runs while a head, or that of any frame, is not complete; nil: there is time without end
	began    bool       // patience runs
}

// received counts a frame that the client sends.
func (l *headLimit) received(f frame) {
	switch f.kind {
	case http2.FrameHeaders:
		l.parts = 1
	case http2.FrameContinuation:
		if l.parts++; l.parts > headParts {
			l.spent = true
		}
	}
}

// hurry starts the countdown when a head begins, and stops it when the head is complete.
func (l *headLimit) hurry(incomplete bool) {
	switch {
	case l.patience == nil || l.began == incomplete:
	case incomplete:
		l.patience.begin()
	default:
		l.patience.stop()
	}
	l.began = incomplete
}

// err returns [errHeadParts] once a head has come in too many frames.
func (l *headLimit) err() error {
	if l.spent {
		return errHeadParts
	}
	return nil
}
