//go:build linux

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
)

// startInspectedNew: CONNECT, a handshake that a certificate under j.Roots
// has to answer, one request, close.
func startInspectedNew(j *job, _ *tally) (operation, error) {
	config, err := j.clientTLS()
	if err != nil {
		return operation{}, err
	}
	v := visit{j.tunnel(j.Origins.Inspected), config, j.pageStep(originName, "Connection: close\r\n")}
	buf := make([]byte, 1<<14)
	return operation{func() error { return v.once(buf) }, nothing}, nil
}

// startInspectedNames does what startInspectedNew does, and asks for a name
// below originName that was never asked for: next counts the job's names.
func startInspectedNames(next *atomic.Int64) starter {
	return func(j *job, _ *tally) (operation, error) {
		config, err := j.clientTLS()
		if err != nil {
			return operation{}, err
		}
		buf := make([]byte, 1<<14)
		return operation{func() error {
			name := fmt.Sprintf("n%d-%d.%s", j.Serial, next.Add(1), originName)
			v := visit{j.tunnelTo(j.hostFor(name), j.Origins.Inspected), config.Clone(), j.pageStep(name, "Connection: close\r\n")}
			v.config.ServerName = name
			return v.once(buf)
		}, nothing}, nil
	}
}

// startInspectedKept: requests inside one connection, which is opened again
// where the other side ends it.
func startInspectedKept(j *job, t *tally) (operation, error) {
	config, err := j.clientTLS()
	if err != nil {
		return operation{}, err
	}
	k := &kept{
		visit: visit{j.tunnel(j.Origins.Inspected), config, j.pageStep(originName, "")},
		tally: t,
		buf:   make([]byte, 1<<14),
	}
	return operation{k.do, k.drop}, nil
}

// clientTLS is the configuration of a client that trusts j.Roots alone.
func (j *job) clientTLS() (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(j.Roots) {
		return nil, errors.New("no certificate to verify the inspected connection with")
	}
	return clientTLS(serverName(j.Host), roots), nil
}

// hostFor is what the proxy is asked for to reach a name below originName: a
// proxy that cannot resolve the names knows them by the server name alone.
func (j *job) hostFor(name string) string {
	if j.Host == originName {
		return name
	}
	return j.Host
}

// pageStep asks host for the page, with more fields in the head.
func (j *job) pageStep(host, fields string) step {
	authority := net.JoinHostPort(host, strconv.Itoa(j.Origins.Inspected))
	return step{[]byte("GET / HTTP/1.1\r\nHost: " + authority + "\r\nUser-Agent: bench\r\nAccept: */*\r\n" + fields + "\r\n"), thePage}
}

// A visit is a TLS connection in a tunnel, and what is asked in it.
type visit struct {
	tunnel *script
	config *tls.Config
	ask    step
}

// once opens the connection, asks, and closes.
func (v *visit) once(buf []byte) error {
	c, err := v.tunnel.open(buf)
	if err != nil {
		return err
	}
	defer c.close()
	_, err = v.ask.over(tls.Client(blockingConn{c}, v.config), buf)
	return err
}

// over goes through the step on a connection that is not a bare client's.
func (s *step) over(c io.ReadWriter, buf []byte) (progress, error) {
	if _, err := c.Write(s.send); err != nil {
		return more, err
	}
	for n := 0; n < len(buf); {
		m, err := c.Read(buf[n:])
		if err != nil {
			return more, err
		}
		n += m
		if p, err := s.check(buf[:n]); err != nil || p != more {
			return p, err
		}
	}
	return more, errTooLong
}

// kept is a visit that goes on as long as the other side lets it.
type kept struct {
	visit
	tally *tally
	buf   []byte
	conn  client
	tls   *tls.Conn // nil where there is no connection
}

func (k *kept) do() error {
	if k.tls == nil {
		var err error
		if k.conn, err = k.tunnel.open(k.buf); err != nil {
			return err
		}
		k.tls = tls.Client(blockingConn{k.conn}, k.config)
	}
	p, err := k.ask.over(k.tls, k.buf)
	if p == last {
		k.tally.reopened++
	}
	if err != nil || p == last {
		k.drop()
	}
	return err
}

func (k *kept) drop() {
	if k.tls != nil {
		k.conn.close()
		k.tls = nil
	}
}
