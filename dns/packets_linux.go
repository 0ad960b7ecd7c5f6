package dns

import (
	"net"
	"syscall"
	"unsafe"
)

// askForDestinations has c say where its datagrams were sent to.
func askForDestinations(c *net.UDPConn, ipv4 bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	level, option := syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO
	if ipv4 {
		level, option = syscall.IPPROTO_IP, syscall.IP_PKTINFO
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
		return err
	}
	return failed
}

// backFrom makes the control message of a response from that of its question: it
// goes out from the address that the question was sent to, by whatever interface
// leads back.
func backFrom(control []byte) []byte {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == syscall.IPPROTO_IP && m.Header.Type == syscall.IP_PKTINFO && len(m.Data) >= syscall.SizeofInet4Pktinfo:
			var back [syscall.SizeofInet4Pktinfo]byte
			copy(back[4:8], m.Data[8:12]) // the address in the header of the packet
			return controlMessage(syscall.IPPROTO_IP, syscall.IP_PKTINFO, back[:])
		case m.Header.Level == syscall.IPPROTO_IPV6 && m.Header.Type == syscall.IPV6_PKTINFO && len(m.Data) >= syscall.SizeofInet6Pktinfo:
			back := append([]byte(nil), m.Data[:syscall.SizeofInet6Pktinfo]...)
			if m.Data[0] != 0xfe { // link-local addresses mean nothing without their interface
				clear(back[16:])
			}
			return controlMessage(syscall.IPPROTO_IPV6, syscall.IPV6_PKTINFO, back)
		}
	}
	return nil
}

func controlMessage(level, kind int32, data []byte) []byte {
	b := make([]byte, syscall.CmsgSpace(len(data)))
	h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, kind
	h.SetLen(syscall.CmsgLen(len(data)))
	copy(b[syscall.CmsgLen(0):], data)
	return b
}
