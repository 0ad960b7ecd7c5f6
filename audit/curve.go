package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"

	"filippo.io/edwards25519"
)

// What follows is Ed25519 of RFC 8032, to the byte what package crypto/ed25519 does, whose
// types are used. That package makes tables with its first key, with its first signature or
// check: 1.4 and 0.3 ms, which pay off from the sixtieth operation on. A log that is opened
// for a record or two, as egressd run does twice at its start, has six of them. Here one
// takes 50 µs, in constant time where a secret is in it, the first one too.

// secretOf returns the scalar and the prefix of a seed (RFC 8032 §5.1.5).
func secretOf(seed []byte) (s *edwards25519.Scalar, prefix [32]byte) {
	h := sha512.Sum512(seed)
	defer clear(h[:])
	s, err := edwards25519.NewScalar().SetBytesWithClamping(h[:32])
	if err != nil {
		panic(err) // only where the length is wrong
	}
	copy(prefix[:], h[32:])
	return s, prefix
}

// timesBase returns s times the base point, in constant time.
func timesBase(s *edwards25519.Scalar) []byte {
	return new(edwards25519.Point).ScalarMult(s, edwards25519.NewGeneratorPoint()).Bytes()
}

func generateKey() ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	defer clear(seed)
	rand.Read(seed) // never fails, see crypto/rand
	return keyFromSeed(seed)
}

// keyFromSeed is [ed25519.NewKeyFromSeed].
func keyFromSeed(seed []byte) ed25519.PrivateKey {
	s, _ := secretOf(seed)
	return append(append(make(ed25519.PrivateKey, 0, ed25519.PrivateKeySize), seed...), timesBase(s)...)
}

// hashed returns the scalar that some texts stand for (RFC 8032 §5.1.6).
func hashed(texts ...[]byte) *edwards25519.Scalar {
	h := sha512.New()
	for _, text := range texts {
		h.Write(text)
	}
	s, err := edwards25519.NewScalar().SetUniformBytes(h.Sum(nil))
	if err != nil {
		panic(err) // only where the length is wrong
	}
	return s
}

// sign is [ed25519.Sign].
func sign(key ed25519.PrivateKey, message []byte) []byte {
	s, prefix := secretOf(key[:ed25519.SeedSize])
	defer clear(prefix[:])
	nonce := hashed(prefix[:], message)
	r := timesBase(nonce)
	challenge := hashed(r, key[ed25519.SeedSize:], message)
	return append(r, edwards25519.NewScalar().MultiplyAdd(challenge, s, nonce).Bytes()...)
}

// verify is [ed25519.Verify], of what is no secret.
func verify(key ed25519.PublicKey, message, signature []byte) bool {
	if len(key) != ed25519.PublicKeySize || len(signature) != ed25519.SignatureSize {
		return false
	}
	a, err := new(edwards25519.Point).SetBytes(key)
	if err != nil {
		return false
	}
	s, err := edwards25519.NewScalar().SetCanonicalBytes(signature[32:])
	if err != nil {
		return false
	}
	challenge := hashed(signature[:32], key, message)
	r := new(edwards25519.Point).VarTimeMultiScalarMult(
		[]*edwards25519.Scalar{s, challenge}, []*edwards25519.Point{edwards25519.NewGeneratorPoint(), a.Negate(a)})
	return bytes.Equal(r.Bytes(), signature[:32])
}
