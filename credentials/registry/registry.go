// Package registry asks the token services of container registries for tokens ("Token Authentication Specification" of the
// distribution project). It connects to realms that the operator, or the table of egressd, names, and never to one that a
// registry sends.
//
//	client := registry.NewTokenClient(roots, lookup)
//	token, until, err := client.Token(ctx, credentials.TokenQuery{Realm: "https://auth.example.com/token", …})
package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/egressd/egressd/credentials"
)

const (
	patience   = 15 * time.Second
	answerMost = 64 << 10         // bytes
	usual      = 60 * time.Second // that a token lasts whose end is not said
	tokensMost = 4                // questions at a time; others wait
)

// A TokenClient asks for tokens. It is safe for concurrent use.
type TokenClient struct {
	http  *http.Client
	turns chan struct{}
}

// NewTokenClient returns a client that verifies token services by roots, and finds their addresses by lookup. It uses no proxy,
// keeps no cookies and follows no redirect.
func NewTokenClient(roots *x509.CertPool, lookup func(ctx context.Context, host string) ([]netip.Addr, error)) *TokenClient {
	dialer := &net.Dialer{Timeout: patience / 3}
	dial := func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		addrs := []netip.Addr{}
		if addr, err := netip.ParseAddr(host); err == nil {
			addrs = append(addrs, addr)
		} else if addrs, err = lookup(ctx, host); err != nil {
			return nil, err
		}
		err = errors.New("it has no address")
		for _, addr := range addrs {
			if conn, err = dialer.DialContext(ctx, network, net.JoinHostPort(addr.String(), port)); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
	return &TokenClient{turns: make(chan struct{}, tokensMost), http: &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    patience / 3,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: answerMost,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the token service redirects") },
		Timeout:       patience,
	}}
}

// Token asks for a token, and says when it ends. The error holds no part of a secret, and no scope.
func (c *TokenClient) Token(ctx context.Context, q credentials.TokenQuery) (token []byte, until time.Time, err error) {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return nil, until, ctx.Err()
	}
	u, err := url.Parse(q.Realm)
	if err != nil || u.Scheme != "https" {
		return nil, until, errors.New("the realm is no URL with https")
	}
	query := u.Query()
	query.Set("service", q.Service)
	if q.Scope != "" {
		query.Set("scope", q.Scope)
	}
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, until, errors.New("the realm cannot be asked")
	}
	r.Header.Set("User-Agent", "egressd")
	r.Header.Set("Accept", "application/json")
	r.SetBasicAuth(q.User, q.Password)
	asked := time.Now()
	reply, err := c.http.Do(r)
	if err != nil {
		return nil, until, fmt.Errorf("%s cannot be reached: %w", u.Host, withoutURL(err))
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return nil, until, fmt.Errorf("%s answered %d", u.Host, reply.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(reply.Body, answerMost+1))
	if err != nil || len(text) > answerMost {
		return nil, until, fmt.Errorf("the answer of %s is too long, or broke off", u.Host)
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Token+answer.AccessToken == "" {
		return nil, until, fmt.Errorf("%s answered with no token", u.Host)
	}
	lasts := usual
	if answer.ExpiresIn > 0 {
		lasts = min(time.Duration(answer.ExpiresIn)*time.Second, time.Hour)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	if strings.ContainsFunc(answer.Token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, until, fmt.Errorf("%s answered with no token", u.Host)
	}
	return []byte(answer.Token), asked.Add(lasts), nil
}

// withoutURL takes the URL, which holds the scope, out of an error of net/http.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
