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
	"github.com/egressd/egressd/rego"
)

// A Source says where a bundle is fetched and when it counts.
type Source struct {
	// URL is https://host/path, http://host/path or oci://host/repository:tag,
	// without userinfo and fragment.
	URL string

	// Key is what the bundle has to be signed with. It has to be given.
	Key rego.BundleKey

	// CA are authorities that the server's certificate may come from, in PEM. The
	// system's where it is empty.
	CA []byte

	// TokenFile holds what the server is told as a Bearer token. It is read for each
	// fetch, and sent over TLS alone. Empty: nothing is told.
	TokenFile string

	// Refresh is the time between two fetches, and MaxAge how long the last good
	// bundle counts after the server was last heard to have nothing newer.
	Refresh, MaxAge time.Duration
}

// Label names the source for a person: its URL without the parts in which there may
// be a secret.
func (s *Source) Label() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return "(no URL)"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment = nil, "", false, ""
	return u.String()
}

// Shares reports whether s and other are kept in one place. Two feeds of them would
// each remove what the other has.
func (s *Source) Shares(other *Source) bool { return s.identity("") == other.identity("") }

// Same reports whether a feed of s can go on as one of other.
func (s *Source) Same(other *Source) bool { return reflect.DeepEqual(s, other) }

// identity tells the source of one daemon from all others: what was signed with
// another key, or came from elsewhere, is not the last good bundle of this one.
func (s *Source) identity(owner string) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(owner), []byte(s.URL), s.Key.PEM, []byte(s.Key.Algorithm), []byte(s.Key.Scope)} {
		fmt.Fprintf(h, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// check returns the parsed URL of a source from which something can be fetched.
func (s *Source) check() (*url.URL, error) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return nil, errors.New("its URL cannot be read") // what the parser says quotes it
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

// maxTokenBytes bounds what is read of a token file.
const maxTokenBytes = 8 << 10

// token reads the token of the source; "" where it has none. No error holds a
// part of it.
func (s *Source) token() (string, error) {
	if s.TokenFile == "" {
		return "", nil
	}
	text, err := durable.Read(s.TokenFile, maxTokenBytes)
	token := strings.TrimRight(string(text), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("its token: %w", err)
	case token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", fmt.Errorf("its token: %s does not hold one word", s.TokenFile)
	}
	return token, nil
}
