// Package sink sends records of the audit log to receivers of the operator: an OpenTelemetry collector, a
// syslog server, a file or a socket.
//
//	sinks := sink.NewSet(dir, origin, onError)
//	err := sinks.Apply([]sink.Config{{Name: "siem", Type: "otlp", URL: "http://127.0.0.1:4318/v1/logs"}})
//	…
//	sinks.Stop(3 * time.Second)
//
// The log on disk is the queue. A sink only reads it, takes no lock, and blocks nothing but itself. A sink
// saves its position in the folder of the log. After a restart of egressd or of the receiver, it goes on from that position. No record is left out. A record may be sent twice, in order and with the same sequence number,
// by which the receiver can detect it.
//
// The connections belong to egressd and not to a sandbox. They go to the configured address, follow no
// redirect and ignore proxy variables.
package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// A target sends batches to a receiver. It is not safe for concurrent use.
type target interface {
	// send sends a batch. It returns nil if the receiver has it, as far as the transport can tell. A
	// *refusedError says that the receiver will never accept it.
	send(ctx context.Context, b *batch) error

	// life is done when the current connection has ended.
	life() context.Context

	// unsure returns the number of bytes sent last that may be lost with the connection although send
	// returned nil.
	unsure() int64

	close()
}

// A refusedError says that the receiver rejects the data as invalid.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// A keptError is one after which the receiver has all that it had taken before.
type keptError struct{ error }

func (e *keptError) Unwrap() error { return e.error }

// A laterError says that the receiver asks to wait.
type laterError struct {
	error
	after time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

func newTarget(c *Config, from export.Origin) (target, error) {
	if c.Format != "json" {
		if _, ok := export.Named(c.Format); !ok {
			return nil, fmt.Errorf("there is no format %q", c.Format)
		}
	}
	switch c.Type {
	case "otlp":
		return newCollector(c, from)
	case "syslog":
		return newSyslog(c, from)
	case "file":
		return &file{path: c.Path}, nil
	case "unix":
		return newStream("unix", c.Path, nil, appendLine), nil
	}
	return nil, fmt.Errorf("there is no type %q", c.Type)
}

// appendLine ends an entry with a newline. No entry contains one.
func appendLine(b []byte, e export.EncodedRecord) []byte { return append(append(b, e.Text...), '\n') }

// withoutURL removes the URL from an error of an HTTP client, since its query may hold a credential.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// cutAddress splits an address such as "tcp:host:port".
func cutAddress(address string) (network, at string, err error) {
	network, at, _ = strings.Cut(address, ":")
	switch network {
	case "udp", "tcp", "tls":
		if _, _, err := net.SplitHostPort(at); err != nil {
			return "", "", fmt.Errorf("address %q: %w", address, err)
		}
	case "unix":
		if !strings.HasPrefix(at, "/") {
			return "", "", fmt.Errorf("address %q: a socket has an absolute path", address)
		}
	default:
		return "", "", fmt.Errorf("address %q: write udp:, tcp:, tls: or unix: in front of it", address)
	}
	return network, at, nil
}

// newSyslog returns a target for messages of RFC 5424. UDP (RFC 5426) and the socket of a local daemon
// carry one message per datagram. TCP and TLS carry messages preceded by their length (RFC 6587 section
// 3.4.1, RFC 5425).
func newSyslog(c *Config, from export.Origin) (target, error) {
	process := os.Getpid()
	return newSyslogOf(c.Address, c.Roots, func(b []byte, e export.EncodedRecord) []byte { return export.Syslog(b, e, from, process) })
}

// newSyslogOf returns a target that sends the result of message for each entry.
func newSyslogOf(at string, roots *x509.CertPool, message func([]byte, export.EncodedRecord) []byte) (target, error) {
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
	counted := func(b []byte, e export.EncodedRecord) []byte {
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

// A Config configures one sink.
type Config struct {
	Name   string // also the name of the state file
	Type   string // "otlp", "syslog", "file" or "unix"
	URL    string // for "otlp"
	Format string // of the text: one of [export.Formats], or "json" for the stored lines

	// Address is for "syslog": "udp:host:port", "tcp:host:port", "tls:host:port" or "unix:/path".
	Address string

	// Path is the path of the file or socket.
	Path string

	// Headers are added to OTLP requests. They never appear in an error.
	Headers http.Header

	// Roots are the authorities for TLS; nil means those of the system.
	Roots *x509.CertPool
}

// receiver returns the address of the receiver for people. It leaves out the query, which may hold a
// credential.
func (c *Config) receiver() string {
	switch c.Type {
	case "otlp":
		place, _, _ := strings.Cut(c.URL, "?")
		return place
	case "syslog":
		return c.Address
	default:
		return c.Path
	}
}
