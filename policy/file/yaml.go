package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// Bounds of a rule file. Longer lists belong in a preset.
const (
	maxFileBytes = 1 << 20
	maxDepth     = 8
)

// A reader turns YAML nodes into a [File] and notes everything that is wrong
// on the way, so that a person can correct it all at once. A file with problems is
// discarded as a whole.
type reader struct {
	name     string
	kind     fileKind
	problems policy.FileError
	places   map[string]policy.Position // where the values that Expand changes stand
	ids      map[string]policy.Position

	// Of presets with parameters: their lines and texts, and how many there are of a name.
	lines    []policy.Rule
	texts    [][]byte
	expanded map[string]int
}

func newReader(kind fileKind, name string) *reader {
	return &reader{name: name, kind: kind, places: make(map[string]policy.Position), ids: make(map[string]policy.Position), expanded: make(map[string]int)}
}

func (r *reader) failAt(at policy.Position, format string, arguments ...any) {
	r.problems = append(r.problems, policy.Problem{File: r.name, Line: at.Line, Column: at.Column, Message: fmt.Sprintf(format, arguments...)})
}

func (r *reader) fail(n *yaml.Node, format string, arguments ...any) {
	r.failAt(placeOf(n), format, arguments...)
}

func placeOf(n *yaml.Node) policy.Position {
	return policy.Position{Line: max(n.Line, 1), Column: max(n.Column, 1)}
}

func (r *reader) document(text []byte) *yaml.Node {
	if r.checkText(text); len(r.problems) > 0 {
		return nil
	}
	var doc, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err := decoder.Decode(&doc)
	if err == nil {
		err = decoder.Decode(&second)
	}
	switch {
	case errors.Is(err, io.EOF) && doc.Kind == 0:
		r.failAt(policy.Position{Line: 1, Column: 1}, "the file is empty; begin it with \"version: 1\"")
	case err == nil:
		r.fail(&second, "a second document begins; keep one document in one file")
	case !errors.Is(err, io.EOF):
		r.syntax(text, err)
	case len(doc.Content) == 1:
		if r.checkPlain(doc.Content[0], 0); len(r.problems) == 0 {
			return doc.Content[0]
		}
	}
	return nil
}

// checkText refuses bytes that make a file read differently on a screen than
// here, and tabs, which YAML allows in some places and not in others.
func (r *reader) checkText(text []byte) {
	if len(text) > maxFileBytes {
		r.failAt(policy.Position{Line: 1, Column: 1}, "the file has more than %d bytes; make it smaller", maxFileBytes)
		return
	}
	at := policy.Position{Line: 1, Column: 1}
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		i += size
		switch {
		case c == '\n':
			at = policy.Position{Line: at.Line + 1, Column: 0}
		case c == '\r' && i < len(text) && text[i] == '\n':
		case c == '\t':
			r.failAt(at, "a tab; indent with spaces")
		case c == utf8.RuneError && size == 1:
			r.failAt(at, "a byte that is not UTF-8; save the file as UTF-8")
		case Deceptive(c):
			r.failAt(at, "the invisible character U+%04X; remove it", c)
		}
		at.Column++
	}
}

// Deceptive reports whether c moves, hides or breaks the text around it:
// controls, the line breaks of Unicode, and what sets the direction.
func Deceptive(c rune) bool {
	return c < ' ' || 0x7f <= c && c < 0xa0 || c == 0x61c || 0x200b <= c && c <= 0x200f ||
		0x2028 <= c && c <= 0x202e || 0x2060 <= c && c <= 0x206f || c == 0xfeff
}

// syntax reports an error of the YAML library, which names a line at most.
func (r *reader) syntax(text []byte, err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	at := policy.Position{Line: 1, Column: 1}
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, tail, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil && line > 0 {
			at.Line, message = line, tail
		}
	}
	lines := bytes.Split(text, []byte("\n"))
	hint := "correct the YAML here or in the line above"
	if at.Line <= len(lines) {
		line := lines[at.Line-1]
		at.Column = len(line) - len(bytes.TrimLeft(line, " ")) + 1
	}
	if open, what := unclosed(lines); open.Line > 0 {
		at, message, hint = open, what+" is not closed", "write "+closing[what]+" where it ends"
	}
	if star := unquotedStar(lines); star.Line > 0 {
		at, hint = star, `put a pattern that begins with * in quotes, as in "*.example.com"`
	}
	r.failAt(at, "%s; %s", message, hint)
}

