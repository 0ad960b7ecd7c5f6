package secret

import (
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	minCanary   = 16  // so that no encoding of it is found by accident
	maxCanary   = 256 // bytes of one
	maxCanaries = 64
)

// A Canary is a text that nobody has a reason to send: whoever does has read what
// it was planted in. It prints as "[secret]".
type Canary struct {
	hidden

	// Name is what it is called in records.
	Name string

	// Text is 16 to 256 visible ASCII characters but %, \ and &, after one newline at
	// the end was cut.
	Text []byte
}

// Canaries are looked for together. They print as "[secret]", never change and are
// safe for concurrent use.
//
// A canary is looked for as it is, backwards, in lower and upper case, in hexadecimal, in
// base32 and base64 of anything that holds it, and in base64 of that or of its
// UTF-16. Each of these is also found in UTF-16, and percent-encoded or escaped as in JSON
// or HTML, any number of times. Between its characters may stand anything that is not
// visible ASCII (white space, control characters, all of Unicode), and between the digits
// of hexadecimal ':' and '-'. Canaries that are split or changed in any other way, compressed
// or encrypted are not found.
type Canaries struct {
	hidden
	forms   []Finding
	matcher *textMatcher
	lower   *textMatcher // of the same in lower case
	hexes   []Finding
	hex     *textMatcher // of hexes alone, in lower case
}

// A Finding is a canary that was found, and how it was written.
type Finding struct{ Name, Encoding string }

// NewCanaries returns what looks for all of them, or an error that says what is
// wrong and holds no text.
func NewCanaries(all []Canary) (*Canaries, error) {
	if len(all) > maxCanaries {
		return nil, fmt.Errorf("there are %d canaries, more than %d", len(all), maxCanaries)
	}
	c := &Canaries{}
	var patterns, hexes []string
	seen := map[string]bool{}
	for _, one := range all {
		text := cutNewline(string(one.Text))
		if err := checkCanary(text); err != nil {
			return nil, fmt.Errorf("canary %s: %w", one.Name, err)
		}
		for _, f := range canaryForms(text) {
			if seen[f.text] {
				continue
			}
			seen[f.text] = true
			patterns = append(patterns, f.text)
			c.forms = append(c.forms, Finding{one.Name, f.encoding})
			if strings.HasSuffix(f.encoding, "hex") {
				hexes = append(hexes, lowerText(f.text))
				c.hexes = append(c.hexes, Finding{one.Name, f.encoding})
			}
		}
	}
	c.matcher, c.lower = newMatcher(patterns), newMatcher(lowered(patterns))
	c.hex = newMatcher(hexes)
	return c, nil
}

func checkCanary(text string) error {
	switch {
	case len(text) < minCanary || len(text) > maxCanary:
		return fmt.Errorf("the text has %d bytes, not %d to %d", len(text), minCanary, maxCanary)
	case !isPrintable(text) || strings.ContainsAny(text, ` %\&`):
		return errors.New(`the text is not visible ASCII without %, \ and &`)
	case len(strings.Trim(text, text[:1])) == 0:
		return errors.New("the text is one character again and again")
	}
	return nil
}

func (c *Canaries) finding(n patternNode) Finding { return c.forms[n.pattern] }

func (c *Canaries) hexFinding(n patternNode) Finding { return c.hexes[n.pattern] }

// Find looks for the canaries in a whole text.
func (c *Canaries) Find(text string) (f Finding, found bool) {
	w := c.NewWatch()
	f, _, found = w.See([]byte(text))
	return f, found
}

// FindName looks for the canaries in a domain name, whose labels may hold pieces
// of one, in any case.
func (c *Canaries) FindName(name string) (f Finding, found bool) {
	for _, left := range []string{"", ".", ".-"} {
		text := strings.Map(func(r rune) rune {
			if strings.ContainsRune(left, r) {
				return -1
			}
			return r
		}, lowerText(name))
		if _, at, length := c.lower.next([]byte(text), 0, 0); length != 0 {
			return c.finding(c.lower.nodes[at]), true
		}
	}
	return Finding{}, false
}

