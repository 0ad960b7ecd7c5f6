package policy

import "sync/atomic"

// A Container is one of Docker or Podman, from its start to its end. What its engine
// says of it is the operator's, but is not trusted to be short or printable.
type Container struct {
	ID    string // 64 hexadecimal digits
	Name  string
	Image string

	// Project and Service are those of Compose; empty: it was started otherwise.
	Project, Service string

	ended atomic.Bool
}

// End says that the container is not there any more, or no longer where it was known
// to be: nothing that comes from there is its any more.
func (c *Container) End() { c.ended.Store(true) }

// Ended reports whether it has ended. No container never ends.
func (c *Container) Ended() bool { return c != nil && c.ended.Load() }
