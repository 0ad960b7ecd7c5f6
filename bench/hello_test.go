//go:build linux

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"testing"
)

var errSeen = errors.New("seen")

// parseHello lets crypto/tls read a first flight.
func parseHello(t *testing.T, hello []byte) *tls.ClientHelloInfo {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		near.Write(hello)
		near.Read(make([]byte, 1)) // the alert
		near.Close()
	}()
	var seen *tls.ClientHelloInfo
	server := tls.Server(far, &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		seen = info
		return nil, errSeen
	}})
	if err := server.Handshake(); !errors.Is(err, errSeen) {
		t.Fatalf("crypto/tls does not read the hello: %v", err)
	}
	return seen
}

func TestTheRecordedHelloIsWhole(t *testing.T) {
	for _, name := range []string{originName, "localhost"} {
		hello, err := recordHello(name)
		if err != nil {
			t.Fatal(err)
		}
		info := parseHello(t, hello)
		if info.ServerName != name || !slices.Equal(info.SupportedVersions, []uint16{tls.VersionTLS13}) {
			t.Errorf("server name %q, versions %x", info.ServerName, info.SupportedVersions)
		}
		record, err := readRecord(bytes.NewReader(hello))
		if err != nil || !bytes.Equal(record, hello) || hello[0] != recordHandshake {
			t.Errorf("the hello is not one handshake record: % x…, %v", hello[:6], err)
		}
	}
}

func TestReadRecordRefusesHalfARecord(t *testing.T) {
	hello, err := recordHello(originName)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 4, 5, len(hello) - 1} {
		if _, err := readRecord(bytes.NewReader(hello[:n])); err == nil {
			t.Errorf("%d of %d bytes were a record", n, len(hello))
		}
	}
}

func TestTheCertificateIsGoodForEveryHostThatPeersUse(t *testing.T) {
	cert, err := makeCertificate()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pemOf(cert)) {
		t.Fatal("not a PEM certificate")
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{originName, "localhost", "127.0.0.1"} {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := leaf.VerifyHostname("other.test"); err == nil {
		t.Error("the certificate is good for any name")
	}
}
