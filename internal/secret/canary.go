package secret

import (
	"errors"
	"fmt"
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
