package certs

import (
	"container/list"
	"crypto/tls"
	"sync"
	"time"
)

// maxLeaves bounds the cache: a sandbox that asks for many hosts costs
// signatures, not memory. A leaf is about 3 KiB.
const maxLeaves = 1024

// A cache holds the leaves that were asked for last. The zero value is empty.
type cache struct {
	mu     sync.Mutex // never held over a signature
	byHost map[string]*list.Element
	recent list.List // of *leaf, the last used first
}

// A leaf is the certificate of a host, or what it will be. The last three are
// set before minted is closed, and not changed after.
type leaf struct {
	host   string
	minted chan struct{}

	cert  *tls.Certificate
	renew time.Time // it is not handed out from then on; zero where err is set
	err   error
}

// claim returns the leaf of host. If mine is true the caller has to mint it;
// else somebody has, or is about to.
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

// add puts an empty leaf into the cache, in the place of the one whose last
// use is the longest ago where there is none. It is called with mu held.
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

// remove is called with mu held.
func (c *cache) remove(e *list.Element) {
	delete(c.byHost, e.Value.(*leaf).host)
	c.recent.Remove(e)
}

// usable reports whether l may be handed out. One that is being minted may:
// it is new. One that is not valid yet was minted before the clock was set
// back.
func (l *leaf) usable(now time.Time) bool {
	select {
	case <-l.minted:
		return now.Before(l.renew) && !now.Before(l.cert.Leaf.NotBefore)
	default:
		return true
	}
}
