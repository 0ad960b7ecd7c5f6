package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// nested is a text whose form in JSON holds it amidst other bytes.
const nested = `\x\\\\\\\`

// TestRedactPieces: what goes on after each piece, and what is held back.
func TestRedactPieces(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		in, want   []string // want has one more, what Flush returns
		hits       int
	}{
		{"nothing is held back of an event", "abcdefgh", []string{"data: 1\n\n", "data: 2\n\n"}, []string{"data: 1\n\n", "data: 2\n\n", ""}, 0},
		{"the secret in two pieces", "abcdefgh", []string{"xabc", "defghy"}, []string{"x", "********y", ""}, 1},
		{"the secret byte by byte", "abcdefgh", strings.Split("abcdefghy", ""), []string{"", "", "", "", "", "", "", "********", "y", ""}, 1},
		{"what only began like it", "abcdefgh", []string{"xabc", "y"}, []string{"x", "abcy", ""}, 0},
		{"what began again meanwhile", "abcdabcx", []string{"abcd", "abcd", "abcx"}, []string{"", "abcd", "********", ""}, 1},
		{"the end in the midst of it", "abcdefgh", []string{"xabcdefg"}, []string{"x", "abcdefg"}, 0},
		{"an empty piece", "abcdefgh", []string{"", "abcd", "", "efgh", ""}, []string{"", "", "", "********", "", ""}, 1},
		{"marks are not held back, whatever may follow them", "abcabcab", []string{"xabcabcab", "", "c", "ab", "y"}, []string{"x********", "", "", "***", "y", ""}, 1},
		{"two in one piece, two over pieces", "abcdefgh", []string{"abcdefgh abcdefghabcd", "efgh"}, []string{"******** ********", "********", ""}, 3},
		{"a form that holds another, all of it", nested, []string{`a\` + nested, `\\\\\\\b`}, []string{"a", "*****************b", ""}, 1},
		{"a form that holds another, but for its end", nested, []string{`a\` + nested, `\\b`}, []string{"a", `\*********\\b`, ""}, 1},
		{"a form that holds another, and the stream ends", nested, []string{`a\` + nested}, []string{"a", `\*********`}, 1},
		{"occurrences one byte apart", `\\\\\\\\`, []string{`\\\\\\\\\b`}, []string{"*********b", ""}, 1},
		{"hex, split within a byte", "klmnopqr", []string{"6b6c6d6e6f7", "07172"}, []string{"", "****************", ""}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustNew(t, Options{Text: []byte(tt.text)}).NewRedactor()
			var got []string
			for _, p := range tt.in {
				got = append(got, string(r.Redact([]byte(p))))
			}
			if got = append(got, string(r.Flush())); !slices.Equal(got, tt.want) || r.Hits() != tt.hits {
				t.Errorf("%q with %d hits, want %q with %d", got, r.Hits(), tt.want, tt.hits)
			}
		})
	}
}

// TestRedactAfterFlush: the next body has nothing to do with the last one.
func TestRedactAfterFlush(t *testing.T) {
	r := mustNew(t, Options{Text: []byte("abcdefgh")}).NewRedactor()
	var got []string
	for _, p := range []string{"xabcd", "efgh abcd", "efgh."} {
		got = append(got, string(r.Redact([]byte(p))), string(r.Flush()))
	}
	if want := []string{"x", "abcd", "efgh ", "abcd", "efgh.", ""}; !slices.Equal(got, want) || r.Hits() != 0 {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRedactAfterFlushOfMarks: where the last body's marks were says nothing
// about the next body.
func TestRedactAfterFlushOfMarks(t *testing.T) {
	r := mustNew(t, Options{Text: []byte(nested)}).NewRedactor()
	r.Redact([]byte(`\` + nested))
	r.Flush()
	if got, rest := string(r.Redact([]byte(`x\\x`))), string(r.Flush()); got != "x" || rest != `\\x` {
		t.Errorf("%q went on and %q was held back", got, rest)
	}
}

// TestResultOutlivesItsInput: what was held back is not read from pieces that
// the caller has written over since.
func TestResultOutlivesItsInput(t *testing.T) {
	r := mustNew(t, Options{Text: []byte("abcdefgh")}).NewRedactor()
	p := []byte("xabcdefg")
	r.Redact(p)
	copy(p, "????????")
	if got := r.Redact(p[:1]); string(got) != "abcdefg?" {
		t.Errorf("%q", got)
	}
}

// TestOrdinaryDataIsFree: no copy and no allocation where nothing is held back,
// and no memory that grows where something is.
func TestOrdinaryDataIsFree(t *testing.T) {
	r := bearer(t).NewRedactor()
	p := bytes.Repeat([]byte("data: {\"n\": 1}\n\n"), 64)
	if n := testing.AllocsPerRun(100, func() {
		if got := r.Redact(p); len(got) != len(p) || &got[0] != &p[0] {
			t.Fatal("the piece was not passed on as it is")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		r.Redact([]byte("sk-live-7Hq2"))
		r.Redact([]byte("mZ0pXw sk-l"))
	}); n != 0 {
		t.Errorf("%v allocations where something is held back", n)
	}
	if s := bearer(t); testing.AllocsPerRun(100, func() { s.RedactString("text/event-stream; charset=utf-8; boundary=xxxxxxxxxxxxxxxxxxxx") }) != 0 {
		t.Error("an ordinary string is copied")
	}
}

// TestHeldBackIsBounded: a stream that stays in the midst of a secret forever
// costs no more memory than the longest form of the secret, twice.
func TestHeldBackIsBounded(t *testing.T) {
	r := mustNew(t, Options{Text: []byte(strings.Repeat("a", 500) + "b")}).NewRedactor()
	total := 0
	for range 20000 {
		total += len(r.Redact([]byte("a")))
	}
	if total += len(r.Flush()); total != 20000 || cap(r.held) > 8*3*501 {
		t.Errorf("%d bytes came out, %d are kept", total, cap(r.held))
	}
	for range 20000 {
		total += len(r.Redact([]byte("a\\u000a\\u000a\\u000a\\u000a")))
		total += len(r.Redact([]byte("a\n\n\n\n\n\n\n\n\n")))
	}
	if total += len(r.Flush()); total != 20000*36 || cap(r.held) > 200*501 {
		t.Errorf("%d bytes came out, %d are kept", total, cap(r.held))
	}
}

// TestDenseOccurrences: where one begins at every byte, each byte is marked once
// and the count says one.
func TestDenseOccurrences(t *testing.T) {
	s := mustNew(t, Options{Text: bytes.Repeat([]byte("a"), maxText)})
	r := s.NewRedactor()
	out := append(bytes.Clone(r.Redact(bytes.Repeat([]byte("a"), 1<<20))), r.Flush()...)
	if strings.Trim(string(out), "*") != "" || len(out) != 1<<20 || r.Hits() != 1 {
		t.Errorf("%d bytes, %d hits", len(out), r.Hits())
	}
}

// TestLongestSecret: each form of a secret of the greatest length is found.
func TestLongestSecret(t *testing.T) {
	text := strings.Repeat(`"q/`, maxText/3)
	s := mustNew(t, Options{Text: []byte(text)})
	for _, form := range formsOf(slot, text) {
		if got, _ := s.RedactString("<" + form + ">"); got != "<"+strings.Repeat("*", len(form))+">" {
			t.Fatalf("a form of %d bytes that begins with %.20s was not found", len(form), form)
		}
	}
}

