package sink

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strconv"

	"github.com/egressd/egressd/logs/export"
)

// newSyslog returns a target for messages of RFC 5424: over UDP one a datagram
// (RFC 5426), over TCP and TLS with their length in front (RFC 6587 section 3.4.1,
// RFC 5425), and to the socket of a local daemon one a datagram.
func newSyslog(c *Config, from export.Origin) (target, error) {
	process := os.Getpid()
	return newSyslogOf(c.Address, c.Roots, func(b []byte, e export.Entry) []byte { return export.Syslog(b, e, from, process) })
}

// newSyslogOf returns a target for what message makes of an entry.
func newSyslogOf(at string, roots *x509.CertPool, message func([]byte, export.Entry) []byte) (target, error) {
	network, address, err := cutAddress(at)
	if err != nil {
		return nil, err
	}
	switch network {
	case "udp":
		return &packets{networks: []string{"udp"}, address: address, frame: message}, nil
	case "unix":
		return &packets{networks: []string{"unixgram", "unix"}, address: address, frame: message}, nil
	}
	counted := func(b []byte, e export.Entry) []byte {
		text := message(nil, e)
		b = strconv.AppendInt(b, int64(len(text)), 10)
		b = append(b, ' ')
		return append(b, text...)
	}
	if network == "tcp" {
		return newStream("tcp", address, nil, counted), nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	secure := &tls.Config{ServerName: host, RootCAs: roots, MinVersion: tls.VersionTLS12}
	return newStream("tcp", address, secure, counted), nil
}
