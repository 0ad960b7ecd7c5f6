package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// A target is where a sink sends to. It is used by one goroutine.
type target interface {
	// send hands a batch over, and returns nil when the receiver has it, as far as
	// its transport tells. A *refusedError says that the receiver will never take it.
	send(ctx context.Context, b *batch) error

	// life is done when the connection at hand is known to have ended.
	life() context.Context

	// unsure is how many of the bytes sent last may be lost with the connection
	// although send returned nil.
	unsure() int64

	close()
}

// A refusedError says that the receiver takes what it was sent for wrong.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// A laterError says that the receiver asks for patience.
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

// appendLine frames an entry by a newline. No text holds one.
func appendLine(b []byte, e export.Entry) []byte { return append(append(b, e.Text...), '\n') }

// withoutURL is an error of an HTTP client without the URL, whose query may hold a
// credential.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// cutAddress reads "tcp:host:port" and the like.
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
