// Package testaws checks signatures of AWS as its servers do, for tests. It follows "Create a signed AWS API request" in the
// guide of IAM, and shares no code with the signer of egressd.
package testaws

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A Key is what a server knows of a caller.
type Key struct{ ID, Secret, Token string }

// A Scope is what a signature was made for.
type Scope struct{ Region, Service string }

// Verify returns the scope of the signature of r, whose body is given, or an error if the key did not sign it. r is as a server of
// net/http got it.
func (k Key) Verify(r *http.Request, body []byte) (s Scope, err error) {
	var credential, signedHeaders, signature string
	auth := r.Header.Values("Authorization")
	if len(auth) != 1 {
		return s, fmt.Errorf("%d fields Authorization", len(auth))
	}
	if _, err := fmt.Sscanf(auth[0], "AWS4-HMAC-SHA256 Credential=%s SignedHeaders=%s Signature=%s", &credential, &signedHeaders, &signature); err != nil {
		return s, err
	}
	parts := strings.Split(strings.TrimSuffix(credential, ","), "/")
	if len(parts) != 5 || parts[0] != k.ID || parts[4] != "aws4_request" {
		return s, errors.New("the key is unknown")
	}
	s = Scope{parts[2], parts[3]}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || time.Since(at).Abs() > 15*time.Minute || !strings.HasPrefix(date, parts[1]) {
		return s, fmt.Errorf("the date is %q", date)
	}
	if got := r.Header.Get("X-Amz-Security-Token"); got != k.Token {
		return s, errors.New("the session token is another")
	}
	names := strings.Split(strings.TrimSuffix(signedHeaders, ","), ";")
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") && !slices.Contains(names, lower) {
			return s, fmt.Errorf("%s is not signed", lower)
		}
	}
	if !slices.Contains(names, "host") || !slices.IsSorted(names) {
		return s, fmt.Errorf("signed fields %v", names)
	}
	hash, err := payload(r.Header.Get("X-Amz-Content-Sha256"), s.Service, body)
	if err != nil {
		return s, err
	}
	canonical := []string{r.Method, canonicalPath(r, s.Service), canonicalQuery(r)}
	for _, name := range names {
		value := strings.Join(r.Header.Values(name), ",")
		if name == "host" {
			value = r.Host
		}
		canonical = append(canonical, name+":"+strings.Join(strings.Fields(value), " "))
	}
	canonical = append(canonical, "", strings.Join(names, ";"), hash)
	text := strings.Join([]string{"AWS4-HMAC-SHA256", date, strings.Join(parts[1:], "/"), sum([]byte(strings.Join(canonical, "\n")))}, "\n")
	key := []byte("AWS4" + k.Secret)
	for _, part := range append(parts[1:4:4], "aws4_request") {
		key = mac(key, part)
	}
	if want := hex.EncodeToString(mac(key, text)); want != signature {
		return s, errors.New("the signature does not match:\n" + strings.Join(canonical, "\n"))
	}
	return s, nil
}

func payload(sent, service string, body []byte) (string, error) {
	switch {
	case sent == "" && service == "s3":
		return "", errors.New("no X-Amz-Content-Sha256")
	case sent == "":
		return sum(body), nil
	case len(sent) == 64 && sent != sum(body):
		return "", errors.New("X-Amz-Content-Sha256 does not match")
	}
	return sent, nil
}

func canonicalPath(r *http.Request, service string) string {
	raw, _, _ := strings.Cut(r.RequestURI, "?")
	if service == "s3" {
		raw, _ = url.PathUnescape(raw)
	}
	return encode(raw, "/")
}

func canonicalQuery(r *http.Request) string {
	_, raw, ok := strings.Cut(r.RequestURI, "?")
	if !ok || raw == "" {
		return ""
	}
	var pairs []string
	for part := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(part, "=")
		name, _ = url.PathUnescape(name)
		value, _ = url.PathUnescape(value)
		pairs = append(pairs, encode(name, "")+"="+encode(value, ""))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

func encode(text, also string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~"+also, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
