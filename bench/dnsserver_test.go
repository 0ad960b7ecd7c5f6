//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
)

func query(name string, kind byte) []byte {
	q := []byte{0xab, 0xcd, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1}
	q = append(append(q, name...), 0, kind, 0, classIN)
	return append(q, 0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0) // EDNS
}

func TestAnAddressIsAnswered(t *testing.T) {
	got := answerDNS(query("\x05bEnch\x04tesT\x00", typeA))
	want := []byte("\xab\xcd\x85\x80\x00\x01\x00\x01\x00\x00\x00\x00" +
		"\x05bEnch\x04tesT\x00\x00\x01\x00\x01" +
		"\xc0\x0c\x00\x01\x00\x01\x00\x00\x01\x2c\x00\x04\x7f\x00\x00\x01")
	if !bytes.Equal(got, want) {
		t.Errorf("answer\n% x, want\n% x", got, want)
	}
}

func TestNamesBelowTheOriginHaveItsAddress(t *testing.T) {
	for _, name := range []string{"\x01n\x05bench\x04test\x00", "\x01a\x02n1\x05bENCH\x04test\x00"} {
		if got := answerDNS(query(name, typeA)); len(got) != 12+len(name)+4+16 || got[3] != 0x80 || got[7] != 1 {
			t.Errorf("%q: answer % x", name, got)
		}
	}
}

func TestAnotherTypeHasNoData(t *testing.T) {
	got := answerDNS(query("\x05bench\x04test\x00", 28))
	if len(got) != 12+16 || got[3] != 0x80 || got[7] != 0 {
		t.Errorf("answer % x", got)
	}
}

func TestAnotherNameDoesNotExist(t *testing.T) {
	for _, name := range []string{"\x05other\x04test\x00", "\x06xbench\x04test\x00", "\x0cn\x05bench\x04test\x00", "\x05bench\x04test\x01x\x00", "\x04test\x00", "\x00"} {
		if got := answerDNS(query(name, typeA)); len(got) < 12 || got[3]&0xf != nameError || got[7] != 0 {
			t.Errorf("%q: answer % x", name, got)
		}
	}
}

func TestNonsenseIsNotAnswered(t *testing.T) {
	good := query("\x05bench\x04test\x00", typeA)
	for n := range 12 + 12 + 3 {
		if got := answerDNS(good[:n]); got != nil {
			t.Errorf("the first %d bytes were answered with % x", n, got)
		}
	}
	response := bytes.Clone(good)
	response[2] |= 0x80
	two := bytes.Clone(good)
	two[5] = 2
	for _, q := range [][]byte{response, two, query("\xc0\x0c", typeA), query("\x40"+strings.Repeat("a", 64)+"\x00", typeA)} {
		if got := answerDNS(q); got != nil {
			t.Errorf("% x was answered with % x", q, got)
		}
	}
}

func TestGoResolvesTheOrigin(t *testing.T) {
	var port int
	if err := startDNS(&port, make(chan error, 1)); err != nil {
		t.Fatal(err)
	}
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	}}
	addrs, err := r.LookupHost(context.Background(), originName+".")
	if err != nil || len(addrs) != 1 || addrs[0] != "127.0.0.1" {
		t.Errorf("%s is at %v, %v", originName, addrs, err)
	}
	var failure *net.DNSError
	if _, err := r.LookupHost(context.Background(), "other.test."); !errors.As(err, &failure) || !failure.IsNotFound {
		t.Errorf("other.test: %v", err)
	}
}
