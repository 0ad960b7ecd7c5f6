//go:build linux

package main

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
)

// origins is where the origin process can be reached, all on 127.0.0.1. The
// process writes it to its standard output as one JSON object.
type origins struct {
	Flight int    `json:"flight"` // answers a first flight with 1 byte, then echoes
	HTTP   int    `json:"http"`   // plain HTTP, kept alive
	TLS    int    `json:"tls"`    // TLS 1.3, kept alive
	Bulk   int    `json:"bulk"`   // sends without end after a first flight
	DNS    int    `json:"dns"`
	Cert   []byte `json:"cert"` // PEM, of the TLS origin

	Inspected int    `json:"inspected"` // as TLS; proxies are to look into tunnels to it
	H2        int    `json:"h2"`        // HTTP/2, to be looked into as well
	Root      []byte `json:"root"`      // PEM, of the authority behind Inspected and H2
}

const (
	pageBody = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	page     = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 128\r\n\r\n" + pageBody
)

// serveOrigins runs every origin, says where on out, and returns when in ends
// or an origin fails.
func serveOrigins(in io.Reader, out io.Writer) error {
	// The loops block in system calls; none is to wait for a processor after.
	runtime.GOMAXPROCS(4 * runtime.NumCPU())
	cert, err := makeCertificate()
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	root, inspected, err := inspectedCertificate()
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	where := origins{Cert: pemOf(cert), Root: root.pem()}
	failed := make(chan error, 8)
	starts := []func() error{
		func() error { return startLoops(&where.Flight, flightMode, failed) },
		func() error { return startLoops(&where.HTTP, httpMode, failed) },
		func() error { return startListener(&where.TLS, tlsOrigin(cert), failed) },
		func() error { return startListener(&where.Inspected, tlsOrigin(inspected), failed) },
		func() error { return startH2(&where.H2, inspected, failed) },
		func() error { return startListener(&where.Bulk, bulkOrigin, failed) },
		func() error { return startDNS(&where.DNS, failed) },
	}
	for _, start := range starts {
		if err := start(); err != nil {
			return fmt.Errorf("starting an origin: %w", err)
		}
	}
	if err := json.NewEncoder(out).Encode(where); err != nil {
		return err
	}
	go func() {
		_, err := io.Copy(io.Discard, in)
		failed <- err
	}()
	return <-failed
}

// startLoops serves one port with one epoll loop a processor.
func startLoops(port *int, mode originMode, failed chan<- error) error {
	fd, bound, err := listenRaw(0)
	if err != nil {
		return err
	}
	*port = bound
	for range runtime.NumCPU() {
		loop, err := newLoop(fd, mode)
		if err != nil {
			return err
		}
		go func() { failed <- loop.run() }()
	}
	return nil
}

func startListener(port *int, serve func(*net.TCPConn), failed chan<- error) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	*port = l.Addr().(*net.TCPAddr).Port
	go func() { failed <- acceptAll(l, serve) }()
	return nil
}

// acceptAll serves every connection in a goroutine and resets it afterwards.
func acceptAll(l *net.TCPListener, serve func(*net.TCPConn)) error {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if c.SetLinger(0) == nil {
				serve(c)
			}
		}()
	}
}

func startDNS(port *int, failed chan<- error) error {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	*port = pc.LocalAddr().(*net.UDPAddr).Port
	go func() { failed <- serveDNS(pc) }()
	return nil
}

// tlsOrigin answers one request after another until the client ends the
// connection, in whatever way.
func tlsOrigin(cert tls.Certificate) func(*net.TCPConn) {
	config := &tls.Config{
		Certificates:           []tls.Certificate{cert},
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"http/1.1"},
		SessionTicketsDisabled: true,
	}
	return func(c *net.TCPConn) {
		t := tls.Server(c, config)
		buf := make([]byte, 1024)
		for readRequest(t, buf) == nil {
			if _, err := t.Write([]byte(page)); err != nil {
				return
			}
		}
	}
}

// readRequest reads a request head into buf.
func readRequest(r io.Reader, buf []byte) error {
	for n := 0; ; {
		m, err := r.Read(buf[n:])
		n += m
		switch {
		case bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")):
			return nil
		case err != nil:
			return err
		case n == len(buf):
			return errors.New("request too long")
		}
	}
}

// bulkPeriod is the length after which the bytes of the bulk origin repeat.
// It is prime, so that a lost or doubled block is seen.
const bulkPeriod = 251

// bulkByte is the byte at an offset of what the bulk origin sends.
func bulkByte(offset int64) byte { return byte(offset % bulkPeriod) }

// bulkOrigin reads a first flight, answers it as the flight origin does, and
// sends until the client ends the connection.
func bulkOrigin(c *net.TCPConn) {
	hello, err := readRecord(c)
	if err != nil {
		return
	}
	if _, err := c.Write([]byte{sum(hello)}); err != nil {
		return
	}
	block := make([]byte, 1024*bulkPeriod)
	for i := range block {
		block[i] = bulkByte(int64(i))
	}
	for err == nil {
		_, err = c.Write(block)
	}
}

// A flight is how much of a client's first flight has arrived: a TLS record,
// or text that ends in an empty line.
type flight struct {
	got    int
	header [5]byte
	tail   uint32 // the last four bytes
	sum    byte
}

// take reads the part of b that belongs to the flight and returns its length
// and whether the flight is complete.
func (f *flight) take(b []byte) (n int, complete bool) {
	for n < len(b) && !complete {
		if f.got < len(f.header) {
			f.header[f.got] = b[n]
		}
		f.tail = f.tail<<8 | uint32(b[n])
		f.sum += b[n]
		f.got++
		n++
		complete = f.complete()
	}
	return n, complete
}

func (f *flight) complete() bool {
	const emptyLine = '\r'<<24 | '\n'<<16 | '\r'<<8 | '\n'
	if f.header[0] != recordHandshake {
		return f.tail == emptyLine
	}
	return f.got >= 5 && f.got == 5+int(binary.BigEndian.Uint16(f.header[3:]))
}

// recordHandshake is the first byte of a ClientHello's record.
const recordHandshake = 0x16
