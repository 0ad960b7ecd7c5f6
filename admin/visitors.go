package admin

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// A visitor is a connection, and who is at the other end.
type visitor struct {
	net.Conn
	who    Operator
	proven atomic.Bool // the kernel said who it is, or it has shown the token
	crowd  *crowd
	once   sync.Once
}

// visitorKey is for the context of requests.
type visitorKey struct{}

func (v *visitor) Close() error {
	v.once.Do(func() { v.crowd.leave(v) })
	return v.Conn.Close()
}

// A door hands on connections of those who may ask, and no more than a few at a time.
type door struct {
	net.Listener
	server *Server
}

func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visitor{Conn: c, crowd: &d.server.crowd}
		if d.server.Admit != nil {
			if v.who, err = d.server.Admit(c); err != nil {
				c.Close()
				d.server.denied.note(d.server, v.who, err.Error())
				continue
			}
			v.proven.Store(true)
		} else if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			v.who.Addr = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
		}
		if d.server.crowd.join(v) {
			return v, nil
		}
		c.Close()
	}
}

// A crowd is who is connected. Where there are too many, the one that came first of those
// who have shown nothing gives way, so that nobody keeps the operator out by
// connecting and waiting. Who connects again and again slows the operator down: one that has
// yet to show the token may give way, too.
type crowd struct {
	mu  sync.Mutex // guards what follows
	all []*visitor // in the order in which they came
}

// join takes one in, and reports false where there is no room.
func (c *crowd) join(v *visitor) bool {
	c.mu.Lock()
	var out *visitor
	if len(c.all) >= connectionsMost {
		for _, one := range c.all {
			if !one.proven.Load() {
				out = one
				break
			}
		}
		if out == nil {
			c.mu.Unlock()
			return false
		}
	}
	c.all = append(c.all, v)
	c.mu.Unlock()
	if out != nil {
		out.Close()
	}
	return true
}

func (c *crowd) leave(v *visitor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, one := range c.all {
		if one == v {
			c.all = append(c.all[:i], c.all[i+1:]...)
			return
		}
	}
}
