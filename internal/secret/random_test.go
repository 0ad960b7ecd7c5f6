package secret

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// occurrences says the slow and plain way which bytes of b belong to a form.
func occurrences(b []byte, forms []string) []bool {
	in := make([]bool, len(b))
	for _, form := range forms {
		for i := 0; i+len(form) <= len(b); i++ {
			if string(b[i:i+len(form)]) == form {
				for j := range form {
					in[i+j] = true
				}
			}
		}
	}
	return in
}

// cover returns b with the mark where in says so, and the number of runs.
func cover(b []byte, in []bool, mark byte) (covered []byte, runs int) {
	covered = bytes.Clone(b)
	for i := range covered {
		if in[i] {
			covered[i] = mark
		}
		if in[i] && (i == 0 || !in[i-1]) {
			runs++
		}
	}
	return covered, runs
}

// longestBeginning returns the length of the longest end of b that begins a
// form and is not the whole of it.
func longestBeginning(b []byte, forms []string) int {
	longest := 0
	for _, form := range forms {
		for n := min(len(form)-1, len(b)); n > longest; n-- {
			if bytes.HasSuffix(b, []byte(form[:n])) {
				longest = n
			}
		}
	}
	return longest
}

// checkRedactor streams in, cut at the given places, and holds the redactor to
// its contract: same length, every form covered, nothing else touched, nothing
// held back but what may yet become a form.
func checkRedactor(t rapid.TB, s *Secret, in []byte, cuts []int) {
	t.Helper()
	forms := formsOf(slot, s.text)
	want, runs := cover(in, occurrences(in, forms), s.mark)
	r := s.NewRedactor()
	var out []byte
	at := 0
	for _, cut := range append(cuts, len(in)) {
		p := bytes.Clone(in[at:cut])
		at = cut
		out = append(out, r.Redact(p)...)
		clear(p) // the next call may not need it
		if !bytes.HasPrefix(want, out) {
			t.Fatalf("%q became %q, want %q", in, out, want)
		}
		checkHeld(t, in[:at], len(out), forms)
	}
	if out = append(out, r.Flush()...); !bytes.Equal(out, want) || r.Hits() < runs || r.Hits() == 0 != (runs == 0) {
		t.Fatalf("%q became %q, want %q; %d hits in %d runs", in, out, want, r.Hits(), runs)
	}
	checkClean(t, s, out, forms)
	checkString(t, s, in, want)
}

// checkHeld: held back is the longest end that may become a form, without the
// marks that it begins with.
func checkHeld(t rapid.TB, seen []byte, released int, forms []string) {
	t.Helper()
	marked := occurrences(seen, forms)
	hold := len(seen) - longestBeginning(seen, forms)
	for hold < len(seen) && marked[hold] {
		hold++
	}
	if released != hold {
		t.Fatalf("of %q %d bytes went on, want %d", seen, released, hold)
	}
}

func checkClean(t rapid.TB, s *Secret, out []byte, forms []string) {
	t.Helper()
	if slices.ContainsFunc(forms, func(form string) bool { return strings.IndexByte(form, s.mark) >= 0 }) {
		return // marks may make up a part of a form
	}
	for _, form := range forms {
		if bytes.Contains(out, []byte(form)) {
			t.Fatalf("%q holds %q", out, form)
		}
	}
}

func checkString(t rapid.TB, s *Secret, in, want []byte) {
	t.Helper()
	got, found := s.RedactString(string(in))
	if got != string(want) || found != (got != string(in)) {
		t.Fatalf("the string %q became %q, %v, want %q", in, got, found, want)
	}
}