// TestRedactorsInTurn: redactors of one secret do not know each other.
func TestRedactorsInTurn(t *testing.T) {
	s := bearer(t)
	a, b := s.NewRedactor(), s.NewRedactor()
	if got := string(a.Redact([]byte(token[:9]))) + "|" + string(b.Redact([]byte(token[9:]))) + "|" + string(a.Flush()); got != "|"+token[9:]+"|"+token[:9] {
		t.Errorf("%q", got)
	}
}

// TestManyRedactors: a secret is for any number of goroutines, which the race
// detector watches.
func TestManyRedactors(t *testing.T) {
	s := bearer(t)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			r := s.NewRedactor()
			in, want := fmt.Sprintf("%d %s ", n, token), fmt.Sprintf("%d %s ", n, strings.Repeat("*", len(token)))
			for range 200 {
				var got []byte
				for _, c := range []byte(in) {
					got = append(got, r.Redact([]byte{c})...)
				}
				if string(got) != want {
					t.Errorf("%q, want %q", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestInName: HTTP/2 and canonical writing change the case of names.
func TestInName(t *testing.T) {
	s := bearer(t)
	hexadecimal := hex.EncodeToString([]byte(token))
	for name, want := range map[string]bool{
		token:                          true,
		"X-" + token:                   true,
		strings.ToLower(token):         true,
		strings.ToUpper(token) + "-Id": true,
		"Sk-Live-7hq2mz0pxw":           true,
		hexadecimal:                    true,
		strings.ToTitle(hexadecimal[:3]) + hexadecimal[3:]:                         true,
		strings.ToLower(base64.RawURLEncoding.EncodeToString([]byte(token))):       true,
		strings.ToLower(base64.RawURLEncoding.EncodeToString([]byte("x" + token))): true,
		"":                          false,
		"Content-Type":              false,
		"X-" + token[:len(token)-1]: false,
		"s\u212a-live-7hq2mz0pxw":   false, // a sign that Unicode folds to a k
	} {
		if got := s.InName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	if got, found := s.RedactString(strings.ToUpper(token)); found {
		t.Errorf("a value in another case became %s", got)
	}
}
