package daemon

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"reflect"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/policy/file"
)

// maxHeaderFile bounds what is read of a file of headers, or of authorities.
const (
	maxHeaderFile = 64 << 10
	maxCAFile     = 4 << 20
)

// sinksOf are the sinks of the file, with what it points to. No error holds a part of
// a header.
func sinksOf(c *config.Config) ([]sink.Config, error) {
	var all []sink.Config
	for i := range c.File.Audit.Sinks {
		one, err := sinkOf(c, &c.File.Audit.Sinks[i])
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("sink %s: %w", c.File.Audit.Sinks[i].Name, err), "correct audit.sinks in "+c.Path)
		}
		all = append(all, one)
	}
	if err := sink.Check(all); err != nil {
		return nil, hint.Misused(err, "correct audit.sinks in "+c.Path)
	}
	return all, nil
}

func sinkOf(c *config.Config, s *file.Sink) (sink.Config, error) {
	one := sink.Config{Name: s.Name, Type: s.Type, URL: s.URL, Address: s.Address, Format: s.Format}
	if s.Path != "" {
		one.Path = c.Relative(s.Path)
	}
	if s.HeadersFile != "" {
		var err error
		if one.Headers, err = readHeaders(c, s.HeadersFile); err != nil {
			return one, err
		}
	}
	var err error
	one.Roots, err = authorities(c, s.CAFile)
	return one, err
}

// readHeaders reads a file of header fields.
func readHeaders(c *config.Config, path string) (http.Header, error) {
	text, err := durable.Read(c.Relative(path), maxHeaderFile)
	if err != nil {
		return nil, err
	}
	headers, err := parseHeaders(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Relative(path), err)
	}
	return headers, nil
}

// authorities reads a file of certificates; without one they are the system's, nil.
func authorities(c *config.Config, path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := durable.Read(c.Relative(path), maxCAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", c.Relative(path))
	}
	return roots, nil
}

// parseHeaders reads lines of the form "Name: value". Empty lines, and those that
// begin with "#", count for nothing.
func parseHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, "\r \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		value = strings.TrimLeft(value, " \t")
		if !found || !isHeaderName(name) || value == "" || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil, fmt.Errorf("line %d is not of the form \"Name: value\"", i+1)
		}
		headers.Add(textproto.CanonicalMIMEHeaderKey(name), value)
	}
	if len(headers) == 0 {
		return nil, errors.New("it holds no header")
	}
	return headers, nil
}

func isHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c))
	})
}

// sameLog reports whether two sections say the same of the log itself, which is
// opened at the start only.
func sameLog(a, b file.Audit) bool {
	a.Sinks, b.Sinks, a.Anchors, b.Anchors = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}