// texts draws secrets: of few letters, so that they repeat themselves, and of
// all that may stand in one.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[ab]{8,14}`),
		rapid.StringMatching(`[A]{6,9}[AB%]{2,4}`),
		rapid.StringMatching(`\\?x?\\{8,9}`), // a form may lie within another
		rapid.StringMatching(`[0-9a-f]{8,24}`),
		rapid.StringMatching(`[A-Za-z0-9_-]{8,40}`),
		rapid.StringMatching(`[!-~][ -~]{6,30}[!-~]`),
		rapid.StringMatching(`x["\\/<>&'+ %]{6,9}x`),
		rapid.StringMatching(`([A-Za-z0-9+/]{4}){2,5}[+/][AQgw]==`),
		rapid.Map(rapid.StringMatching(`[!-~]{8,20}`), func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }),
	)
}

// bodies draws streams of forms of the text, parts of forms and other bytes.
func bodies(text string) *rapid.Generator[[]byte] {
	forms := formsOf(slot, text)
	piece := rapid.Custom(func(t *rapid.T) string {
		form := rapid.SampledFrom(forms).Draw(t, "form")
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0, 1:
			return form
		case 2:
			return form[:rapid.IntRange(1, len(form)).Draw(t, "beginning")]
		case 3:
			return form[rapid.IntRange(0, len(form)-1).Draw(t, "end"):]
		default:
			return string(rapid.SliceOfN(rapid.SampledFrom([]byte(form+"*#\n\x00\xff")), 1, 20).Draw(t, "bytes"))
		}
	})
	return rapid.Map(rapid.SliceOfN(piece, 0, 8), func(pieces []string) []byte { return []byte(strings.Join(pieces, "")) })
}

func TestRedactorProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(Options{Header: "A", Text: []byte(texts().Draw(t, "text"))})
		if err != nil {
			t.Fatal(err)
		}
		in := bodies(s.text).Draw(t, "body")
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(in)), 0, 12).Draw(t, "cuts")
		slices.Sort(cuts)
		checkRedactor(t, s, in, cuts)
	})
}

// TestRedactorByteByByte: the same where every byte comes alone.
func TestRedactorByteByByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(Options{Header: "A", Text: []byte(rapid.StringMatching(`[ab]{8,10}`).Draw(t, "text"))})
		if err != nil {
			t.Fatal(err)
		}
		in := rapid.SliceOfN(rapid.SampledFrom([]byte("aaabc")), 0, 60).Draw(t, "body")
		cuts := make([]int, len(in))
		for i := range cuts {
			cuts[i] = i
		}
		checkRedactor(t, s, in, cuts)
	})
}

// TestFailureLinks: each link names the longest proper suffix that is in the
// trie. So it always leads to a lesser depth, and since a byte adds one to the
// depth at most, no stream follows more links than it has bytes.
func TestFailureLinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMatcher(formsOf(slot, texts().Draw(t, "text")))
		beginnings := beginnings(m)
		index := map[string]int32{}
		for n, b := range beginnings {
			index[b] = int32(n)
		}
		for n, b := range beginnings[1:] {
			suffix := b[1:]
			for index[suffix] == 0 && suffix != "" {
				suffix = suffix[1:]
			}
			got := m.nodes[n+1]
			if beginnings[got.fail] != suffix || int(got.depth) != len(b) {
				t.Fatalf("%q at depth %d fails to %q, want %q", b, got.depth, beginnings[got.fail], suffix)
			}
		}
	})
}

// beginnings returns what each node stands for.
func beginnings(m *matcher) []string {
	all := make([]string, len(m.nodes))
	for n := range m.nodes { // a child comes after its parent
		for c := m.nodes[n].child; c != 0; c = m.nodes[c].sibling {
			all[c] = all[n] + string([]byte{m.nodes[c].label})
		}
	}
	return all
}

// TestSkipStopsAtEveryBeginning: the filter never steps over an occurrence, and
// moves.
func TestSkipStopsAtEveryBeginning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := texts().Draw(t, "text")
		forms := formsOf(slot, text)
		m := newMatcher(forms)
		form := rapid.SampledFrom(forms).Draw(t, "form")
		ahead := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "ahead")
		if at := m.skip([]byte(string(ahead)+form), 0); at > len(ahead) {
			t.Fatalf("%q is stepped over: %d", form, at)
		}
	})
}
