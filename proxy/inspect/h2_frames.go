package inspect

import (
	"crypto/tls"
	"encoding/binary"

	"golang.org/x/net/http2"
)

// A smallFrames is a connection to an upstream that has it take frames of the usual size and
// no larger ones, whatever it says of itself (RFC 9113 §6.5.2). The library keeps a buffer
// of that size, up to 512 KiB, for each request that has a body: thousands of requests of one
// sandbox would hold gigabytes. Nothing else that the upstream sends is changed, and the
// connection ends where it sends too many frames that carry nothing.
type smallFrames struct {
	*tls.Conn
	closed func() // told when it is, as often as that may be
	empty  *emptyFrameLimit

	head     [frameHeadSize]byte
	have     int // of head
	left     int // of the frame's payload
	settings bool
	at       int    // in an entry of settings
	id       uint16 // of that entry
}

func (c *smallFrames) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.see(b[:n])
	if many := c.empty.received(b[:n]); many != nil {
		return 0, many
	}
	return n, err
}

// Write implements [net.Conn].
func (c *smallFrames) Write(b []byte) (int, error) {
	c.empty.sent(b)
	return c.Conn.Write(b)
}

// Close implements [net.Conn].
func (c *smallFrames) Close() error {
	c.closed()
	return c.Conn.Close()
}

// see is given everything that the upstream sends, in pieces of any size.
func (c *smallFrames) see(b []byte) {
	for len(b) > 0 {
		switch {
		case c.have < len(c.head):
			n := copy(c.head[c.have:], b)
			c.have, b = c.have+n, b[n:]
			if c.have == len(c.head) {
				c.begin()
			}
		case c.settings:
			n := min(len(b), c.left)
			for i := range b[:n] {
				c.setting(&b[i])
			}
			b = b[c.skip(n):]
		default:
			b = b[c.skip(min(len(b), c.left)):]
		}
	}
}

func (c *smallFrames) begin() {
	c.left, c.at = payloadLength(c.head[:]), 0
	c.settings = http2.FrameType(c.head[3]) == http2.FrameSettings
	c.skip(0)
}

// skip passes over n bytes of the payload.
func (c *smallFrames) skip(n int) int {
	if c.left -= n; c.left == 0 {
		c.have = 0
	}
	return n
}

// setting takes the next byte of settings: two are an identifier, and four a value.
func (c *smallFrames) setting(b *byte) {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], frameMost)
	switch {
	case c.at < 2:
		c.id = c.id<<8 | uint16(*b)
	case http2.SettingID(c.id) == http2.SettingMaxFrameSize:
		*b = size[c.at-2]
	}
	c.at = (c.at + 1) % 6
}
