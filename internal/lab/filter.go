package lab

import (
	"fmt"
	"syscall"
	"unsafe"
)

// An instruction is one of classic BPF, as in linux/filter.h.
type instruction struct {
	code   uint16
	jt, jf uint8 // how many instructions to skip
	k      uint32
}

// onlyOpenings drops in the kernel what no [Wire] keeps, so that bulk data
// cannot push the rest out of the socket's buffer: packets that were received,
// and TCP without SYN or with ACK. It sees packets from the IP header on.
var onlyOpenings = [...]instruction{
	{0x28, 0, 0, 0xfffff004}, // ld packet type (SKF_AD_PKTTYPE)
	{0x15, 0, 15, packetSent},
	{0x30, 0, 0, 0}, // ldb version
	{0x54, 0, 0, 0xf0},
	{0x15, 0, 5, 0x40}, // IPv4, else 10
	{0x30, 0, 0, 9},
	{0x15, 0, 9, ProtocolTCP}, // else keep
	{0xb1, 0, 0, 0},           // ldx header length
	{0x50, 0, 0, 13},          // ldb flags
	{0x05, 0, 0, 4},           // to 14
	{0x15, 0, 5, 0x60},        // IPv6, else keep
	{0x30, 0, 0, 6},
	{0x15, 0, 3, ProtocolTCP}, // else keep
	{0x30, 0, 0, 40 + 13},
	{0x54, 0, 0, 0x12}, // 14: SYN and ACK
	{0x15, 0, 1, 0x02}, // SYN alone, else drop
	{0x06, 0, 0, captureLength},
	{0x06, 0, 0, 0},
}

// attach puts the filter on a packet socket.
func attach(fd int) error {
	program := onlyOpenings
	arg := struct {
		length uint16
		first  *instruction
	}{uint16(len(program)), &program[0]}
	_, _, errno := syscall.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, syscall.SO_ATTACH_FILTER,
		uintptr(unsafe.Pointer(&arg)), unsafe.Sizeof(arg), 0)
	if errno != 0 {
		return fmt.Errorf("attach the filter: %w", errno)
	}
	return nil
}

// lost reports packets that the kernel dropped because the reader was slow.
// Reading the count resets it.
func (w *Wire) lost() error {
	const (
		solPacket        = 263 // of linux/socket.h
		packetStatistics = 6   // of linux/if_packet.h
	)
	var counts struct{ packets, drops uint32 }
	length := uint32(unsafe.Sizeof(counts))
	_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(w.fd), solPacket, packetStatistics,
		uintptr(unsafe.Pointer(&counts)), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return fmt.Errorf("packet statistics: %w", errno)
	}
	if counts.drops > 0 {
		return fmt.Errorf("the wire lost %d packets", counts.drops)
	}
	return nil
}