// unquotedStar returns the place of the first value that begins with a star,
// which YAML takes for an alias, or the zero place.
func unquotedStar(lines [][]byte) policy.Position {
	for i, line := range lines {
		for j, c := range line {
			if c == '*' && beginsValue(line[:j]) {
				return policy.Position{Line: i + 1, Column: j + 1}
			}
		}
	}
	return policy.Position{}
}

// closing is what closes a list, a mapping and a text in quotes.
var closing = map[string]string{"[": "]", "{": "}", `"`: `"`, "'": "'"}

// unclosed returns the first place of a bracket or quote that nothing closes before the next key of the file or its end, or
// that a bracket of another kind closes.
func unclosed(lines [][]byte) (at policy.Position, what string) {
	type opened struct {
		what string
		at   policy.Position
	}
	var open []opened
	inner := func() opened { return open[len(open)-1] }
	for i, line := range lines {
		if len(open) > 0 && beginsKey(line) {
			return inner().at, inner().what
		}
		for j := 0; j < len(line); j++ {
			c := string(line[j])
			quoted := len(open) > 0 && closing[inner().what] == inner().what
			switch {
			case quoted && inner().what == `"` && c == `\`:
				j++
			case quoted && c == "'" && inner().what == "'" && j+1 < len(line) && line[j+1] == '\'':
				j++
			case quoted && c == inner().what:
				open = open[:len(open)-1]
			case quoted:
			case c == "#" && (j == 0 || line[j-1] == ' '):
				j = len(line)
			case closing[c] != "" && (beginsValue(line[:j]) || len(open) > 0 && (c == "[" || c == "{" || beginsInside(line[:j]))):
				open = append(open, opened{c, policy.Position{Line: i + 1, Column: j + 1}})
			case len(open) > 0 && (c == "]" || c == "}"):
				if closing[inner().what] != c {
					return inner().at, inner().what
				}
				open = open[:len(open)-1]
			}
		}
	}
	switch {
	case len(open) == 0:
		return policy.Position{}, ""
	case closing[inner().what] == inner().what:
		return inner().at, inner().what
	}
	return open[0].at, open[0].what
}

// beginsKey reports whether a line begins a key at the top of the file.
func beginsKey(line []byte) bool {
	key, _, found := bytes.Cut(line, []byte(":"))
	return found && len(key) > 0 && len(bytes.Trim(key, "abcdefghijklmnopqrstuvwxyz_")) == 0
}

// beginsInside reports whether a text in quotes begins after the first part of a line within a list or mapping.
func beginsInside(before []byte) bool {
	trimmed := bytes.TrimRight(before, " ")
	return len(trimmed) > 0 && bytes.IndexByte([]byte("[{,:"), trimmed[len(trimmed)-1]) >= 0
}

// beginsValue reports whether a value begins after the first part of a line.
func beginsValue(before []byte) bool {
	trimmed := bytes.TrimRight(before, " ")
	if len(trimmed) == 0 {
		return true
	}
	switch trimmed[len(trimmed)-1] {
	case '[', ',':
		return true
	case '-', ':':
		return len(trimmed) < len(before)
	}
	return false
}

// checkPlain refuses what makes one node mean another: anchors, aliases,
// merge keys, explicit tags; and nesting that no section has.
func (r *reader) checkPlain(n *yaml.Node, depth int) {
	switch {
	case depth > maxDepth:
		r.fail(n, "nested more than %d deep; no section is", maxDepth)
		return
	case n.Kind == yaml.AliasNode:
		r.fail(n, `*%s is an alias; put a pattern in quotes, or write the value out`, n.Value)
		return
	case n.Anchor != "":
		r.fail(n, "&%s is an anchor; write the value out where it is needed", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "%s is a tag; leave it out", n.Tag)
	case n.Tag == "!!merge":
		r.fail(n, "<< merges mappings; write the keys out")
	}
	for _, child := range n.Content {
		r.checkPlain(child, depth+1)
	}
}

// fields says how to read the value of each key of a mapping.
type fields map[string]func(*yaml.Node)

func (r *reader) section(what string, known fields) func(*yaml.Node) {
	return func(n *yaml.Node) { r.mapping(n, what, known) }
}

func (r *reader) mapping(n *yaml.Node, what string, known fields) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s is %s; write a mapping of keys to values", what, kindOf(n))
		return
	}
	first := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			r.fail(key, "a key of %s is %s; write a word", what, kindOf(key))
		case !ok && instead(what+"."+key.Value) != "":
			r.fail(key, "%s was removed; %s", strings.TrimPrefix(what+"."+key.Value, "the file."), instead(what+"."+key.Value))
		case !ok:
			r.fail(key, "%s has no key %q; %s", what, printable(key.Value), didYouMean(key.Value, slices.Collect(maps.Keys(known))))
		case first[key.Value] > 0:
			r.fail(key, "%q stands a second time (first in line %d); keep one", key.Value, first[key.Value])
		default:
			first[key.Value] = key.Line
			read(value)
		}
	}
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// items returns the items of a sequence, never nil where n is one.
func (r *reader) items(n *yaml.Node, what string) []*yaml.Node {
	switch {
	case n.Kind == yaml.SequenceNode:
		return n.Content
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		r.fail(n, "%s has no value; write [] for an empty list", what)
	default:
		r.fail(n, "%s is %s; write a list, as in [%s]", what, kindOf(n), "a, b")
	}
	return nil
}

// someItems returns the items of a list that must have some: an empty list
// would read as if the key were not there.
func (r *reader) someItems(n *yaml.Node, what string) []*yaml.Node {
	items := r.items(n, what)
	if n.Kind == yaml.SequenceNode && len(items) == 0 {
		r.fail(n, "%s is empty, so nobody could be the sandbox; name one, or leave the key out", what)
	}
	return items
}

// condition returns the items of a list that narrows a rule. An empty one is
// refused: it can be read as "none" and as "any".
func (r *reader) condition(n *yaml.Node, what string) []*yaml.Node {
	items := r.items(n, what)
	if items != nil && len(items) == 0 || n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		r.fail(n, "%s is empty; name some, or leave the key out for any", what)
	}
	return items
}

// list reads a list of texts with the reader of one text.
func (r *reader) list(what string, into *[]string, one func(string, *string) func(*yaml.Node)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		items := r.items(n, what)
		*into = make([]string, len(items))
		for i, item := range items {
			one(fmt.Sprintf("%s[%d]", what, i), &(*into)[i])(item)
		}
	}
}

// text returns the text of a scalar that is not a number, a boolean or null.
func (r *reader) text(n *yaml.Node, what string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		r.fail(n, "%s is %s; write text", what, kindOf(n))
	case n.Tag == "!!null":
		r.fail(n, "%s has no value; write one, or leave the key out", what)
	case n.Tag != "!!str":
		r.fail(n, "%s is %s; put %q in quotes", what, kindOf(n), printable(n.Value))
	case n.Value == "":
		r.fail(n, "%s is empty; write one, or leave the key out", what)
	default:
		return n.Value, true
	}
	return "", false
}

// parse reads a text. The errors of the function say what is wrong and what to write.
func parse[T any](r *reader, n *yaml.Node, what string, as func(string) (T, error)) (value T, ok bool) {
	text, ok := r.text(n, what)
	if !ok {
		return value, false
	}
	value, err := as(text)
	if err != nil {
		r.fail(n, "%s: %v", what, err)
		return value, false
	}
	return value, true
}

func parsed[T any](r *reader, what string, into *T, as func(string) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if value, ok := parse(r, n, what, as); ok {
			*into = value
			r.places[what] = placeOf(n)
		}
	}
}

// fitting reads a text as it stands.
func (r *reader) fitting(what string, into *string, check func(string) error) func(*yaml.Node) {
	return parsed(r, what, into, func(text string) (string, error) { return text, check(text) })
}

// checked reads a text of which problem says what is wrong and what to write,
// or "".
func (r *reader) checked(what string, into *string, problem func(string) string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		if wrong := problem(text); wrong != "" {
			r.fail(n, "%s %s", what, wrong)
			return
		}
		*into = text
		r.places[what] = placeOf(n)
	}
}

// unless is the problem of a text that is not right, or "".
func unless(right bool, text, write string) string {
	if right {
		return ""
	}
	return fmt.Sprintf("cannot be %q; write %s", printable(text), write)
}

// path reads the name of a file or folder, in which variables may stand.
func (r *reader) path(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if text, ok := r.text(n, what); ok {
			*into = text
			r.places[what] = placeOf(n)
		}
	}
}

// word reads one of a few words.
func word[T ~string](r *reader, what string, into *T, known ...string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		if !slices.Contains(known, text) {
			r.fail(n, "%s cannot be %q; %s", what, printable(text), didYouMean(text, known))
			return
		}
		*into = T(text)
		r.places[what] = placeOf(n)
	}
}

// number reads a plain decimal number between two bounds.
func number[T ~int | ~int64](r *reader, what string, into *T, low, high T) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
			r.fail(n, "%s is %s; write a number from %d to %d", what, kindOf(n), low, high)
			return
		}
		value, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil || strconv.FormatInt(value, 10) != n.Value || value < int64(low) || value > int64(high) {
			r.fail(n, "%s cannot be %s; write a plain decimal number from %d to %d", what, printable(n.Value), low, high)
			return
		}
		*into = T(value)
	}
}

func (r *reader) durationWithin(what string, into *time.Duration, least, most time.Duration, wanted string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode {
			r.fail(n, "%s is %s; write %s", what, kindOf(n), wanted)
			return
		}
		value, err := time.ParseDuration(n.Value)
		if err != nil || value < least || value > most {
			r.fail(n, "%s cannot be %q; write %s", what, printable(n.Value), wanted)
			return
		}
		*into = value
	}
}

// duration reads a positive duration of at most a day, with its unit.
func (r *reader) duration(what string, into *time.Duration) func(*yaml.Node) {
	return r.durationWithin(what, into, 1, 24*time.Hour, "a duration like 10s or 5m, at most 24h")
}

// lifetime reads how long a tunnel may last. None may last for ever.
func (r *reader) lifetime(what string, into *time.Duration) func(*yaml.Node) {
	return r.durationWithin(what, into, 5*time.Second, 30*24*time.Hour, "a duration from 5s to 720h")
}

// askWait reads how long a person is waited for; 0 is not at all.
func (r *reader) askWait(what string, into *time.Duration) func(*yaml.Node) {
	const wanted = "0, or a duration from 1s to 10m"
	within := r.durationWithin(what, into, time.Second, 10*time.Minute, wanted)
	return func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && (n.Value == "0" || n.Value == "0s") {
			*into = 0
			return
		}
		within(n)
	}
}

func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	case n.Tag == "!!bool":
		return "a truth value"
	case n.Tag == "!!timestamp":
		return "a date"
	default:
		return "text"
	}
}

// printable shortens text of a file for use in a message.
func printable(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// plainNames is what to write instead of what is no [plainName].
const plainNames = "up to 64 letters, digits, dots, dashes and underscores"

// plainName reports whether text has 1 to 64 bytes, all of them letters,
// digits, ".", "-" and "_", and begins with a letter or a digit.
func plainName(text string) bool {
	if text == "" || len(text) > 64 || strings.IndexByte(".-_", text[0]) >= 0 {
		return false
	}
	for i := range len(text) {
		if !policy.Unreserved(text[i]) || text[i] == '~' {
			return false
		}
	}
	return true
}

// didYouMean returns a hint for a word that is none of the known ones: the
// nearest of them, or all.
func didYouMean(word string, known []string) string {
	known = slices.Sorted(slices.Values(known))
	best, distance := "", max(2, len(word)/3)+1
	for _, k := range known {
		d := spelling.Distance(word, k)
		if d < distance || best != "" && d == distance && swapped(word, k) && !swapped(word, best) {
			best, distance = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "write one of " + strings.Join(known, ", ")
}

// swapped says that a and b are made of the same letters: of two that are as near,
// the likelier to be meant.
func swapped(a, b string) bool {
	return len(a) == len(b) && slices.Equal(slices.Sorted(slices.Values([]byte(a))), slices.Sorted(slices.Values([]byte(b))))
}
