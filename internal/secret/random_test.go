package secret

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
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
	want, runs := cover(in, allOccurrences(in, forms), s.mark)
	r := s.NewRedactor()
	var out, known []byte // known is what could be known of out when it went on
	at := 0
	for _, cut := range append(cuts, len(in)) {
		p := bytes.Clone(in[at:cut])
		at = cut
		out = append(out, r.Redact(p)...)
		clear(p) // the next call may not need it
		checkHeld(t, in[:at], len(known), len(out), forms)
		covered, _ := cover(in[:at], allOccurrences(in[:at], forms), s.mark)
		known = append(known, covered[len(known):len(out)]...)
	}
	known = append(known, want[len(known):]...)
	if out = append(out, r.Flush()...); !bytes.Equal(out, known) || r.Hits() == 0 != (runs == 0) {
		t.Fatalf("%q became %q, want %q; %d hits in %d runs", in, out, known, r.Hits(), runs)
	}
	checkClean(t, s, out, forms)
	checkString(t, s, in, want, forms)
}

// A shown is a character that a stream stands for, and which bytes of it do.
type shown struct{ c, from, to int }

// readAs says the slow and plain way what b stands for behind one kind of escapes and
// without line breaks and, if folds, without the blanks behind them; where an escape at its end begins that is not complete, or
// len(b); and how many line breaks it ends with.
func readAs(b []byte, begins byte, folds bool) (all []shown, pending, breaks int) {
	blanks := 0
	for i := 0; i < len(b); {
		c, n := int(b[i]), 1
		if b[i] == begins {
			m := wholeEscape.FindSubmatch(b[i:])
			switch {
			case m != nil:
				n = len(m[0])
				if c = int(m[0][1]); len(m[5]) > 0 {
					c, _ = strconv.Atoi(string(m[5]))
				} else if n > 2 {
					value, _ := strconv.ParseUint(string(m[1])+string(m[2])+string(m[3])+string(m[4])+string(m[6]), 16, 32)
					c = int(value)
				} else if at := strings.IndexByte("nrtbf", m[0][1]); at >= 0 {
					c = int("\n\r\t\t\t"[at]) // no form has any of them
				}
			case partOfEscape.Match(b[i:]):
				return all, i, breaks
			}
		}
		switch {
		case (c == '\n' || c == '\r') && (n > 1 || begins == '%' || begins == '='):
			if breaks++; breaks == breaksMost+1 {
				all = append(all, shown{-1, i, i + n})
			}
		case (c == ' ' || c == '\t') && folds && breaks > 0:
			if blanks++; blanks == blanksMost+1 {
				all = append(all, shown{-1, i, i + n})
			}
		default:
			all, breaks, blanks = append(all, shown{c, i, i + n}), 0, 0
		}
		i += n
	}
	return all, len(b), breaks
}

var (
	wholeEscape  = regexp.MustCompile(`^(?:%([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\[nrtbf/"'\\]|&#(?:[xX]([0-9a-fA-F]{1,7})|([0-9]{1,8}));|=([0-9a-fA-F]{2})|=[\r\n])`)
	partOfEscape = regexp.MustCompile(`^(?:%[0-9a-fA-F]?|\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|&(?:#(?:[xX][0-9a-fA-F]{0,8}|[0-9]{0,9}))?|=[0-9a-fA-F]?)$`)
)

// fold reports whether blanks behind a line break count for nothing.
func fold(forms []string) bool {
	return !slices.ContainsFunc(forms, func(form string) bool { return strings.ContainsAny(form, " \t") })
}

func beginsWith(all []shown, form string) bool {
	for i := range form {
		if i >= len(all) || all[i].c != int(form[i]) {
			return false
		}
	}
	return true
}

// readOccurrences adds to in the bytes that belong to a form behind one kind of escapes.
func readOccurrences(b []byte, forms []string, begins byte, in []bool) {
	all, _, _ := readAs(b, begins, fold(forms))
	for _, form := range forms {
		for i := range all {
			if beginsWith(all[i:], form) {
				for j := all[i].from; j < all[i+len(form)-1].to; j++ {
					in[j] = true
				}
			}
		}
	}
}

