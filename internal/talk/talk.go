// Package talk holds back what egressd has to say while a program has the terminal.
package talk

import (
	"bytes"
	"io"
	"sync"
)

// A Held is a writer of messages, one message each Write. It is safe for concurrent use.
type Held struct {
	To    io.Writer
	Quiet bool // drop all messages but errors

	mu      sync.Mutex // guards what follows
	holding bool
	held    bytes.Buffer
}

const heldMost = 64 << 10 // bytes that are held; messages beyond them are dropped

// Write implements [io.Writer].
func (t *Held) Write(b []byte) (int, error) {
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

// Say writes text at once, for messages that cannot wait.
func (t *Held) Say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.To, text)
}

// Hold keeps messages until Release.
func (t *Held) Hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = true
}

// Release writes the messages that were held.
func (t *Held) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = false
	_, _ = t.held.WriteTo(t.To)
}
