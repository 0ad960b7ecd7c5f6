package admin

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

type connection struct {
	net.Conn
	who    Operator
	proven atomic.Bool // the kernel identified the operator, or the token was shown
	all    *connections
	once   sync.Once
}

// connectionKey is the context key of a request's connection.
type connectionKey struct{}

func (v *connection) Close() error {
	v.once.Do(func() { v.all.remove(v) })
	return v.Conn.Close()
}

// A listener accepts connections of admitted peers, up to connectionsMost at a time.
type listener struct {
	net.Listener
	server *Server
}

func (d *listener) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &connection{Conn: c, all: &d.server.connections}
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
		if d.server.connections.add(v) {
			return v, nil
		}
		c.Close()
	}
}

// connections are the open connections. Beyond the limit the oldest unproven connection is closed, so that
// idle connections cannot lock out the operator. Fast reconnects can still delay an operator who has not
// shown the token yet.
type connections struct {
	mu  sync.Mutex    // guards all
	all []*connection // oldest first
}

// add adds a connection. It returns false if all connections are proven and the limit is reached.
func (c *connections) add(v *connection) bool {
	c.mu.Lock()
	var out *connection
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

func (c *connections) remove(v *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, one := range c.all {
		if one == v {
			c.all = append(c.all[:i], c.all[i+1:]...)
			return
		}
	}
}
