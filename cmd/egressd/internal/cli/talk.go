package cli

import (
	"bytes"
	"io"
	"sync"
)

// A HeldTalk keeps what egressd has to say to itself while a program has the
// terminal. It is safe for concurrent use.
type HeldTalk struct {
	To    io.Writer
	Quiet bool // errors alone are said

	mu      sync.Mutex // guards what follows
	holding bool
	held    bytes.Buffer
}

// heldMost is how many bytes are kept; what comes after them is dropped.
const heldMost = 64 << 10

// Write implements [io.Writer]. It takes one message at a time.
func (t *HeldTalk) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.Quiet && !bytes.HasPrefix(b, []byte("egressd: error: ")):
	case !t.holding:
		return t.To.Write(b)
	case t.held.Len()+len(b) <= heldMost:
		t.held.Write(b)
	}
	return len(b), nil
}

// Say writes at once what cannot wait for the program's end.
func (t *HeldTalk) Say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.To, text)
}

// Hold keeps what is written from now on until Release.
func (t *HeldTalk) Hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = true
}

// Release says what was kept.
func (t *HeldTalk) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = false
	_, _ = t.held.WriteTo(t.To)
}
