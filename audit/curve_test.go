package audit

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"filippo.io/edwards25519"
)

// random returns so many bytes of a generator.
func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestKeysAndSignaturesAreTheStandardLibrarys: to the byte, for messages of all lengths.
func TestKeysAndSignaturesAreTheStandardLibrarys(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 150 {
		seed, message := randomBytes(r, ed25519.SeedSize), randomBytes(r, n)
		theirs := ed25519.NewKeyFromSeed(seed)
		ours := keyFromSeed(seed)
		if !bytes.Equal(ours, theirs) {
			t.Fatalf("the key of %x is %x, not %x", seed, ours, theirs)
		}
		if got, want := sign(ours, message), ed25519.Sign(theirs, message); !bytes.Equal(got, want) {
			t.Fatalf("the signature by %x of %x is %x, not %x", seed, message, got, want)
		}
	}
	if a, b := generateKey(), generateKey(); bytes.Equal(a, b) || !bytes.Equal(a, ed25519.NewKeyFromSeed(a.Seed())) {
		t.Error("a key that is made is the last one again, or none")
	}
}

// TestVerifiesWhatTheStandardLibraryDoes has signatures that are good, those in which one
// bit is another, and points and scalars that are special.
func TestVerifiesWhatTheStandardLibraryDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	good := 0
	agree := func(key, message, signature []byte) {
		t.Helper()
		got, want := verify(key, message, signature), ed25519.Verify(key, message, signature)
		if got != want {
			t.Fatalf("key %x, message %x, signature %x: %v, and it is %v", key, message, signature, got, want)
		}
		if want {
			good++
		}
	}
	for range 20 {
		key, message := keyFromSeed(randomBytes(r, ed25519.SeedSize)), randomBytes(r, 40)
		public, signature := []byte(key[32:]), sign(key, message)
		agree(public, message, signature)
		for _, of := range [][]byte{public, message, signature} {
			for range 20 {
				bit := r.IntN(8 * len(of))
				of[bit/8] ^= 1 << (bit % 8)
				agree(public, message, signature)
				of[bit/8] ^= 1 << (bit % 8)
			}
		}
		agree(public, message, overTheOrder(t, signature))
		for _, special := range specialPoints(t) {
			agree(special, message, signature)
			agree(special, message, append(bytes.Clone(special), make([]byte, 32)...))
			agree(public, message, append(bytes.Clone(special), signature[32:]...))
		}
	}
	if good < 20 {
		t.Errorf("%d signatures are good", good)
	}
	for _, n := range []int{0, 63, 65} {
		if verify(make([]byte, 32), nil, make([]byte, n)) {
			t.Errorf("%d bytes are a signature", n)
		}
	}
	if verify(make([]byte, 31), nil, make([]byte, 64)) {
		t.Error("31 bytes are a key")
	}
}

// overTheOrder adds the order of the group to the scalar of a signature.
func overTheOrder(t *testing.T, signature []byte) []byte {
	order, err := hex.DecodeString("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010")
	if err != nil {
		t.Fatal(err)
	}
	sum, carry := bytes.Clone(signature), 0
	for i, b := range order {
		carry += int(sum[32+i]) + int(b)
		sum[32+i], carry = byte(carry), carry>>8
	}
	return sum
}

// specialPoints are those of small order, the base point, and encodings that are not
// canonical or of no point.
func specialPoints(t *testing.T) (all [][]byte) {
	for _, text := range []string{
		"0100000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000080",
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0000000000000000000000000000000000000000000000000000000000000080",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"0200000000000000000000000000000000000000000000000000000000000000",
	} {
		point, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, point)
	}
	return append(all, edwards25519.NewGeneratorPoint().Bytes())
}