// readHold returns the first byte that has to be held back of what was seen.
func readHold(seen []byte, forms []string, begins byte) int {
	all, hold, breaks := readAs(seen, begins, fold(forms))
	longest := 0
	for _, form := range forms {
		for n := min(len(form)-1, len(all)); n > longest; n-- {
			if beginsWith(all[len(all)-n:], form[:n]) {
				longest = n
			}
		}
	}
	if longest > 0 && (longest >= brokenLeast || breaks == 0) {
		hold = min(hold, all[len(all)-longest].from)
	}
	return hold
}

// checkHeld: held back is the longest end that may become a form in one of the ways to
// read it; of the marks in that, those that it begins with may have gone on.
func checkHeld(t rapid.TB, seen []byte, before, released int, forms []string) {
	t.Helper()
	hold := min(len(seen)-longestBeginning(seen, forms), readHold(seen, forms, '%'), readHold(seen, forms, '\\'), readHold(seen, forms, '&'), readHold(seen, forms, '='))
	hold = max(hold, before) // what has gone on
	most := hold
	for marked := allOccurrences(seen, forms); most < len(seen) && marked[most]; {
		most++
	}
	if released < hold || released > most {
		t.Fatalf("of %q %d bytes went on, want %d to %d", seen, released, hold, most)
	}
}

// allOccurrences says which bytes of b belong to a form, in any way to read it.
func allOccurrences(b []byte, forms []string) []bool {
	in := occurrences(b, forms)
	readOccurrences(b, forms, '%', in)
	readOccurrences(b, forms, '\\', in)
	readOccurrences(b, forms, '&', in)
	readOccurrences(b, forms, '=', in)
	return in
}

func checkClean(t rapid.TB, s *Secret, out []byte, forms []string) {
	t.Helper()
	if slices.ContainsFunc(forms, func(form string) bool { return strings.IndexByte(form, s.mark) >= 0 }) {
		return // marks may make up a part of a form
	}
	if slices.Contains(occurrences(out, forms), true) {
		t.Fatalf("%q holds a form", out)
	}
}

func checkString(t rapid.TB, s *Secret, in, want []byte, forms []string) {
	t.Helper()
	if joined := regexp.MustCompile(`[ \t]`).ReplaceAll(want, nil); len(joined) < len(want) && slices.Contains(allOccurrences(joined, forms), true) {
		want = bytes.Repeat([]byte{s.mark}, len(want))
	}
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

// writings are how a form may stand in a stream.
var writings = []func(seed uint64, form string) string{
	func(seed uint64, form string) string {
		return some(func(c byte) string { return fmt.Sprintf("%%%02x", c) })(rand.New(rand.NewPCG(seed, 1)), form)
	},
	func(seed uint64, form string) string {
		return some(func(c byte) string { return fmt.Sprintf(`\u%04X`, c) })(rand.New(rand.NewPCG(seed, 2)), form)
	},
	func(seed uint64, form string) string {
		return filled(rand.New(rand.NewPCG(seed, 3)), form, []string{"\n", "\r\n"})
	},
	func(seed uint64, form string) string {
		format := []string{"&#%d;", "&#x%x;", "&#X%03X;"}[seed%3]
		return some(func(c byte) string { return fmt.Sprintf(format, c) })(rand.New(rand.NewPCG(seed, 5)), form)
	},
	func(seed uint64, form string) string {
		return filled(rand.New(rand.NewPCG(seed, 4)), form, []string{`\n`, `\r\n`, `\u000a`})
	},
	func(seed uint64, form string) string {
		return filled(rand.New(rand.NewPCG(seed, 6)), form, []string{"\n  ", "\r\n\t", `\n `, "=\r\n", "=\n"})
	},
	func(seed uint64, form string) string {
		return some(func(c byte) string { return fmt.Sprintf("=%02X", c) })(rand.New(rand.NewPCG(seed, 7)), form)
	},
}

// bodies draws streams of forms of the text, parts of forms and other bytes.
func bodies(text string) *rapid.Generator[[]byte] {
	forms := formsOf(slot, text)
	piece := rapid.Custom(func(t *rapid.T) string {
		form := rapid.SampledFrom(forms).Draw(t, "form")
		if which := rapid.IntRange(0, len(writings)+1).Draw(t, "written"); which < len(writings) {
			form = writings[which](rapid.Uint64().Draw(t, "seed"), form)
		}
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
func beginnings(m *textMatcher) []string {
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
