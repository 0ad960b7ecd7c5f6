package certs

import (
	"container/list"
	"crypto/tls"
	"sync"
	"time"
)

// maxLeaves bounds the cache, so that a sandbox with many hosts costs signatures and no memory. A leaf
// takes about 3 KiB.
const maxLeaves = 1024

// A cache holds the most recently used leaves. The zero value is empty.
type cache struct {
	mu     sync.Mutex // never held while signing
	byHost map[string]*list.Element
	recent list.List // of *leaf, most recently used first
}

// A leaf is the present or future certificate of a host. The last three fields are set before minted is
// closed and never change afterwards.
type leaf struct {
	host   string
	minted chan struct{}

	cert  *tls.Certificate
	renew time.Time // time after which it is not used any more; zero if err is set
	err   error
}

// claim returns the leaf of host. If mine is true, the caller must mint it.
func (c *cache) claim(host string, now time.Time) (l *leaf, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byHost[host]; e != nil {
		if l := e.Value.(*leaf); l.usable(now) {
			c.recent.MoveToFront(e)
			return l, false
		}
		c.remove(e)
	}
	return c.add(host), true
}

// add inserts an empty leaf and evicts the least recently used one if the cache is full. It requires mu.
func (c *cache) add(host string) *leaf {
	if c.byHost == nil {
		c.byHost = map[string]*list.Element{}
	}
	if len(c.byHost) >= maxLeaves {
		c.remove(c.recent.Back())
	}
	l := &leaf{host: host, minted: make(chan struct{})}
	c.byHost[host] = c.recent.PushFront(l)
	return l
}

// remove requires mu.
func (c *cache) remove(e *list.Element) {
	delete(c.byHost, e.Value.(*leaf).host)
	c.recent.Remove(e)
}

// usable reports whether l may be used. A leaf that is being minted is usable. A leaf that is not valid
// yet was minted before the clock was set back.
func (l *leaf) usable(now time.Time) bool {
	select {
	case <-l.minted:
		return now.Before(l.renew) && !now.Before(l.cert.Leaf.NotBefore)
	default:
		return true
	}
}
