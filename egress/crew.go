package egress

import "sync"

// A crew is goroutines that somebody waits for. Unlike a [sync.WaitGroup] it may get
// more of them while it is waited for. Its zero value has none.
type crew struct {
	mu   sync.Mutex // guards what follows
	n    int
	none chan struct{} // closed when there are none; nil where nobody waits
}

// do has a goroutine do one thing.
func (c *crew) do(one func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.done()
		one()
	}()
}

func (c *crew) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// wait returns once there are none.
func (c *crew) wait() {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return
	}
	if c.none == nil {
		c.none = make(chan struct{})
	}
	none := c.none
	c.mu.Unlock()
	<-none
}
