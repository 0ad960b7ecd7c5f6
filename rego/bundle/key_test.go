package bundle

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
)

func TestBundleKeysThatAreRefused(t *testing.T) {
	private, public := testKey(t, "P-256")
	signed, err := Sign(mustBuild(t, BuildOptions{}), SignOptions{KeyPEM: private, Now: signingTime})
	if err != nil {
		t.Fatal(err)
	}
	der := func(kind string, bytes []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	}
	pkix := func(key any) []byte {
		bytes, err := x509.MarshalPKIXPublicKey(key)
		return der("PUBLIC KEY", bytes, err)
	}
	weak := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 1023, 1), E: 65537}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	exchange, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		key  Key
		want string
	}{
		{"none", Key{}, "not a key in PEM"},
		{"no PEM", Key{PEM: []byte("secret")}, "not a key in PEM"},
		{"text in front", Key{PEM: append([]byte("# key\n"), public...)}, "not a key in PEM"},
		{"two keys", Key{PEM: append(bytes.Clone(public), public...)}, "more than one key"},
		{"a private key", Key{PEM: private}, "openssl pkey -pubout"},
		{"a certificate", Key{PEM: der("CERTIFICATE", []byte("x"), nil)}, `"CERTIFICATE"`},
		{"rubbish in PEM", Key{PEM: der("PUBLIC KEY", []byte("x"), nil)}, "asn1"},
		{"headers", Key{PEM: bytes.Replace(public, []byte("-----\n"), []byte("-----\nProc-Type: 4,ENCRYPTED\n\n"), 1)}, "headers"},
		{"weak RSA", Key{PEM: pkix(weak)}, "at least 2048"},
		{"a small curve", Key{PEM: pkix(&p224.PublicKey)}, "P-224"},
		{"a key that does not sign", Key{PEM: pkix(exchange.PublicKey())}, "does not sign bundles"},
		{"a secret's algorithm", Key{PEM: public, Algorithm: "HS256"}, "it is one for ES256"},
		{"no algorithm", Key{PEM: public, Algorithm: "none"}, "it is one for ES256"},
		{"another algorithm", Key{PEM: public, Algorithm: "ES384"}, "it is one for ES256"},
	} {
		_, err := Read(signed, &c.key, signingTime)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrWrongKey) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
}

func TestBundleKeysInOtherForms(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecDER, err := x509.MarshalECPrivateKey(ecKey)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ private, public *pem.Block }{
		"PKCS #1": {&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)}, &pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)}},
		"SEC 1":   {&pem.Block{Type: "EC PRIVATE KEY", Bytes: ecDER}, &pem.Block{Type: "PUBLIC KEY", Bytes: mustPKIX(t, &ecKey.PublicKey)}},
	} {
		signed, err := Sign(mustBuild(t, BuildOptions{}), SignOptions{KeyPEM: pem.EncodeToMemory(c.private), Now: signingTime})
		if err == nil {
			_, err = Read(signed, &Key{PEM: pem.EncodeToMemory(c.public)}, signingTime)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func mustPKIX(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
