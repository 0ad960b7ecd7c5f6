package logs

import (
	"bytes"
	"strings"

	"github.com/egressd/egressd/record"
)

// A needle is a text in lower case that is looked for in lines, whatever its case there.
type needle struct {
	text []byte
	at   int    // of the byte that is rarest in lines
	rare []byte // that byte, in both cases
}

// rareFirst are bytes that are rare in lines, the rarest first.
const rareFirst = "qzxjkvwybpgmfu-"

func needleOf(text string) needle {
	n := needle{text: []byte(strings.ToLower(text))}
	if len(n.text) == 0 {
		return n
	}
	for _, rare := range []byte(rareFirst) {
		if at := bytes.IndexByte(n.text, rare); at >= 0 {
			n.at = at
			break
		}
	}
	n.rare = n.text[n.at : n.at+1]
	if upper := bytes.ToUpper(n.rare); upper[0] != n.rare[0] {
		n.rare = append(upper, n.rare...)
	}
	return n
}

func (n *needle) in(line []byte) bool {
	for _, rare := range n.rare {
		if n.around(rare, line) {
			return true
		}
	}
	return len(n.text) == 0
}

// around looks for the needle at each place of one byte.
func (n *needle) around(rare byte, line []byte) bool {
	for from := n.at; from < len(line); from++ {
		i := bytes.IndexByte(line[from:], rare)
		if i < 0 {
			return false
		}
		from += i
		if start := from - n.at; len(line)-start >= len(n.text) && bytes.EqualFold(line[start:start+len(n.text)], n.text) {
			return true
		}
	}
	return false
}

// Mention returns a test of lines. It reports false only for a line none of whose records' texts holds text, whatever
// its case. In a line without a backslash each text stands as it is.
func Mention(texts ...string) func(line []byte) bool {
	var needles []needle
	for _, text := range texts {
		needles = append(needles, needleOf(text))
	}
	return func(line []byte) bool {
		for i := range needles {
			if needles[i].in(line) {
				return true
			}
		}
		return bytes.IndexByte(line, '\\') >= 0
	}
}

// sieve returns a test of lines that reports true at least for one line of each flow that f matches: its first, its last,
// or one between. It returns nil if f cannot tell by the bytes of a line. One clause decides, since each may hold for
// another line of a flow.
func (f *Filter) sieve() func(line []byte) bool {
	var best []string
	for _, c := range f.clauses {
		if shortest(c.literals) > shortest(best) {
			best = c.literals
		}
	}
	if best == nil {
		return nil
	}
	return Mention(best...)
}

// decisionSieve is the sieve for a [DecisionJoiner]: it also lets all lines through that are about a question to a person. The
// sieve may drop questions for a name. Questions that belong together have one sandbox, host and verdict; if a filter by rule
// or program takes only some of them, the joiner counts only these.
func (f *Filter) decisionSieve() func(line []byte) bool {
	own := f.sieve()
	if own == nil {
		return nil
	}
	return func(line []byte) bool {
		return own(line) || bytes.Contains(line, []byte(`"question":[`))
	}
}

// shortest returns the length of the shortest text, or 0 if there is none.
func shortest(texts []string) int {
	if len(texts) == 0 {
		return 0
	}
	n := len(texts[0])
	for _, text := range texts {
		n = min(n, len(text))
	}
	return n
}

// literalOf returns the longest text that all values of a pattern hold.
func literalOf(pattern string) (longest string) {
	for part := range strings.SplitSeq(pattern, "*") {
		if len(part) > len(longest) {
			longest = part
		}
	}
	return longest
}

type flowText [10]byte

// A skimmed line may open or end a flow, or refuse it. It was not decoded, since no sieve let it through.
type skimmed struct {
	flow    flowText
	ends    bool
	refuses bool
}

// A use says what a line is good for that no sieve let through.
type use int

const (
	unused  use = iota // joins need nothing of it
	ofFlow             // it may open or end a flow
	refusal            // it may refuse a connection to a name that was asked for
	unknown            // only the decoder can tell
)

func skim(line []byte) (s skimmed, u use) {
	const version, stamp = `{"v":1,"seq":`, `,"time":"2006-01-02T15:04:05.000000Z",`
	at := len(version) + max(0, bytes.IndexByte(line[min(len(version), len(line)):], ',')) + len(stamp)
	rest, stamped := bytes.CutPrefix(line[min(at, len(line)):], []byte(`"kind":"`))
	kind, rest, closed := bytes.Cut(rest, []byte(`"`))
	rest, flows := bytes.CutPrefix(rest, []byte(`,"flow":"`))
	if !stamped || !closed || !flows || bytes.IndexByte(rest, '"') != len(s.flow) {
		return s, unknown
	}
	s.flow = flowText(rest)
	switch record.Kind(kind) {
	case record.KindClose:
		s.ends = true
		return s, ofFlow
	case record.KindOpen, record.KindRequest:
		if bytes.Contains(rest, []byte(`"action":"allow"`)) {
			return s, ofFlow
		}
		s.refuses = true
		return s, refusal
	case record.KindRefused:
		s.refuses = true
		return s, refusal
	case record.KindDNS:
		return s, unused
	}
	return s, unknown
}
