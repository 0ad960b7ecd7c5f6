package tokens

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/egressd/egressd/internal/fair"
)

const (
	within     = 20 * time.Second // one question with its answer
	answerMost = 1 << 20          // bytes of an answer's body; GitHub's lists repositories
	headMost   = 64 << 10         // bytes of its head
)

// Addrs returns the addresses of a host, a name or an address, at which egressd may connect to a port. It returns an error if one
// of them is not open to egressd.
type Addrs func(ctx context.Context, host string, port uint16) ([]netip.Addr, error)

// An Asker asks servers of tokens over TLS. It uses no proxy, keeps no cookies and no connection, and follows no redirect. It
// connects to the addresses that its Addrs returns, and to no others. It is safe for concurrent use.
type Asker struct {
	http  *http.Client
	turns *fair.Turns // of questions to registries
}

// New returns an asker that verifies servers by roots, or by those of the system if that is nil.
func New(roots *x509.CertPool, addrs Addrs) *Asker {
	transport := &http.Transport{
		DialContext:     dialing(addrs),
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, TLSHandshakeTimeout: within / 3,
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: headMost, ForceAttemptHTTP2: true,
	}
	return &Asker{turns: fair.NewTurns(registriesMost), http: &http.Client{
		Timeout: within, Transport: bounded{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// dialing returns a function that connects to the first address that answers.
func dialing(addrs Addrs) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: within / 3}
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		host, digits, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			return nil, err
		}
		all, err := addrs(ctx, host, uint16(port))
		if err != nil {
			return nil, err
		}
		err = errors.New("it has no address")
		for _, addr := range all {
			if conn, err = dialer.DialContext(ctx, network, netip.AddrPortFrom(addr, uint16(port)).String()); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
}

// bounded ends the bodies of answers after answerMost bytes.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		reply.Body = http.MaxBytesReader(nil, reply.Body, answerMost)
	}
	return reply, err
}

// do sends a request, and returns the status and the body of the answer.
func (c *Asker) do(r *http.Request) (status int, body []byte, err error) {
	reply, err := c.http.Do(r)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot be reached: %s", plain(err))
	}
	defer reply.Body.Close()
	if body, err = io.ReadAll(reply.Body); err != nil {
		return 0, nil, errors.New("sent an answer that is too long, or broke it off")
	}
	return reply.StatusCode, body, nil
}

// plain returns the text of a connection's error. It leaves out the URL and the words of the server.
func plain(err error) string {
	if of, ok := errors.AsType[*url.Error](err); ok {
		return of.Err.Error()
	}
	return "its answer is no token"
}

// CheckURL returns an error for a URL that no secret may be sent to.
func CheckURL(text string) error {
	if u, err := url.Parse(text); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%.100q is no https URL; write it like https://id.example.com/oauth/token", text)
	}
	return nil
}
