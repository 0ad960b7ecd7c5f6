package oidc

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/sandbox"
	"github.com/google/go-cmp/cmp"
)

func TestClaimsOfAGoodToken(t *testing.T) {
	v := verifier(t)
	first, _ := rsaKeys()
	values := map[string]string{"iss": issuer, "sub": "sandbox", "team_id": "team_1", "sandbox_id": "sbx_1"}
	for says, row := range map[string]struct {
		token string
		want  *sandbox.Claims
	}{
		"RSA":               {signed(t, headerOf("RS256", "r"), claims(nil), withRSA(t, first)), &sandbox.Claims{Issuer: issuer, Audience: []string{"https://egress.test"}, Values: values}},
		"P-256":             {signed(t, headerOf("ES256", "e"), claims(nil), withEC(t, ecKey())), &sandbox.Claims{Issuer: issuer, Audience: []string{"https://egress.test"}, Values: values}},
		"several audiences": {signed(t, headerOf("ES256", "e"), claims(fieldsOf{"aud": []string{"a", "b"}}), withEC(t, ecKey())), &sandbox.Claims{Issuer: issuer, Audience: []string{"a", "b"}, Values: values}},
		"no audience":       {signed(t, headerOf("ES256", "e"), claims(fieldsOf{"aud": nil}), withEC(t, ecKey())), &sandbox.Claims{Issuer: issuer, Values: values}},
		"a clock that is behind": {signed(t, headerOf("ES256", "e"), claims(fieldsOf{"exp": at(-50 * time.Second)}), withEC(t, ecKey())),
			&sandbox.Claims{Issuer: issuer, Audience: []string{"https://egress.test"}, Values: values}},
		"a clock that is ahead": {signed(t, headerOf("ES256", "e"), claims(fieldsOf{"nbf": at(50 * time.Second), "iat": at(50 * time.Second)}), withEC(t, ecKey())),
			&sandbox.Claims{Issuer: issuer, Audience: []string{"https://egress.test"}, Values: values}},
	} {
		got, err := v.Verify(t.Context(), row.token)
		if diff := cmp.Diff(row.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", says, err, diff)
		}
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	v := verifier(t)
	first, second := rsaKeys()
	byRSA, byEC := withRSA(t, first), withEC(t, ecKey())
	good := signed(t, headerOf("RS256", "r"), claims(nil), byRSA)
	der, err := x509.MarshalPKIXPublicKey(&first.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	nothing := func([]byte) []byte { return nil }
	head, body, signature := parts(good)
	withHeader := func(change fieldsOf) fieldsOf {
		all := headerOf("RS256", "r")
		for name, value := range change {
			if all[name] = value; value == nil {
				delete(all, name)
			}
		}
		return all
	}
	for _, row := range []struct {
		says, token string
		want        error
	}{
		{"nothing", "", ErrMalformed},
		{"a word", "token", ErrMalformed},
		{"two parts", head + "." + body, ErrMalformed},
		{"four parts", good + "." + signature, ErrMalformed},
		{"five parts, as encrypted tokens have", good + ".." + signature, ErrMalformed},
		{"a space behind", good + " ", ErrMalformed},
		{"a line end", good + "\n", ErrMalformed},
		{"padding", head + "=." + body + "." + signature, ErrMalformed},
		{"base64 that is not for URLs", head + "." + body + "+/." + signature, ErrMalformed},
		{"the JSON form", string(marshal(t, fieldsOf{"protected": head, "payload": body, "signature": signature})), ErrMalformed},
		{"claims without a header", string(marshal(t, claims(nil))), ErrMalformed},
		{"more than 8 KiB", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"more": strings.Repeat("a", 8<<10)}), byRSA), ErrMalformed},
		{"a header that is no JSON", signed(t, "header", claims(nil), byRSA), ErrMalformed},
		{"claims that are no JSON", signed(t, headerOf("RS256", "r"), "claims", byRSA), ErrMalformed},
		{"claims that are a list", signed(t, headerOf("RS256", "r"), "[]", byRSA), ErrMalformed},

		{"no algorithm", signed(t, headerOf("none", "r"), claims(nil), nothing), ErrMalformed}, // it has no signature
		{"no algorithm, with a signature", signed(t, headerOf("none", "r"), claims(nil), byRSA), ErrAlgorithm},
		{"NONE", signed(t, headerOf("NONE", "r"), claims(nil), byRSA), ErrMalformed},
		{"an algorithm that is missing", signed(t, withHeader(fieldsOf{"alg": nil}), claims(nil), byRSA), ErrAlgorithm},
		{"an algorithm in lower case", signed(t, headerOf("rs256", "r"), claims(nil), byRSA), ErrMalformed},
		{"HMAC with the public key as the secret", signed(t, headerOf("HS256", "r"), claims(nil), withHMAC(public)), ErrAlgorithm},
		{"HMAC with the DER of the public key", signed(t, headerOf("HS256", "r"), claims(nil), withHMAC(der)), ErrAlgorithm},
		{"HMAC that says it is RSA", signed(t, headerOf("RS256", "r"), claims(nil), withHMAC(public)), ErrSignature},
		{"RS512", signed(t, headerOf("RS512", "r"), claims(nil), byRSA), ErrAlgorithm},
		{"PS256", signed(t, headerOf("PS256", "r"), claims(nil), byRSA), ErrAlgorithm},
		{"an RSA algorithm with an EC key", signed(t, headerOf("RS256", "e"), claims(nil), byEC), ErrAlgorithm},
		{"an EC algorithm with an RSA key", signed(t, headerOf("ES256", "r"), claims(nil), byRSA), ErrAlgorithm},
		{"an algorithm in another letter case of the name", signed(t, `{"ALG":"RS256","kid":"r"}`, claims(nil), byRSA), ErrAlgorithm},

		{"no kid", signed(t, withHeader(fieldsOf{"kid": nil}), claims(nil), byRSA), ErrKey},
		{"an empty kid", signed(t, headerOf("RS256", ""), claims(nil), byRSA), ErrKey},
		{"an unknown kid", signed(t, headerOf("RS256", "other"), claims(nil), byRSA), ErrKey},
		{"a kid that is a path", signed(t, headerOf("RS256", "../../../../dev/null"), claims(nil), withHMAC(nil)), ErrKey},
		{"a kid that is a URL", signed(t, headerOf("RS256", "https://evil.test/keys"), claims(nil), withRSA(t, second)), ErrKey},
		{"a kid with a zero byte", signed(t, headerOf("RS256", "r\x00"), claims(nil), byRSA), ErrKey},
		{"a kid that is a number", signed(t, withHeader(fieldsOf{"kid": 1}), claims(nil), byRSA), ErrMalformed},
		{"a key of the token's own", signed(t, withHeader(fieldsOf{"jwk": rsaJWK("r", &second.PublicKey)}), claims(nil), withRSA(t, second)), ErrSignature},
		{"keys at a URL of the token's own", signed(t, withHeader(fieldsOf{"jku": "http://127.0.0.1:1/keys"}), claims(nil), withRSA(t, second)), ErrSignature},
		{"a certificate at a URL", signed(t, withHeader(fieldsOf{"x5u": "http://127.0.0.1:1/cert"}), claims(nil), withRSA(t, second)), ErrSignature},
		{"an extension", signed(t, withHeader(fieldsOf{"crit": []string{"exp"}, "exp": 1}), claims(nil), byRSA), ErrExtension},
		{"an unencoded payload", signed(t, withHeader(fieldsOf{"crit": []string{"b64"}, "b64": false}), claims(nil), byRSA), ErrExtension},

		{"a spoiled signature", spoiled(good), ErrSignature},
		{"another's signature", signed(t, headerOf("RS256", "r"), claims(nil), withRSA(t, second)), ErrSignature},
		{"other claims under a signature", head + "." + encode(marshal(t, claims(fieldsOf{"sandbox_id": "sbx_2"}))) + "." + signature, ErrSignature},
		{"another header over a signature", encode(marshal(t, withHeader(fieldsOf{"typ": "JOSE"}))) + "." + body + "." + signature, ErrSignature},

		{"another issuer", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"iss": "https://issuer.test/other"}), byRSA), ErrIssuer},
		{"the issuer above", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"iss": "https://issuer.test"}), byRSA), ErrIssuer},
		{"the issuer with a slash", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"iss": issuer + "/"}), byRSA), ErrIssuer},
		{"no issuer", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"iss": nil}), byRSA), ErrIssuer},
		{"a list of issuers", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"iss": []string{issuer}}), byRSA), ErrMalformed},
		{"expired", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"exp": at(-61 * time.Second)}), byRSA), ErrExpired},
		{"no end", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"exp": nil}), byRSA), ErrEndless},
		{"not yet", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"nbf": at(61 * time.Second)}), byRSA), ErrEarly},
		{"from the future", signed(t, headerOf("RS256", "r"), claims(fieldsOf{"iat": at(61 * time.Second)}), byRSA), ErrEarly},
	} {
		got, err := v.Verify(t.Context(), row.token)
		if !errors.Is(err, row.want) || got != nil {
			t.Errorf("%s: %v, %v; want %v", row.says, got, err, row.want)
		}
	}
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Errorf("the token that the others are made of: %v", err)
	}
}

