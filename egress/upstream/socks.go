package upstream

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"github.com/egressd/egressd/policy"
)

// Numbers of RFC 1928 and RFC 1929.
const (
	socksVersion  = 5
	noSignIn      = 0
	userPassword  = 2
	signInVersion = 1
	connect       = 1
	isIPv4        = 1
	isName        = 3
	isIPv6        = 4
)

var socksReplies = map[byte]string{
	1: "general failure", 2: "not allowed by its rules", 3: "network unreachable", 4: "host unreachable",
	5: "connection refused", 6: "TTL expired", 7: "command not supported", 8: "kind of address not supported",
}

func (p *Proxy) openSOCKS(conn net.Conn, d policy.Destination) error {
	if err := p.greet(conn); err != nil {
		return err
	}
	ask := []byte{socksVersion, connect, 0}
	switch {
	case d.Addr.Is4():
		ask = append(append(ask, isIPv4), d.Addr.AsSlice()...)
	case d.Addr.IsValid():
		ask = append(append(ask, isIPv6), d.Addr.AsSlice()...)
	default:
		ask = append(append(ask, isName, byte(len(d.Host))), d.Host...) // a name has at most 253 bytes
	}
	if _, err := conn.Write(binary.BigEndian.AppendUint16(ask, d.Port)); err != nil {
		return err
	}
	reply, err := take(conn, 4)
	if err != nil {
		return err
	}
	if reply[0] != socksVersion || reply[2] != 0 {
		return ErrNotProtocol
	}
	if code := reply[1]; code != 0 {
		return &RefusedError{Answer: shown(fmt.Sprintf("SOCKS reply %d %s", code, socksReplies[code])), Final: code == 2}
	}
	return passBound(conn, reply[3])
}

// greet agrees on how to sign in, and does.
func (p *Proxy) greet(conn net.Conn) error {
	methods := []byte{noSignIn}
	if p.User != "" {
		methods = append(methods, userPassword)
	}
	if _, err := conn.Write(append([]byte{socksVersion, byte(len(methods))}, methods...)); err != nil {
		return err
	}
	chosen, err := take(conn, 2)
	switch {
	case err != nil:
		return err
	case chosen[0] != socksVersion:
		return ErrNotProtocol
	case chosen[1] == noSignIn:
		return nil
	case chosen[1] == userPassword && p.User != "":
		return p.signIn(conn)
	case chosen[1] == 0xff:
		return &RefusedError{Answer: "SOCKS takes none of the ways to sign in that egressd has", Final: true}
	}
	return ErrNotProtocol
}

func (p *Proxy) signIn(conn net.Conn) error {
	ask := append([]byte{signInVersion, byte(len(p.User))}, p.User...)
	ask = append(append(ask, byte(len(p.Password))), p.Password...)
	if _, err := conn.Write(ask); err != nil {
		return err
	}
	answer, err := take(conn, 2)
	switch {
	case err != nil:
		return err
	case answer[1] != 0:
		return &RefusedError{Answer: "SOCKS user and password are not accepted", Final: true}
	}
	return nil
}

// passBound reads the address that ends a reply.
func passBound(conn net.Conn, kind byte) error {
	size := 0
	switch kind {
	case isIPv4:
		size = net.IPv4len
	case isIPv6:
		size = net.IPv6len
	case isName:
		n, err := take(conn, 1)
		if err != nil {
			return err
		}
		size = int(n[0])
	default:
		return ErrNotProtocol
	}
	_, err := take(conn, size+2) // with the port
	return err
}

func take(conn net.Conn, n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(conn, b)
	return b, err
}
