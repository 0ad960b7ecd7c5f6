package fair

import (
	"sync"
	"time"
)

// A Bucket bounds how often something may be done: in bursts, and over longer times. It is a number of tokens that fills up again with time. It is full at
// first, and safe for concurrent use; the zero Bucket never has any. Rate and
// Most may not be changed once it is used.
type Bucket struct {
	Rate float64 // tokens a second
	Most float64 // that it holds

	mu     sync.Mutex // guards what follows
	tokens float64
	spent  int // refused since the last time that was said
	last   time.Time
	told   time.Time
}

// Full reports whether b holds at a time as many tokens as it can: it is as good as new.
func (b *Bucket) Full(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last.IsZero() || b.tokens+now.Sub(b.last).Seconds()*b.Rate >= b.Most
}

// Take takes n tokens. If fewer are left, Take takes none. refused counts such calls; Take
// reports the count at most once a second, and 0 between two reports. Times may come in any order: none of them goes back.
func (b *Bucket) Take(n float64, now time.Time) (ok bool, refused int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.last.IsZero():
		b.tokens, b.last = b.Most, now
	case now.After(b.last):
		b.tokens = min(b.Most, b.tokens+now.Sub(b.last).Seconds()*b.Rate)
		b.last = now
	}
	if b.tokens >= n {
		b.tokens -= n
		return true, 0
	}
	b.spent++
	if now.Sub(b.told) < time.Second {
		return false, 0
	}
	refused, b.spent, b.told = b.spent, 0, now
	return false, refused
}
