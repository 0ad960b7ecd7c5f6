package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The keys of these tests are made once: RSA takes its time.
var rsaKeys = sync.OnceValues(func() (first, second *rsa.PrivateKey) {
	first, _ = rsa.GenerateKey(rand.Reader, 2048)
	second, _ = rsa.GenerateKey(rand.Reader, 2048)
	return first, second
})

var ecKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return key
})

type fieldsOf = map[string]any

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// signed returns a token, which no library has made.
func signed(t testing.TB, header, claims any, sign func(input []byte) []byte) string {
	t.Helper()
	text := func(v any) []byte {
		if raw, ok := v.(string); ok {
			return []byte(raw)
		}
		return marshal(t, v)
	}
	input := encode(text(header)) + "." + encode(text(claims))
	return input + "." + encode(sign([]byte(input)))
}

func withRSA(t testing.TB, key *rsa.PrivateKey) func([]byte) []byte {
	return func(input []byte) []byte {
		sum := sha256.Sum256(input)
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
}

func withEC(t testing.TB, key *ecdsa.PrivateKey) func([]byte) []byte {
	return func(input []byte) []byte {
		sum := sha256.Sum256(input)
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
}

func withHMAC(secret []byte) func([]byte) []byte {
	return func(input []byte) []byte {
		sum := hmac.New(sha256.New, secret)
		sum.Write(input)
		return sum.Sum(nil)
	}
}

func rsaJWK(id string, key *rsa.PublicKey) fieldsOf {
	return fieldsOf{"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256", "n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes())}
}

func ecJWK(id string, key *ecdsa.PublicKey) fieldsOf {
	point, err := key.Bytes()
	if err != nil {
		panic(err)
	}
	return fieldsOf{"kty": "EC", "crv": "P-256", "kid": id, "x": encode(point[1:33]), "y": encode(point[33:])}
}

func keySetText(t testing.TB, keys ...fieldsOf) []byte { return marshal(t, fieldsOf{"keys": keys}) }

const issuer = "https://issuer.test/acme"

// now is the time of the verifiers of these tests.
var now = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func at(after time.Duration) int64 { return now.Add(after).Unix() }

// claims are good ones, changed.
func claims(change fieldsOf) fieldsOf {
	all := fieldsOf{
		"iss": issuer, "aud": "https://egress.test", "sub": "sandbox", "iat": at(-time.Minute), "nbf": at(-time.Minute), "exp": at(time.Hour),
		"team_id": "team_1", "sandbox_id": "sbx_1", "v0": true,
	}
	for name, value := range change {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

// verifier returns one that trusts the keys in a file.
func verifier(t testing.TB) *Verifier {
	t.Helper()
	first, _ := rsaKeys()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, keySetText(t, rsaJWK("r", &first.PublicKey), ecJWK("e", &ecKey().PublicKey)), 0o600); err != nil {
		t.Fatal(err)
	}
	return verifierOf(t, path)
}

func verifierOf(t testing.TB, keys string) *Verifier {
	t.Helper()
	trusted, err := Open([]Issuer{{issuer, keys}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v := New(func(err error) { t.Errorf("complained: %v", err) })
	v.now = func() time.Time { return now }
	v.Use(trusted)
	t.Cleanup(v.Close)
	return v
}

func headerOf(algorithm, id string) fieldsOf {
	return fieldsOf{"typ": "JWT", "alg": algorithm, "kid": id}
}

// spoiled returns a token with one bit of its signature changed.
func spoiled(token string) string {
	last := strings.LastIndexByte(token, '.') + 1
	signature, _ := base64.RawURLEncoding.DecodeString(token[last:])
	signature[len(signature)/2] ^= 1
	return token[:last] + encode(signature)
}