func parts(token string) (head, body, signature string) {
	all := strings.Split(token, ".")
	return all[0], all[1], all[2]
}

func TestKeysThatAreNotUsed(t *testing.T) {
	first, second := rsaKeys()
	good := rsaJWK("r", &first.PublicKey)
	with := func(change fieldsOf) fieldsOf {
		all := rsaJWK("r", &first.PublicKey)
		for name, value := range change {
			if all[name] = value; value == nil {
				delete(all, name)
			}
		}
		return all
	}
	const none = "they hold no public key with an id for RS256 or ES256"
	for _, row := range []struct{ says, text, want string }{
		{"no JSON", "keys", "they are no JSON Web Key Set"},
		{"HTML", "<html>", "they are no JSON Web Key Set"},
		{"nothing", "{}", "they"},
		{"no keys", `{"keys":[]}`, none},
		{"a secret", string(keySetText(t, fieldsOf{"kty": "oct", "kid": "r", "k": "AAAA"})), none},
		{"a private key", string(keySetText(t, with(fieldsOf{"d": encode(first.D.Bytes())}))), none},
		{"a key for encryption", string(keySetText(t, with(fieldsOf{"use": "enc"}))), none},
		{"a key for another algorithm", string(keySetText(t, with(fieldsOf{"alg": "PS256"}))), none},
		{"no id", string(keySetText(t, with(fieldsOf{"kid": nil}))), none},
		{"a short key", string(keySetText(t, with(fieldsOf{"n": encode(first.N.Bytes()[:128])}))), none},
		{"an id twice", string(keySetText(t, good, rsaJWK("r", &second.PublicKey))), "each with an id of its own"},
		{"another kind beside", string(keySetText(t, good, fieldsOf{"kty": "AKP", "kid": "x", "alg": "ML-DSA-44"}, with(fieldsOf{"kid": nil}))), ""},
	} {
		_, err := parseKeys([]byte(row.text))
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v, want %q", row.says, err, row.want)
		}
	}
	path := filepath.Join(t.TempDir(), "keys.json")
	if _, err := Open([]Issuer{{issuer, path}}, nil); err == nil || !strings.Contains(err.Error(), "keys of the issuer "+issuer) {
		t.Errorf("a file that is missing: %v", err)
	}
	if err := os.WriteFile(path, keySetText(t, good), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open([]Issuer{{issuer, path}, {issuer, path}, {issuer, path + "2"}}, nil); err == nil || !strings.Contains(err.Error(), "has keys in two places") {
		t.Errorf("two places: %v", err)
	}
}
