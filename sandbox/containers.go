package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
)

// Containers are those that an engine runs: which of them has an address, and in which
// of them a process is. They are what the engine says, and the kernel where it can be asked
// too; nothing that a container says of itself counts. While the engine cannot be
// asked, nobody is known to be in a container. It is safe for concurrent use.
type Containers struct {
	// Started is told of each container that is known from now on, Ended of each that is
	// not any more, or that has another address. Health is told that the engine cannot be
	// asked, and why, and, with nil, that it can. They do not wait for long.
	Started func(*Known)
	Ended   func(*policy.Container)
	Health  func(error)

	api     *engineAPI
	ctx     context.Context
	looks   chan struct{} // one for each question about a container that is under way
	working sync.WaitGroup

	mu      sync.RWMutex // guards what follows
	running map[string]*Known
	before  map[string]*Known // those of before the engine was lost, until they are seen again
	at      map[netip.Addr][]*Known
	bridges []bridge
	trouble error                // why the engine cannot be asked
	looking map[string]*lookedAt // containers that are asked about
	moved   chan struct{}        // closed, and replaced, when something of this changes
}

// A Known container runs. It does not change.
type Known struct {
	*policy.Container
	Labels map[string]string

	addrs   []netip.Addr
	started string
	pid     int
	process *process // nil where it cannot be seen from here
}

// A lookedAt container is one that the engine is asked about; again is set where
// something has happened to it since.
type lookedAt struct{ again bool }

// A bridge is a network of the engine on which nobody has an address but containers, and
// the host.
type bridge struct {
	net     netip.Prefix
	gateway netip.Addr
}

var errNotAsked = errors.New("the engine was not asked yet")

const (
	looksMost   = 8
	expectedFor = 4 * time.Second // until the engine says what it has started already
	askAgain    = time.Second     // about a container of which nothing is known
)

// NewContainers returns those of the engine at a Unix socket, of which none is known
// until Watch.
func NewContainers(socket string) *Containers {
	return &Containers{
		api: newEngineAPI(socket), looks: make(chan struct{}, looksMost), trouble: errNotAsked, moved: make(chan struct{}),
		running: map[string]*Known{}, before: map[string]*Known{}, at: map[netip.Addr][]*Known{}, looking: map[string]*lookedAt{},
	}
}

// At returns the container that has an address, or nil. expected is set where nobody but
// a container can have it.
func (c *Containers) At(addr netip.Addr) (k *Known, expected bool) {
	if c == nil {
		return nil, false
	}
	addr = addr.Unmap().WithZone("")
	c.mu.RLock()
	defer c.mu.RUnlock()
	expected = slices.ContainsFunc(c.bridges, func(b bridge) bool { return b.net.Contains(addr) && b.gateway != addr })
	if c.trouble != nil {
		return nil, expected
	}
	for _, has := range c.at[addr] {
		switch {
		case has.process.over():
			go c.forget(has) // the engine has not said so yet
		case k != nil:
			return nil, true
		default:
			k = has
		}
	}
	return k, expected
}

