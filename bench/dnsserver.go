//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"net"
)

const (
	dnsHeader = 12
	typeA     = 1
	classIN   = 1
	nameError = 3
	dnsTTL    = 300
)

// serveDNS answers queries on pc until it is closed, one at a time.
func serveDNS(pc net.PacketConn) error {
	buf := make([]byte, 1500)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return err
		}
		if answer := answerDNS(buf[:n]); answer != nil {
			// A lost answer shows as a failed operation on the other side.
			_, _ = pc.WriteTo(answer, from)
		}
	}
}

// answerDNS answers a query with one question (RFC 1035 section 4): originName
// and every name below it have the address 127.0.0.1 for 300 seconds and no
// other records; every other name does not exist. It returns nil for what it does not understand.
func answerDNS(query []byte) []byte {
	if len(query) < dnsHeader || query[2]&0xf8 != 0 || binary.BigEndian.Uint16(query[4:]) != 1 {
		return nil
	}
	name, end := questionName(query)
	if end < 0 || len(query) < end+4 {
		return nil
	}
	answer := bytes.Clone(query[:end+4])
	answer[2] |= 0x84                            // a response, authoritative; the query's RD stands
	answer[3] = 0x80                             // recursion available, no error
	clear(answer[6:dnsHeader])                   // no records yet
	kind := binary.BigEndian.Uint32(query[end:]) // type and class
	switch {
	case !ofOrigin(name):
		answer[3] |= nameError
	case kind == typeA<<16|classIN:
		answer[7] = 1
		answer = append(answer, 0xc0, dnsHeader, 0, typeA, 0, classIN)
		answer = binary.BigEndian.AppendUint32(answer, dnsTTL)
		answer = append(answer, 0, 4, 127, 0, 0, 1)
	}
	return answer
}

// ofOrigin says whether a name in wire form, whole, is originName or below it.
func ofOrigin(name []byte) bool {
	for len(name) > 1 {
		if bytes.EqualFold(name, []byte("\x05bench\x04test\x00")) {
			return true
		}
		name = name[1+name[0]:]
	}
	return false
}

// questionName returns the question's name in wire form and the offset behind
// it, or -1 where the name is cut short or compressed.
func questionName(query []byte) ([]byte, int) {
	for at := dnsHeader; at < len(query); {
		label := int(query[at])
		at += 1 + label
		switch {
		case label == 0:
			return query[dnsHeader:at], at
		case label > 63:
			return nil, -1
		}
	}
	return nil, -1
}
