//go:build !linux

package dns

import (
	"net"
	"net/netip"
)

// ignore does nothing: egressd drops the datagrams itself.
func ignore(*net.UDPConn, []netip.Addr) {}
