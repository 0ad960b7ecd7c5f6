package sink

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// A collector receives logs by OTLP/HTTP with JSON.
type collector struct {
	url     string
	headers http.Header
	from    export.Origin
	client  *http.Client
	body    []byte
}

func newCollector(c *Config, from export.Origin) (*collector, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "":
		return nil, errors.New("the url is none; write http://127.0.0.1:4318/v1/logs or the like")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the url begins with neither http:// nor https://")
	case u.User != nil:
		return nil, errors.New("the url holds a password; use headers_file")
	}
	return &collector{url: c.URL, headers: c.Headers.Clone(), from: from, client: newClient(c.Roots)}, nil
}

// newClient returns an HTTP client for one receiver. It follows no redirect and ignores proxy variables.
func newClient(roots *x509.CertPool) *http.Client {
	transport := &http.Transport{
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: sendWithin / 3}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    sendWithin / 3,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns:           1,
		IdleConnTimeout:        time.Minute,
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

const maxAnswer = 64 << 10

// send posts a batch. The batch counts as received after a complete answer with status 200.
func (c *collector) send(ctx context.Context, b *batch) error {
	if len(b.entries) == 0 {
		return nil
	}
	c.body = export.OTLP(c.body[:0], b.entries, c.from, time.Now())
	request, err := http.NewRequestWithContext(ctx, "POST", c.url, bytes.NewReader(c.body))
	if err != nil {
		return withoutURL(err)
	}
	for name, values := range c.headers {
		request.Header[name] = values
	}
	if host := c.headers.Get("Host"); host != "" {
		request.Host = host
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "egressd/"+c.from.Version)
	response, answer, err := exchange(c.client, request)
	if err != nil {
		return err
	}
	return judge(response, answer)
}

// exchange sends a request and reads the answer, of which it returns at most maxAnswer bytes.
func exchange(client *http.Client, request *http.Request) (*http.Response, []byte, error) {
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, withoutURL(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, nil, fmt.Errorf("the answer broke off: %w", err)
	}
	return response, answer, nil
}

// judge converts an answer to an error. The error never repeats text of the receiver, which may echo the
// request.
func judge(response *http.Response, answer []byte) error {
	status := fmt.Errorf("the receiver answered %d", response.StatusCode)
	switch response.StatusCode {
	case http.StatusOK:
		return judgePartial(answer)
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &refusedError{status.Error()}
	}
	return later(response, status)
}

func later(response *http.Response, err error) error {
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if after, bad := strconv.Atoi(strings.TrimSpace(response.Header.Get("Retry-After"))); bad == nil && after > 0 {
			return &laterError{err, time.Duration(min(after, 3600)) * time.Second}
		}
	}
	return err
}

// judgePartial reads a partialSuccess. The receiver has stored all other records, and must not get the
// rejected ones again.
func judgePartial(answer []byte) error {
	var said struct {
		PartialSuccess struct {
			RejectedLogRecords json.RawMessage `json:"rejectedLogRecords"`
		} `json:"partialSuccess"`
	}
	if len(answer) > 0 && json.Unmarshal(answer, &said) == nil {
		if n := strings.Trim(string(said.PartialSuccess.RejectedLogRecords), `"`); n != "" && n != "0" && n != "null" {
			return &partialError{n}
		}
	}
	return nil
}

// A partialError reports that the receiver rejected some records of a batch.
type partialError struct{ count string }

func (e *partialError) Error() string {
	return "the receiver rejected " + clean(e.count) + " of a batch"
}

func (c *collector) life() context.Context { return context.Background() }
func (c *collector) unsure() int64         { return 0 }
func (c *collector) close()                { c.client.CloseIdleConnections() }
