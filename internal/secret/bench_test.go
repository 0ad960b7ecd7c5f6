package secret

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// benchmarkRedactor streams data in pieces of 32 KiB.
func benchmarkRedactor(b *testing.B, text string, data []byte) {
	s, err := New(Options{Header: "Authorization", Text: []byte(text)})
	if err != nil {
		b.Fatal(err)
	}
	r := s.NewRedactor()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		for p := range pieces(data) {
			r.Redact(p)
		}
		r.Flush()
	}
}

func pieces(data []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(len(data), 32<<10)
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

const (
	benchToken = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
	benchSize  = 1 << 20
)

func randomBytes(alphabet string, n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.UintN(256))
		if alphabet != "" {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
	}
	return b
}

func BenchmarkRedactRandom(b *testing.B) {
	benchmarkRedactor(b, benchToken, randomBytes("", benchSize))
}

func BenchmarkRedactText(b *testing.B) {
	line := `{"id": 1296269, "name": "Hello-World", "full_name": "octo/Hello-World", "private": false, "url": "https://api.allowed.test/repos/octo/Hello-World"},` + "\n"
	benchmarkRedactor(b, benchToken, bytes.Repeat([]byte(line), benchSize/len(line)))
}

func BenchmarkRedactBase64(b *testing.B) {
	benchmarkRedactor(b, benchToken, randomBytes(alphanumeric+"+/", benchSize))
}

func BenchmarkRedactHex(b *testing.B) {
	benchmarkRedactor(b, benchToken, randomBytes(lowerHex, benchSize))
}

func BenchmarkRedactShortest(b *testing.B) {
	benchmarkRedactor(b, "Tr0ub4d&", randomBytes(alphanumeric+"+/", benchSize))
}

// BenchmarkRedactAs is the worst case: the automaton falls back at every byte.
func BenchmarkRedactAs(b *testing.B) {
	benchmarkRedactor(b, strings.Repeat("A", 40)+"b", bytes.Repeat([]byte("A"), benchSize))
}

// BenchmarkRedactHits is data that is nothing but the secret.
func BenchmarkRedactHits(b *testing.B) {
	whole := bytes.Repeat([]byte(benchToken), benchSize/len(benchToken))
	data := make([]byte, len(whole))
	s, err := New(Options{Header: "Authorization", Text: []byte(benchToken)})
	if err != nil {
		b.Fatal(err)
	}
	r := s.NewRedactor()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		copy(data, whole)
		for p := range pieces(data) {
			r.Redact(p)
		}
		r.Flush()
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New(Options{Header: "Authorization", Text: []byte(benchToken)}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewLongest(b *testing.B) {
	text := bytes.Repeat([]byte(`"`), maxText)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New(Options{Header: "Authorization", Text: text}); err != nil {
			b.Fatal(err)
		}
	}
}
