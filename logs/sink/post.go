package sink

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/egressd/egressd/internal/version"
)

// A Poster posts JSON to one receiver of the operator that takes no records, such as a webhook. It is safe for concurrent use.
type Poster struct{ to *collector }

// NewPoster returns a Poster. The certificate of the receiver comes from roots, or, if roots is nil, from the system's.
func NewPoster(url string, headers http.Header, roots *x509.CertPool) *Poster {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{Timeout: sendWithin / 3}).DialContext(ctx, network, address)
	}
	return &Poster{&collector{url: url, headers: headers.Clone(), client: newClient(roots, dial)}}
}

// Post posts a body. A status of 2xx is success. wait is how long the receiver asks to wait after an error, or 0. The error has no
// part of the URL or the headers, which may be secret.
func (p *Poster) Post(ctx context.Context, body []byte) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.to.url, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the url is none")
	}
	for name, values := range p.to.headers {
		request.Header[name] = values
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "egressd/"+version.This().Version)
	response, _, err := exchange(p.to.client, request)
	if err != nil {
		return 0, err
	}
	if response.StatusCode/100 == 2 {
		return 0, nil
	}
	err = later(response, fmt.Errorf("the receiver answered %d", response.StatusCode))
	if asked, ok := errors.AsType[*laterError](err); ok {
		wait = asked.after
	}
	return wait, err
}

// Close closes the idle connections.
func (p *Poster) Close() { p.to.client.CloseIdleConnections() }
