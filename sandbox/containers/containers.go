// Package containers tells sandboxes by the container that they are in. It asks Docker's API, which Podman
// has as well, at a Unix socket, and nothing else.
//
//	engine := containers.New("/run/docker.sock")
//	engine.Started, engine.Ended, engine.Health = …
//	directory.SetEngine(engine)
//	go engine.Watch(ctx)
package containers

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/pidfd"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// An Engine knows the running containers of Docker or Podman: which container has an address, and
// which container a process is in. It believes the engine, and the kernel where the kernel can be asked; what a
// container says of itself does not count. While the engine cannot be asked, no container is known.
//
// An Engine is safe for concurrent use. It implements [sandbox.Engine].
type Engine struct {
	// Started is called for each container that becomes known, and Ended for each that has ended or has got
	// another address. Health is called with an error when the engine stops answering, and with nil when it
	// answers again. None of them may block for long.
	Started func(*sandbox.Container)
	Ended   func(*policy.Container)
	Health  func(error)

	api     *engineAPI
	ctx     context.Context
	looks   chan struct{} // one for each question about a container that is under way
	working sync.WaitGroup

	mu      sync.RWMutex // guards what follows
	running map[string]*known
	before  map[string]*known // those of before the engine was lost, until they are seen again
	at      map[netip.Addr][]*known
	bridges []bridge
	trouble error                // why the engine cannot be asked
	looking map[string]*lookedAt // containers that are asked about
	moved   chan struct{}        // closed, and replaced, when something of this changes
}

// A known container runs. It is never changed.
type known struct {
	*sandbox.Container
	addrs   []netip.Addr
	started string
	process *pidfd.Process // nil where it cannot be seen from here
}

// A lookedAt container is one that the engine is being asked about. again is set if the container has changed
// since the question.
type lookedAt struct{ again bool }

// A bridge is a network of the engine. Only containers and the host's gateway have addresses in it.
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

// New returns an engine at a Unix socket. No container is known before Watch.
func New(socket string) *Engine {
	return &Engine{
		api: newEngineAPI(socket), looks: make(chan struct{}, looksMost), trouble: errNotAsked, moved: make(chan struct{}),
		running: map[string]*known{}, before: map[string]*known{}, at: map[netip.Addr][]*known{}, looking: map[string]*lookedAt{},
	}
}

// At returns the container with an address, or nil. expected is set if only containers can have the address.
func (c *Engine) At(addr netip.Addr) (k *sandbox.Container, expected bool) {
	addr = addr.Unmap().WithZone("")
	c.mu.RLock()
	defer c.mu.RUnlock()
	expected = slices.ContainsFunc(c.bridges, func(b bridge) bool { return b.net.Contains(addr) && b.gateway != addr })
	if c.trouble != nil {
		return nil, expected
	}
	for _, has := range c.at[addr] {
		switch {
		case has.process.Ended():
			go c.forget(has) // the engine has not said so yet
		case k != nil:
			return nil, true
		default:
			k = has.Container
		}
	}
	return k, expected
}

// Await waits until the container of an address is known, because an engine reports a started container a
// little late. Await returns at once if other hosts share the address range, or if the engine does not answer.
func (c *Engine) Await(ctx context.Context, addr netip.Addr) {
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

func (c *Engine) state() (moved chan struct{}, trouble error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.moved, c.trouble
}

// Trouble returns why the engine cannot be asked, or nil.
func (c *Engine) Trouble() error {
	_, err := c.state()
	return err
}

// Each calls f for each known container.
func (c *Engine) Each(f func(*sandbox.Container)) {
	c.mu.RLock()
	all := make([]*sandbox.Container, 0, len(c.running))
	for _, k := range c.running {
		all = append(all, k.Container)
	}
	c.mu.RUnlock()
	for _, k := range all {
		f(k)
	}
}

// change calls f under the lock and wakes goroutines that wait for a change. It calls Ended for the containers
// that f returns.
func (c *Engine) change(f func() (ended []*known)) {
	c.mu.Lock()
	ended := f()
	close(c.moved)
	c.moved = make(chan struct{})
	c.mu.Unlock()
	for _, k := range ended {
		c.Ended(k.Container.Container)
	}
}

// add notes k. c.mu is held.
func (c *Engine) add(k *known) {
	c.running[k.ID] = k
	for _, a := range k.addrs {
		c.at[a] = append(c.at[a], k)
	}
}

// remove forgets k. c.mu is held.
func (c *Engine) remove(k *known) {
	delete(c.running, k.ID)
	for _, a := range k.addrs {
		if c.at[a] = slices.DeleteFunc(c.at[a], func(has *known) bool { return has == k }); len(c.at[a]) == 0 {
			delete(c.at, a)
		}
	}
	k.process.Close()
}

// forget removes a container that has ended.
func (c *Engine) forget(k *known) {
	c.change(func() []*known {
		if c.running[k.ID] != k {
			return nil
		}
		c.remove(k)
		return []*known{k}
	})
}

// drop removes the container with an ID at once, even while the engine is being asked about it.
func (c *Engine) drop(id string) {
	c.change(func() (ended []*known) {
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

// learn notes the engine's description of a container; d is nil if the container does not run. It returns true,
// and notes nothing, if the container has changed since the question.
func (c *Engine) learn(id string, l *lookedAt, d *description) (again bool) {
	var now *known
	if d != nil && d.State.Running && d.ID == id {
		now = d.known()
	}
	begun := now
	c.change(func() (ended []*known) {
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
		case last != nil && now != nil && last.same(now):
			now.Container.Container, begun = last.Container.Container, nil
		case last != nil:
			ended = append(ended, last)
		}
		if now != nil {
			c.add(now)
		}
		return ended
	})
	switch {
	case again && now != nil:
		now.process.Close()
	case begun != nil:
		c.Started(begun.Container)
	}
	return again
}

// lose makes every container unknown until the engine answers again. Open connections keep their container.
func (c *Engine) lose(why error) {
	c.change(func() []*known {
		for id, k := range c.running {
			c.remove(k)
			c.before[id] = k
		}
		c.trouble = why
		return nil
	})
}

// same reports whether two descriptions are of the same run of a container, with the same addresses.
func (k *known) same(other *known) bool {
	return k.started == other.started && k.PID == other.PID && k.Name == other.Name && slices.Equal(k.addrs, other.addrs)
}

func (d *description) known() *known {
	k := &known{started: d.State.StartedAt, Container: &sandbox.Container{
		Container: &policy.Container{
			ID: d.ID, Name: trimSlash(d.Name), Image: d.Config.Image,
			Project: d.Config.Labels[policy.ComposeProject], Service: d.Config.Labels[policy.ComposeService],
		},
		Labels: d.Config.Labels, PID: d.State.Pid,
	}}
	for _, n := range d.NetworkSettings.Networks {
		for _, text := range []string{n.IPAddress, n.GlobalIPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil && !a.IsUnspecified() {
				k.addrs = append(k.addrs, a.Unmap().WithZone(""))
			}
		}
	}
	slices.SortFunc(k.addrs, netip.Addr.Compare)
	k.addrs = slices.Compact(k.addrs)
	k.process = openFirst(k.PID, k.ID)
	return k
}

func trimSlash(name string) string {
	if name != "" && name[0] == '/' {
		return name[1:]
	}
	return name
}
