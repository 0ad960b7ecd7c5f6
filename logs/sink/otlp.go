package sink

import (
	"bytes"
	"cmp"
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
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// A collector receives logs by OTLP/HTTP with protobuf, which every receiver of OTLP takes.
type collector struct {
	url     string
	headers http.Header
	from    export.Origin
	client  *http.Client
	body    []byte

	connection atomic.Pointer[lifetime] // of the current one; the client dials on goroutines of its own
}

// A lifetime is done when a connection has ended.
type lifetime struct {
	ended context.Context
	end   context.CancelCauseFunc
}

func newLifetime() *lifetime {
	l := new(lifetime)
	l.ended, l.end = context.WithCancelCause(context.Background())
	return l
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
	t := &collector{url: c.URL, headers: c.Headers.Clone(), from: from}
	t.connection.Store(newLifetime())
	t.client = newClient(c.Roots, t.dial)
	return t, nil
}

// dial connects, and has life end with the connection: a collector that was restarted has lost what was in its memory.
func (c *collector) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: sendWithin / 3}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &watchedConn{conn, c.connection.Load().end}, nil
}

// A watchedConn tells of its end.
type watchedConn struct {
	net.Conn
	end context.CancelCauseFunc
}

func (c *watchedConn) Close() error {
	c.end(errGone)
	return c.Conn.Close()
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newClient returns an HTTP client for one receiver. It follows no redirect and ignores proxy variables.
func newClient(roots *x509.CertPool, dial dialFunc) *http.Client {
	transport := &http.Transport{
		Proxy:                  nil,
		DialContext:            dial,
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

// send posts a batch. The batch counts as received after a complete answer with status 200, 202 or 204.
func (c *collector) send(ctx context.Context, b *batch) error {
	if len(b.entries) == 0 {
		return nil
	}
	var err error
	if c.body, err = export.OTLP(c.body[:0], b.entries, c.from, time.Now()); err != nil {
		return &refusedError{err.Error()}
	}
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
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("User-Agent", "egressd/"+c.from.Version)
	response, answer, err := exchange(c.client, request)
	if err != nil {
		return err
	}
	return c.judge(response, readAnswer(response, answer))
}

// exchange sends a request and reads the answer, of which it returns at most maxAnswer bytes.
func exchange(client *http.Client, request *http.Request) (*http.Response, []byte, error) {
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, answered(withoutURL(err))
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, nil, answered(fmt.Errorf("the answer broke off: %w", err))
	}
	return response, answer, nil
}

// A collectorAnswer is what a receiver says: an ExportLogsServiceResponse, or a Status of gRPC beside an error.
type collectorAnswer struct {
	rejected int64
	words    string
}

// readAnswer reads the answer of a receiver in protobuf or JSON; any other text is words.
func readAnswer(response *http.Response, text []byte) (a collectorAnswer) {
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/x-protobuf") {
		a.rejected, a.words = export.OTLPAnswer(text, response.StatusCode/100 == 2)
		return a
	}
	var said struct {
		Message, Error string
		PartialSuccess struct {
			RejectedLogRecords json.RawMessage `json:"rejectedLogRecords"`
			ErrorMessage       string          `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(text, &said) != nil {
		return collectorAnswer{words: string(text)}
	}
	a.rejected, _ = strconv.ParseInt(strings.Trim(string(said.PartialSuccess.RejectedLogRecords), `"`), 10, 64) // 0 if there is none
	a.words = cmp.Or(said.PartialSuccess.ErrorMessage, said.Message, said.Error, string(text))
	return a
}

// judge converts an answer to an error, which has the words of the receiver.
func (c *collector) judge(response *http.Response, a collectorAnswer) error {
	switch response.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		// The receiver has stored all other records of a partial success, and must not get the rejected ones again.
		if a.rejected > 0 {
			return &partialError{a.rejected, c.words(a.words)}
		}
		return nil
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &refusedError{fmt.Sprintf("the receiver answered %d%s", response.StatusCode, c.words(a.words))}
	}
	return later(response, fmt.Errorf("the receiver answered %d%s", response.StatusCode, c.words(a.words)))
}

// maxWords bounds the words of a receiver, in bytes.
const maxWords = 160

// words returns what the receiver said, behind a colon. It leaves out credentials, which a receiver may echo.
func (c *collector) words(text string) string {
	if text = strings.Join(strings.Fields(text), " "); text == "" {
		return ""
	}
	for _, secret := range c.secrets() {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return ": " + clean(text[:min(len(text), maxWords)])
}

// secrets are the values of headers, with and without their first word, and what stands behind "?" in the URL.
func (c *collector) secrets() (all []string) {
	for _, values := range c.headers {
		for _, v := range values {
			all = append(all, v)
			if _, rest, ok := strings.Cut(v, " "); ok {
				all = append(all, rest)
			}
		}
	}
	if _, query, ok := strings.Cut(c.url, "?"); ok {
		all = append(all, query)
		for part := range strings.SplitSeq(query, "&") {
			if _, value, ok := strings.Cut(part, "="); ok {
				all = append(all, value)
			}
		}
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // the whole before its parts
	return all
}

// answered marks an error after which the receiver still has what it took before: it was slow. The client closes the connection
// then, and nobody restarted.
func answered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &keptError{err}
	}
	return err
}

func later(response *http.Response, err error) error {
	err = &keptError{err}
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if after, bad := strconv.Atoi(strings.TrimSpace(response.Header.Get("Retry-After"))); bad == nil && after > 0 {
			return &laterError{err, time.Duration(min(after, 3600)) * time.Second}
		}
	}
	return err
}

// A partialError reports that the receiver rejected some records of a batch, and keeps to itself which ones.
type partialError struct {
	count int64
	words string
}

func (e *partialError) Error() string {
	return fmt.Sprintf("the receiver rejected %d of a batch%s", e.count, e.words)
}

func (c *collector) life() context.Context { return c.connection.Load().ended }
func (c *collector) unsure() int64         { return unsureBytes }

func (c *collector) close() {
	c.client.CloseIdleConnections()
	c.connection.Store(newLifetime())
}
