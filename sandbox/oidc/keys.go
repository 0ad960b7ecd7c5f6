package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/durable"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
)

const (
	maxKeys      = 100
	maxKeysBytes = 256 << 10

	// fetchWithin bounds one fetch, and so the wait of a request for it.
	fetchWithin = 5 * time.Second
	// renewAfter is the age from which keys are fetched again in the background. The old ones count until then.
	renewAfter = time.Hour
	// fetchEvery is the time between two fetches at least, whatever tokens name.
	fetchEvery = time.Minute
)

// An Issuer signs tokens. Keys is where its public keys are: a URL of https, or the path of a file.
type Issuer struct{ Name, Keys string }

// Issuers are issuers and their keys.
type Issuers struct{ byName map[string]*keySet }

// Open reads the keys that are files. Those of URLs are fetched when a token needs them, from servers whose
// certificates come from roots; nil means the system's.
func Open(issuers []Issuer, roots *x509.CertPool) (*Issuers, error) {
	all := &Issuers{map[string]*keySet{}}
	for _, i := range issuers {
		if before := all.byName[i.Name]; before != nil {
			if before.at != i.Keys {
				return nil, fmt.Errorf("the issuer %s has keys in two places; name one place in each of its sandboxes", i.Name)
			}
			continue
		}
		s := &keySet{at: i.Keys}
		if strings.HasPrefix(i.Keys, "https://") {
			s.client = newClient(roots)
		} else if err := s.read(); err != nil {
			return nil, fmt.Errorf("keys of the issuer %s: %s: %w", i.Name, i.Keys, err)
		}
		all.byName[i.Name] = s
	}
	return all, nil
}

// A keySet has the keys of one issuer.
type keySet struct {
	at     string
	client *http.Client // nil if at is a file, which is read once

	mu       sync.Mutex // guards what follows
	keys     map[string]publicKey
	fetched  time.Time     // when keys were; zero: never
	tried    time.Time     // when the last fetch began; zero: never
	failed   error         // why the last fetch brought nothing, or nil
	underway chan struct{} // closed when the fetch that is under way has ended; nil: none is
}

func (s *keySet) read() error {
	text, err := durable.Read(s.at, maxKeysBytes)
	if err == nil {
		s.keys, err = parseKeys(text)
	}
	return err
}

// inherit takes over what was fetched before, which may be nil, from the same place.
func (s *keySet) inherit(before *keySet) {
	if before == nil || s.client == nil || before.at != s.at {
		return
	}
	before.mu.Lock()
	defer before.mu.Unlock()
	s.keys, s.fetched = before.keys, before.fetched
}

// find returns the key of an id: a known one at once, an unknown one after a fetch. Old keys are fetched again beside.
// At most one fetch begins in fetchEvery.
func (s *keySet) find(ctx context.Context, v *Verifier, id string) (publicKey, error) {
	key, known, underway, err := s.look(v, id)
	if known || underway == nil {
		return key, err
	}
	select {
	case <-underway:
	case <-ctx.Done():
		return publicKey{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if key, known = s.keys[id]; !known {
		return publicKey{}, s.missing()
	}
	return key, nil
}

// look returns the key of an id, or what to wait for, or why there is none. It starts a fetch if one is due.
func (s *keySet) look(v *Verifier, id string) (key publicKey, known bool, underway chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, known = s.keys[id]
	now := v.now()
	old := !known || now.Sub(s.fetched) >= renewAfter
	if s.client != nil && old && s.underway == nil && (s.tried.IsZero() || now.Sub(s.tried) >= fetchEvery) && v.life.Err() == nil {
		s.tried, s.underway = now, make(chan struct{})
		v.fetches.Go(func() { s.fetch(v) })
	}
	if known {
		return key, true, nil, nil
	}
	return key, false, s.underway, s.missing()
}

// missing is why a key is not known. s.mu is held.
func (s *keySet) missing() error {
	if s.failed != nil {
		return s.failed
	}
	return ErrKey
}

// fetch replaces the keys. If that fails, the old ones stay.
func (s *keySet) fetch(v *Verifier) {
	keys, err := s.get(v.life)
	s.mu.Lock()
	before := s.failed
	s.failed = nil
	switch {
	case v.life.Err() != nil:
		s.failed = ErrClosed
	case err != nil:
		s.failed = fmt.Errorf("the keys of the issuer could not be fetched: %w", err)
	default:
		s.keys, s.fetched = keys, v.now()
	}
	failed := s.failed
	close(s.underway)
	s.underway = nil
	s.mu.Unlock()
	if before == nil && failed != nil && v.life.Err() == nil {
		v.complain(fmt.Errorf("%w (%s)", failed, s.at))
	}
}

// newClient returns a client that follows no redirects and uses no proxy.
func newClient(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: fetchWithin}).DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       fetchWithin,
	}
}

