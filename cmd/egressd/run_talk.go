package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/egress"
)

// A heldTalk keeps what egressd has to say to itself while a program has the
// terminal. It is safe for concurrent use.
type heldTalk struct {
	to    io.Writer
	quiet bool

	mu      sync.Mutex // guards what follows
	holding bool
	held    bytes.Buffer
}

const heldMost = 64 << 10

func (t *heldTalk) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.quiet && !bytes.HasPrefix(b, []byte("egressd: error: ")):
	case !t.holding:
		return t.to.Write(b)
	case t.held.Len()+len(b) <= heldMost:
		t.held.Write(b)
	}
	return len(b), nil
}

// say writes at once what cannot wait for the program's end.
func (t *heldTalk) say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.to, text)
}

func (t *heldTalk) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = true
}

func (t *heldTalk) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = false
	_, _ = t.held.WriteTo(t.to)
}

// summary is what a run came to, in a line.
func summary(c egress.Counts, took time.Duration) string {
	text := fmt.Sprintf("%s, %s to %s, %s down, %s up.", cli.DurationText(took), cli.Plural(c.Requests, "request"), cli.Plural(c.Hosts, "host"), cli.BytesText(c.Down), cli.BytesText(c.Up))
	if c.Learned > 0 {
		text += fmt.Sprintf(" %d learned.", c.Learned)
	}
	if len(c.Denied) == 0 {
		return text
	}
	const shown = 5
	var all int
	var names []string
	for i, d := range c.Denied {
		all += d.Times
		name := cli.Printable(d.Host)
		if d.Times > 1 {
			name += fmt.Sprintf(" ×%d", d.Times)
		}
		if i < shown {
			names = append(names, name)
		}
	}
	if more := len(c.Denied) - shown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%s %d denied: %s.", text, all, strings.Join(names, ", "))
}

// newRunID names a run, so that names sort by time.
func newRunID(now time.Time) string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return now.UTC().Format(config.RunTime) + "-" + hex.EncodeToString(b[:])
}
