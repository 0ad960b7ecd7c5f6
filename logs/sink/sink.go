// Package sink sends records of the audit log to receivers of the operator: an OpenTelemetry collector, a
// syslog server, a file or a socket.
//
//	sinks := sink.NewSet(dir, origin, onError)
//	err := sinks.Apply([]sink.Config{{Name: "siem", Type: "otlp", URL: "http://127.0.0.1:4318/v1/logs"}})
//	…
//	sinks.Stop(3 * time.Second)
//
// The log on disk is the queue. A sink only reads it, takes no lock, and blocks nothing but itself. Its
// position is saved in the folder of the log, so it continues there after a restart of egressd or of the
// receiver. No record is left out. A record may be sent twice, in order and with the same sequence number,
// by which the receiver can detect it.
//
// The connections belong to egressd and not to a sandbox. They go to the configured address, follow no
// redirect and ignore proxy variables.
package sink

import (
	"crypto/x509"
	"net/http"
	"strings"
)

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