// Mask writes asterisks over every canary in a line of JSON, in place: over whole
// escapes, so that it stays JSON.
func (c *Canaries) Mask(line []byte) {
	for from := 0; from < len(line); {
		w := c.NewWatch()
		_, span, found := w.See(line[from:])
		if !found {
			return
		}
		begin, end := from+int(span.From), from+int(span.To)
		begin = beginOfEscape(line, begin)
		for i := begin; i < endOfEscape(line, begin, end); i++ {
			line[i] = '*'
		}
		from = begin
	}
}

func beginOfEscape(line []byte, i int) int {
	for at := max(0, i-len(`\u000`)); at < i; at++ {
		if line[at] == '\\' && active(line, at) && escapeEnd(line, at) > i {
			return at
		}
	}
	return i
}

func endOfEscape(line []byte, begin, end int) int {
	for at := max(begin, end-len(`\u000`)); at < end; at++ {
		if line[at] == '\\' && active(line, at) && escapeEnd(line, at) > end {
			return escapeEnd(line, at)
		}
	}
	return end
}

// active reports whether the backslash at i begins an escape.
func active(line []byte, i int) bool {
	n := 0
	for i-n > 0 && line[i-n-1] == '\\' {
		n++
	}
	return n%2 == 0
}

func escapeEnd(line []byte, at int) int {
	n := 2
	if at+1 < len(line) && line[at+1] == 'u' {
		n = len(`\u0000`)
	}
	return min(at+n, len(line))
}

// A canaryForm is a text to look for, and what it is called.
type canaryForm struct{ text, encoding string }

// canaryForms returns how a canary may be written, what is plain first. None has
// fewer bytes than minCanary.
func canaryForms(text string) []canaryForm {
	forms := formsIn(text, "")
	forms = append(forms, formsIn(reversed(text), "reversed ")...)
	return slices.DeleteFunc(forms, func(f canaryForm) bool { return len(f.text) < minCanary })
}

func formsIn(text, how string) (forms []canaryForm) {
	add := func(encoding string, texts ...string) {
		for _, t := range texts {
			forms = append(forms, canaryForm{t, how + encoding})
		}
	}
	coded := hex.EncodeToString([]byte(text))
	add("plain", text)
	add("lower case", strings.ToLower(text))
	add("upper case", strings.ToUpper(text))
	add("hex", coded, strings.ToUpper(coded))
	add("base32", base32Cores(text)...)
	cores := base64Cores(text)
	add("base64", cores...)
	for _, core := range cores {
		add("base64 twice", base64Cores(core)...)
	}
	add("base64 of UTF-16", base64Cores(utf16Of(text, 0))...)
	add("base64 of UTF-16", base64Cores(utf16Of(text, 1))...)
	return forms
}

// base32Cores is what base64Cores is, for base32 in both alphabets and cases (RFC
// 4648, sections 6 and 7).
func base32Cores(text string) (cores []string) {
	for ahead := range 5 {
		padded := append(make([]byte, ahead, ahead+len(text)), text...)
		first, end := (8*ahead+4)/5, 8*len(padded)/5
		for _, alphabet := range []*base32.Encoding{base32.StdEncoding, base32.HexEncoding} {
			core := alphabet.WithPadding(base32.NoPadding).EncodeToString(padded)[first:end]
			cores = append(cores, core, strings.ToLower(core))
		}
	}
	return cores
}

// utf16Of is ASCII as UTF-16, its zeros first or second. The one at the end is left
// out where it would be: what follows the text does not matter.
func utf16Of(text string, zero int) string {
	b := make([]byte, 0, 2*len(text))
	for i := range len(text) {
		if zero == 0 {
			b = append(b, 0, text[i])
		} else {
			b = append(b, text[i], 0)
		}
	}
	return string(b)
}

func reversed(text string) string {
	b := []byte(text)
	slices.Reverse(b)
	return string(b)
}
