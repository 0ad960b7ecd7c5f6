// Package oidc verifies tokens of OpenID Connect issuers: JSON Web Tokens (RFC 7519) in the compact form. An issuer's
// keys come from the URL or the file that the operator named. The package takes no key and no URL from a token, and no
// algorithm but RS256 and ES256, each with a key of its kind. It does not say whom a token proves: package sandbox does.
//
//	trusted, err := oidc.Open([]oidc.Issuer{{Name: "https://issuer.example.com", Keys: "keys.json"}}, nil)
//	…
//	v := oidc.New(complain)
//	v.Use(trusted)
//	claims, err := v.Verify(ctx, token)
//	…
//	v.Close()
package oidc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/sandbox"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/lestrrat-go/jwx/v3/jwt"
)

// Why a token is refused. The texts are constant, so that replies and records may hold them. The keys of an issuer
// that cannot be had are an error beside these.
var (
	ErrMalformed = errors.New("the token is no JSON Web Token of at most 8 KiB in the compact form")
	ErrAlgorithm = errors.New("the token is signed by another algorithm than RS256 or ES256, or by another than that of its key")
	ErrExtension = errors.New("the token has extensions that must be understood (crit)")
	ErrIssuer    = errors.New("the token has an issuer that no sandbox lists")
	ErrKey       = errors.New("the issuer's keys do not hold the one that the token names (kid)")
	ErrSignature = errors.New("the token's signature is wrong")
	ErrExpired   = errors.New("the token has expired")
	ErrEarly     = errors.New("the token is not valid yet (nbf, iat)")
	ErrEndless   = errors.New("the token does not say when it expires (exp)")
	ErrClosed    = errors.New("egressd is stopping")
)

const (
	maxToken = 8 << 10
	// Skew is how far clocks of issuers may be from this one's.
	Skew = 60 * time.Second
)

// A Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	complain func(error)
	now      func() time.Time // for tests
	issuers  atomic.Pointer[Issuers]
	life     context.Context // until Close
	die      context.CancelFunc
	fetches  sync.WaitGroup
}

// New returns a verifier that knows no issuer. complain is told once each time that keys can no longer be fetched; it
// is called by any goroutine.
func New(complain func(error)) *Verifier {
	v := &Verifier{complain: complain, now: time.Now}
	v.life, v.die = context.WithCancel(context.Background())
	v.issuers.Store(new(Issuers))
	return v
}

// Use has v trust these issuers from now on, and no others. Keys that were fetched for one of them already are kept.
func (v *Verifier) Use(issuers *Issuers) {
	before := v.issuers.Load()
	for name, keys := range issuers.byName {
		keys.inherit(before.byName[name])
	}
	v.issuers.Store(issuers)
}

// Close ends what is being fetched, and waits for that. Verify must not be called after it.
func (v *Verifier) Close() {
	v.die()
	v.fetches.Wait()
}

// Verify returns the claims of a token that a trusted issuer has signed and that is valid now. It may wait for keys, for
// [fetchWithin] at most; ctx ends the wait.
func (v *Verifier) Verify(ctx context.Context, token string) (*sandbox.Claims, error) {
	head, issuer, err := peek(token)
	if err != nil {
		return nil, err
	}
	keys := v.issuers.Load().byName[issuer]
	if keys == nil {
		return nil, ErrIssuer
	}
	key, err := keys.find(ctx, v, head.id)
	if err != nil {
		return nil, err
	}
	if key.algorithm.String() != head.algorithm {
		return nil, ErrAlgorithm
	}
	verified, err := jwt.Parse([]byte(token), jwt.WithKey(key.algorithm, key.public), jwt.WithValidate(false))
	if err != nil {
		return nil, ErrSignature
	}
	if err := v.timely(verified); err != nil {
		return nil, err
	}
	return claimsOf(verified, issuer)
}

// A header has the fields of a token's header that count. It holds what nobody has verified.
type header struct{ algorithm, id string }

// peek reads what decides by which key a token is to be verified.
func peek(token string) (header, string, error) {
	if len(token) > maxToken || !compact(token) {
		return header{}, "", ErrMalformed
	}
	message, err := jws.ParseString(token, jws.WithCompact())
	if err != nil || len(message.Signatures()) != 1 {
		return header{}, "", ErrMalformed
	}
	fields := message.Signatures()[0].ProtectedHeaders()
	algorithm, known := fields.Algorithm()
	id, named := fields.KeyID()
	switch {
	case fields.Has(jws.CriticalKey):
		return header{}, "", ErrExtension
	case !known || algorithm != jwa.RS256() && algorithm != jwa.ES256():
		return header{}, "", ErrAlgorithm
	case !named || id == "":
		return header{}, "", ErrKey
	}
	claims, err := jwt.ParseInsecure([]byte(token))
	if err != nil {
		return header{}, "", ErrMalformed
	}
	issuer, ok := claims.Issuer()
	if !ok {
		return header{}, "", ErrIssuer
	}
	return header{algorithm.String(), id}, issuer, nil
}

// compact reports whether a text is three parts of base64url with points between them (RFC 7515 section 7.1).
func compact(token string) bool {
	parts := strings.Split(token, ".")
	for _, part := range parts {
		if part == "" || strings.Trim(part, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return len(parts) == 3
}

// timely returns nil if a token is valid now, give or take [Skew].
func (v *Verifier) timely(token jwt.Token) error {
	if at, ok := token.Expiration(); !ok || at.IsZero() {
		return ErrEndless
	}
	err := jwt.Validate(token, jwt.WithClock(jwt.ClockFunc(v.now)), jwt.WithAcceptableSkew(Skew))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jwt.TokenExpiredError()):
		return ErrExpired
	}
	return ErrEarly
}

func claimsOf(token jwt.Token, issuer string) (*sandbox.Claims, error) {
	c := &sandbox.Claims{Issuer: issuer, Values: map[string]string{}}
	if said, _ := token.Issuer(); said != issuer {
		return nil, ErrIssuer
	}
	c.Audience, _ = token.Audience()
	for _, name := range token.Keys() {
		var text string
		if token.Get(name, &text) == nil {
			c.Values[name] = text
		}
	}
	return c, nil
}

// A publicKey is one key of an issuer, and the only algorithm for it.
type publicKey struct {
	algorithm jwa.SignatureAlgorithm
	public    jwk.Key
}
