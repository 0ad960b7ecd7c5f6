package credentials

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"strings"
)

// mark stands in every placeholder, so that people and scanners know it.
const mark = "EGRESSD"

// A Key makes the placeholders of one egressd. Equal keys make equal ones. Whoever knows the key can make a
// placeholder, and gets no secret by it.
type Key [32]byte

// NewKey returns a random key.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // it never fails
	return k
}

const placeholderDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// core returns the part of a placeholder that belongs to one sandbox and one credential: the mark and 29 letters and
// digits, 172 bits.
func (k *Key) core(sandbox, name string) string {
	h := hmac.New(sha256.New, k[:])
	h.Write([]byte(sandbox + "\x00" + name))
	out := []byte(mark)
	for _, b := range h.Sum(nil)[:29] {
		out = append(out, placeholderDigits[int(b)%len(placeholderDigits)])
	}
	return string(out)
}

// placeholder is what stands for a secret in a sandbox. It has the beginning of the secret, as tools look at it.
func (c *Credential) placeholder(key *Key, sandbox string, text func(template string) string) string {
	return beginning(c.Prefixes, text) + key.core(sandbox, c.Name)
}

// beginning is the prefix that the secret has, or the first one.
func beginning(prefixes []string, text func(template string) string) string {
	if len(prefixes) == 0 {
		return ""
	}
	secret := text("{}")
	for _, p := range prefixes {
		if strings.HasPrefix(secret, p) {
			return p
		}
	}
	return prefixes[0]
}

// isPlaceholder reports whether a text is the placeholder with that core. The secret may have been read again since the
// sandbox was given it, and begin otherwise now.
func (c *Credential) isPlaceholder(text, core string) bool {
	rest, ok := strings.CutSuffix(text, core)
	if !ok {
		return false
	}
	if rest == "" {
		return len(c.Prefixes) == 0
	}
	for _, p := range c.Prefixes {
		if rest == p {
			return true
		}
	}
	return false
}
