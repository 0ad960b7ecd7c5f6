package audit

import (
	"crypto/ed25519"

	"golang.org/x/mod/sumdb/note"

	"github.com/egressd/egressd/audit/internal/format"
)

// A signer signs notes with a key that can be wiped, which those of package note
// cannot.
type signer struct {
	name string
	key  ed25519.PrivateKey
}

func (s *signer) Name() string { return s.name }

func (s *signer) KeyHash() uint32 { return format.KeyHash(s.public()) }

func (s *signer) Sign(text []byte) ([]byte, error) { return ed25519.Sign(s.key, text), nil }

// public returns the public key as it is written: name, key hash and key.
func (s *signer) public() string {
	key, err := note.NewEd25519VerifierKey(s.name, s.key.Public().(ed25519.PublicKey))
	if err != nil { // only where the length of the key is wrong
		return ""
	}
	return key
}

// wipe overwrites the key, as far as Go lets us: copies that its library made are
// left to the collector.
func (s *signer) wipe() { clear(s.key) }

func (s *signer) signNote(c *format.Checkpoint) ([]byte, error) {
	return note.Sign(&note.Note{Text: c.Text()}, s)
}