// get fetches the keys. The error holds nothing that the server said.
func (s *keySet) get(ctx context.Context) (map[string]publicKey, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.at, nil)
	if err != nil {
		return nil, errors.New("their URL cannot be asked for")
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "egressd")
	reply, err := s.client.Do(r)
	if err != nil {
		return nil, plainError(err)
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered with status %d", reply.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxKeysBytes+1))
	switch {
	case err != nil:
		return nil, plainError(err)
	case len(text) > maxKeysBytes:
		return nil, fmt.Errorf("the answer is larger than %d KiB", maxKeysBytes>>10)
	}
	return parseKeys(text)
}

// plainError leaves the URL out of a network error, and what a server could have put into it.
func plainError(err error) error {
	var timeout net.Error
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var op *net.OpError
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("the server did not answer within %s", fetchWithin)
	case errors.As(err, &unknown):
		return errors.New("the server's certificate comes from an authority that is not trusted; if it is to be, name its file under tls.extra_roots")
	case errors.As(err, &name):
		return errors.New("the server's certificate is for another host")
	case errors.As(err, &op) && op.Op == "dial":
		return errors.New("the server cannot be reached")
	}
	return errors.New("the server broke off")
}

// parseKeys reads a JSON Web Key Set (RFC 7517). Keys that no token may be verified by are left out: without an id, for
// encryption, private, or of another kind than RSA and P-256. jwx takes no RSA key of less than 2048 bits.
func parseKeys(text []byte) (map[string]publicKey, error) {
	set, err := jwk.Parse(text, jwk.WithMaxKeys(maxKeys), jwk.WithStrictKeySetParsing(false), jwk.WithRejectDuplicateKID(true))
	if err != nil {
		return nil, fmt.Errorf("they are no JSON Web Key Set of at most %d keys, each with an id of its own", maxKeys)
	}
	keys := map[string]publicKey{}
	for i := range set.Len() {
		key, ok := set.Key(i)
		if !ok {
			continue
		}
		algorithm, usable := algorithmOf(key)
		id, named := key.KeyID()
		if usable && named && id != "" {
			keys[id] = publicKey{algorithm, key}
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("they hold no public key with an id for RS256 or ES256")
	}
	return keys, nil
}

// algorithmOf returns the only algorithm that a key is used with.
func algorithmOf(key jwk.Key) (algorithm jwa.SignatureAlgorithm, usable bool) {
	if private, err := jwk.IsPrivateKey(key); err != nil || private {
		return algorithm, false
	}
	switch public := key.(type) {
	case jwk.RSAPublicKey:
		algorithm, usable = jwa.RS256(), true
	case jwk.ECDSAPublicKey:
		curve, _ := public.Crv()
		algorithm, usable = jwa.ES256(), curve == jwa.P256()
	}
	if use, ok := key.KeyUsage(); ok && use != "" && use != string(jwk.ForSignature) {
		usable = false
	}
	if named, ok := key.Algorithm(); ok && named.String() != algorithm.String() {
		usable = false
	}
	return algorithm, usable
}