// Await waits until a container is known that has the address, where nobody else can have
// it: an engine says a little late what it has started. It does not wait for an engine
// that cannot be asked.
func (c *Containers) Await(ctx context.Context, addr netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, expectedFor)
	defer cancel()
	for {
		moved, trouble := c.state()
		k, expected := c.At(addr)
		if k != nil || !expected || trouble != nil {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Containers) state() (moved chan struct{}, trouble error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.moved, c.trouble
}

// Trouble is why the engine cannot be asked, or nil.
func (c *Containers) Trouble() error {
	_, err := c.state()
	return err
}

// Each calls f for each container that is known.
func (c *Containers) Each(f func(*Known)) {
	c.mu.RLock()
	all := make([]*Known, 0, len(c.running))
	for _, k := range c.running {
		all = append(all, k)
	}
	c.mu.RUnlock()
	for _, k := range all {
		f(k)
	}
}

// change has f change what is known, and wakes who waits for that. What f returns is not known
// any more.
func (c *Containers) change(f func() (ended []*Known)) {
	c.mu.Lock()
	ended := f()
	close(c.moved)
	c.moved = make(chan struct{})
	c.mu.Unlock()
	for _, k := range ended {
		c.Ended(k.Container)
	}
}

// add makes k known. c.mu is held.
func (c *Containers) add(k *Known) {
	c.running[k.ID] = k
	for _, a := range k.addrs {
		c.at[a] = append(c.at[a], k)
	}
}

// remove makes k unknown. c.mu is held.
func (c *Containers) remove(k *Known) {
	delete(c.running, k.ID)
	for _, a := range k.addrs {
		if c.at[a] = slices.DeleteFunc(c.at[a], func(has *Known) bool { return has == k }); len(c.at[a]) == 0 {
			delete(c.at, a)
		}
	}
	k.process.close()
}

// forget drops a container that has ended.
func (c *Containers) forget(k *Known) {
	c.change(func() []*Known {
		if c.running[k.ID] != k {
			return nil
		}
		c.remove(k)
		return []*Known{k}
	})
}

// drop drops the container with that ID at once, whatever is being asked about it.
func (c *Containers) drop(id string) {
	c.change(func() (ended []*Known) {
		if l := c.looking[id]; l != nil {
			l.again = true
		}
		if k := c.running[id]; k != nil {
			c.remove(k)
			ended = append(ended, k)
		}
		if k := c.before[id]; k != nil {
			delete(c.before, id)
			ended = append(ended, k)
		}
		return ended
	})
}

// learn notes what the engine says of a container; d is nil where there is none that runs. Where
// something has happened to it since it was asked, nothing is noted, and again reported.
func (c *Containers) learn(id string, l *lookedAt, d *description) (again bool) {
	var known *Known
	if d != nil && d.State.Running && d.ID == id {
		known = d.known()
	}
	begun := known
	c.change(func() (ended []*Known) {
		if again, l.again = l.again, false; again {
			return nil
		}
		delete(c.looking, id)
		last := c.running[id]
		if last != nil {
			c.remove(last)
		} else {
			last = c.before[id]
			delete(c.before, id)
		}
		switch {
		case last != nil && known != nil && last.same(known):
			known.Container, begun = last.Container, nil
		case last != nil:
			ended = append(ended, last)
		}
		if known != nil {
			c.add(known)
		}
		return ended
	})
	switch {
	case again && known != nil:
		known.process.close()
	case begun != nil:
		c.Started(begun)
	}
	return again
}

// lose has nobody be known until the engine can be asked again. What is open stays so: it
// is whose it was.
func (c *Containers) lose(why error) {
	c.change(func() []*Known {
		for id, k := range c.running {
			c.remove(k)
			c.before[id] = k
		}
		c.trouble = why
		return nil
	})
}

// same reports whether two descriptions are of one run of a container, with one place.
func (k *Known) same(other *Known) bool {
	return k.started == other.started && k.pid == other.pid && k.Name == other.Name && slices.Equal(k.addrs, other.addrs)
}

// known is what counts of a description.
func (d *description) known() *Known {
	k := &Known{
		Container: &policy.Container{
			ID: d.ID, Name: trimSlash(d.Name), Image: d.Config.Image,
			Project: d.Config.Labels[policy.ComposeProject], Service: d.Config.Labels[policy.ComposeService],
		},
		Labels: d.Config.Labels, started: d.State.StartedAt, pid: d.State.Pid,
	}
	for _, n := range d.NetworkSettings.Networks {
		for _, text := range []string{n.IPAddress, n.GlobalIPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil && !a.IsUnspecified() {
				k.addrs = append(k.addrs, a.Unmap().WithZone(""))
			}
		}
	}
	slices.SortFunc(k.addrs, netip.Addr.Compare)
	k.addrs = slices.Compact(k.addrs)
	k.process = openFirst(k.pid, k.ID)
	return k
}

func trimSlash(name string) string {
	if name != "" && name[0] == '/' {
		return name[1:]
	}
	return name
}
