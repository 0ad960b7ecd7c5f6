//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

// originName is the name that the origins go by; bench's name server, and the
// origins' certificate, know it.
const originName = "bench.test"

// recordHello returns the first flight of a TLS 1.3 client for serverName:
// one record, as crypto/tls writes it.
func recordHello(serverName string) ([]byte, error) {
	near, far := net.Pipe()
	defer far.Close()
	failed := make(chan error, 1)
	go func() {
		defer near.Close()
		failed <- tls.Client(near, clientTLS(serverName, nil)).Handshake()
	}()
	far.SetReadDeadline(time.Now().Add(5 * time.Second))
	hello, err := readRecord(far)
	far.Close()
	<-failed // always an error: nobody answered
	if err != nil {
		return nil, fmt.Errorf("recording a ClientHello: %w", err)
	}
	return hello, nil
}

// clientTLS is the client that both the recorded hello and the tls scenario
// show.
func clientTLS(serverName string, roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		ServerName:             serverName,
		RootCAs:                roots,
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"http/1.1"},
		SessionTicketsDisabled: true,
	}
}

// readRecord reads one TLS record, header included.
func readRecord(r io.Reader) ([]byte, error) {
	record := make([]byte, 5)
	if _, err := io.ReadFull(r, record); err != nil {
		return nil, err
	}
	record = append(record, make([]byte, binary.BigEndian.Uint16(record[3:]))...)
	_, err := io.ReadFull(r, record[5:])
	return record, err
}

// sum is the origin's answer to a first flight, by which the client knows that
// it arrived unchanged.
func sum(b []byte) (s byte) {
	for _, c := range b {
		s += c
	}
	return s
}

// makeCertificate returns a self-signed ECDSA certificate for the origins.
func makeCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: originName},
		DNSNames:              []string{originName, "localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func pemOf(cert tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
}
