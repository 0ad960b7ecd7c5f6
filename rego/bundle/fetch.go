package bundle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	maxBundleBytes = 16 << 20
	fetchWithin    = 30 * time.Second
	maxRedirects   = 3
	maxETag        = 1 << 10
)

// errUnchanged says that the server has the version that we already have.
var errUnchanged = errors.New("the server has nothing newer")

// A fetched is a server's response.
type fetched struct {
	body []byte
	etag string // entity tag, or digest of a registry's manifest; may be empty
}

// newClient returns a client that uses no proxy and no cookies, and follows redirects only to the same server. ca holds
// PEM certificates of authorities, or is empty for those of the system.
func newClient(ca []byte) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("its ca holds no certificate")
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            (&net.Dialer{Timeout: fetchWithin / 3}).DialContext,
			TLSClientConfig:        config,
			TLSHandshakeTimeout:    fetchWithin / 3,
			ForceAttemptHTTP2:      true,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: sameServer,
		Timeout:       fetchWithin,
	}, nil
}

func sameServer(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	case r.URL.Scheme != first.Scheme || r.URL.Host != first.Host || r.URL.User != nil:
		return errors.New("the server redirects to another server; name that one, if it is meant")
	}
	return nil
}

// download gets the bundle at the URL of a feed, unless its ETag is known.
func (f *Feed) download(ctx context.Context, known, token string) (*fetched, error) {
	header := http.Header{}
	if known != "" {
		header.Set("If-None-Match", known)
	}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	reply, err := get(ctx, f.client, f.url, header)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode == http.StatusNotModified && known != "" {
		return nil, errUnchanged
	}
	body, err := content(reply, maxBundleBytes)
	if err != nil {
		return nil, err
	}
	if len(body) < 2 || body[0] != 0x1f || body[1] != 0x8b {
		return nil, fmt.Errorf("the server answered with what is no bundle (content type %.60q)", reply.Header.Get("Content-Type"))
	}
	return &fetched{body, etagOf(reply)}, nil
}

func get(ctx context.Context, client *http.Client, u *url.URL, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("its URL cannot be asked for")
	}
	header.Set("Accept-Encoding", "identity")
	header.Set("User-Agent", "egressd")
	r.Header = header
	reply, err := client.Do(r)
	if err != nil {
		return nil, withoutURL(err)
	}
	return reply, nil
}

// content reads the complete body of a successful response.
func content(reply *http.Response, limit int64) ([]byte, error) {
	switch coding := reply.Header.Get("Content-Encoding"); {
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the server answered with status %d", reply.StatusCode)
	case coding != "" && !strings.EqualFold(coding, "identity"):
		return nil, fmt.Errorf("the server answered in the encoding %.20q, which was not asked for", coding)
	}
	body, err := io.ReadAll(io.LimitReader(reply.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer ended before it was whole: %w", withoutURL(err))
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("the answer is larger than %d KiB", limit>>10)
	}
	return body, nil
}

// etagOf returns the entity tag of a response if it can be sent back, else "".
func etagOf(reply *http.Response) string {
	etag := reply.Header.Get("ETag")
	if len(etag) > maxETag || len(reply.Header.Values("ETag")) > 1 {
		return ""
	}
	return etag
}

// withoutURL removes the variable parts of a network error and the URL, whose query may hold a secret.
func withoutURL(err error) error {
	var wrapped *url.Error
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the server did not answer within %s", fetchWithin)
	case errors.As(err, &op):
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	case errors.As(err, &wrapped):
		return wrapped.Err
	}
	return err
}

// maxErrorText bounds an error text in bytes. Errors of tar, TLS and HTTP quote their input, and a state
// with a long error could not be read again.
const maxErrorText = 1 << 10

// A shortened error has the beginning of another error's text.
type shortened struct{ error }

func (s shortened) Error() string { return clip(s.error.Error()) }
func (s shortened) Unwrap() error { return s.error }

func shorten(err error) error {
	if err == nil || len(err.Error()) <= maxErrorText {
		return err
	}
	return shortened{err}
}

func clip(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "") + "…"
}
