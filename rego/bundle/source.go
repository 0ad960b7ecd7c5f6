package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// A Source configures where a bundle comes from and how long it is valid.
type Source struct {
	// URL is https://host/path, http://host/path or oci://host/repository:tag, without userinfo and
	// fragment.
	URL string

	// Key is the required key of the bundle's signature.
	Key Key

	// CA holds PEM certificates of authorities for the server. If it is empty, those of the system are
	// used.
	CA []byte

	// TokenFile holds a Bearer token. For a registry it may also hold NAME:PASSWORD, or docker's config.json. It is
	// read for each fetch and sent over TLS only. If it is empty, nobody logs in.
	TokenFile string

	// Refresh is the time between two fetches. MaxAge is how long a bundle stays valid after the last
	// successful contact with the server.
	Refresh, MaxAge time.Duration
}

// Label returns the URL without the parts that may hold a secret.
func (s *Source) Label() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return "(no URL)"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment = nil, "", false, ""
	return u.String()
}

// SameStore reports whether two sources are stored in the same folder. Their feeds would remove each
// other's bundles.
func (s *Source) SameStore(other *Source) bool { return s.identity("") == other.identity("") }

// Same reports whether a feed of s can continue as a feed of other.
func (s *Source) Same(other *Source) bool { return reflect.DeepEqual(s, other) }

// identity identifies the source of one daemon. A bundle with another key or from elsewhere is never its
// last good bundle.
func (s *Source) identity(owner string) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(owner), []byte(s.URL), s.Key.PEM, []byte(s.Key.Algorithm), []byte(s.Key.Scope)} {
		fmt.Fprintf(h, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (s *Source) check() (*url.URL, error) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return nil, errors.New("its URL cannot be read") // the parser's error quotes the URL
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "oci":
		return nil, fmt.Errorf("%s is neither https, http nor oci", u.Scheme)
	case u.Hostname() == "" || u.User != nil || u.Fragment != "":
		return nil, errors.New("its URL has no host, or userinfo or a fragment")
	case len(s.Key.PEM) == 0:
		return nil, errors.New("there is no key that it has to be signed with")
	case u.Scheme == "http" && s.TokenFile != "":
		return nil, errors.New("a token is not sent over http")
	}
	return u, nil
}

// maxTokenBytes is the maximum size of a token file.
const maxTokenBytes = 64 << 10

// token reads the token, or returns "" if the source has none. An error never contains part of the token.
func (s *Source) token() (string, error) {
	if s.TokenFile == "" {
		return "", nil
	}
	token, err := readTokenFile(s.TokenFile)
	if err == nil && strings.HasPrefix(token, "{") && !strings.HasPrefix(s.URL, "oci:") {
		err = fmt.Errorf("%s does not hold one word", s.TokenFile)
	}
	if err != nil {
		return "", fmt.Errorf("its token: %w", err)
	}
	return token, nil
}

// readTokenFile reads a token file: one word, or a JSON object as [loginFromFile] takes it. An error never contains part of the token.
func readTokenFile(path string) (string, error) {
	text, err := durable.Read(path, maxTokenBytes)
	token := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		return "", err
	case strings.HasPrefix(token, "{"):
		return token, nil
	case token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", fmt.Errorf("%s does not hold one word", path)
	}
	return token, nil
}
