package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

const (
	captureLength = 512     // bytes kept of a packet: a DNS query whole
	captureBuffer = 8 << 20 // bytes of kernel memory for what was not read yet; the kernel gives what it allows
	packetSent    = 4       // PACKET_OUTGOING of linux/if_packet.h
)

// A Wire sees every packet that a namespace sends on any interface, loopback
// too, and keeps those that open a conversation: TCP SYNs, datagrams, and what
// is neither TCP nor the kernel's own neighbour discovery. Its methods may be
// called from many goroutines at once.
type Wire struct {
	fd     int
	closed chan struct{} // closed by Close
	done   chan struct{} // closed when the reader has ended
	marker net.PacketConn

	mu      sync.Mutex
	packets []Packet
	seen    uint64        // number of the newest marker that was read
	moved   chan struct{} // closed, and replaced, when seen grows
	sent    uint64        // number of the newest marker that was sent
}

func tap(n *Net) (*Wire, error) {
	marker, err := n.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{closed: make(chan struct{}), done: make(chan struct{}), marker: marker, moved: make(chan struct{})}
	if err := n.Do(w.open); err != nil {
		return nil, errors.Join(fmt.Errorf("tap %s: %w", n.Name, err), marker.Close())
	}
	go w.read()
	return w, nil
}

// open makes the packet socket. Reads time out, because nothing else wakes a
// reader of a blocking socket that is to be closed.
func (w *Wire) open() error {
	const everyProtocol = 0x0300 // ETH_P_ALL in network byte order
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, everyProtocol)
	if err != nil {
		return err
	}
	w.fd = fd
	timeout := syscall.NsecToTimeval(int64(100 * time.Millisecond))
	err = errors.Join(
		attach(fd),
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, captureBuffer),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout),
	)
	if err != nil {
		return errors.Join(err, syscall.Close(fd))
	}
	return nil
}

func (w *Wire) read() {
	defer close(w.done)
	buf := make([]byte, captureLength)
	for {
		select {
		case <-w.closed:
			return
		default:
		}
		n, from, err := syscall.Recvfrom(w.fd, buf, 0)
		link, ok := from.(*syscall.SockaddrLinklayer)
		if err != nil || !ok {
			continue
		}
		if link.Protocol == 0x0008 || link.Protocol == 0xdd86 { // IPv4 and IPv6 in network byte order
			w.keep(parsePacket(buf[:n]))
		}
	}
}

func (w *Wire) keep(p Packet) {
	if !p.opens() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Protocol == ProtocolUDP && p.To == addrPort(w.marker.LocalAddr()) && len(p.Payload) >= 8 {
		w.seen = max(w.seen, binary.BigEndian.Uint64(p.Payload))
		close(w.moved)
		w.moved = make(chan struct{})
		return
	}
	w.packets = append(w.packets, p)
}

// Mark returns a point in time for [Wire.Since]: packets that were sent before
// the call are before it.
func (w *Wire) Mark() (int, error) {
	if err := w.catchUp(); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.packets), nil
}

// Since returns the packets that were sent after the mark and before the call.
func (w *Wire) Since(mark int) ([]Packet, error) {
	if err := w.catchUp(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Packet(nil), w.packets[mark:]...), nil
}

// catchUp sends a numbered packet and waits until the reader has seen it, and
// so everything that was sent before. It fails where the kernel had to drop
// packets: what was not seen proves nothing.
func (w *Wire) catchUp() error {
	w.mu.Lock()
	w.sent++
	number := w.sent
	w.mu.Unlock()
	if _, err := w.marker.WriteTo(binary.BigEndian.AppendUint64(nil, number), w.marker.LocalAddr()); err != nil {
		return fmt.Errorf("mark the wire: %w", err)
	}
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		seen, moved := w.seen, w.moved
		w.mu.Unlock()
		if seen >= number {
			return w.lost()
		}
		select {
		case <-moved:
		case <-deadline.C:
			return errors.New("the wire's reader fell behind")
		}
	}
}

// Close ends the capture.
func (w *Wire) Close() error {
	close(w.closed)
	<-w.done
	return errors.Join(w.marker.Close(), syscall.Close(w.fd))
}

func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return unmap(a.AddrPort())
	case *net.UDPAddr:
		return unmap(a.AddrPort())
	}
	return netip.AddrPort{}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
