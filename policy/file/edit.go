package file

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// AllowText returns the text of a rule file with one more line for each
// opening at the end of its list "allow". All else stays as it is, comments
// and layout included, and reads as it did. AllowText does not check the new rules:
// the caller parses and compiles the result like any other file.
//
// Without openings, an "allow" that has no value becomes an empty list, and
// any other text comes back as it was.
//
// The error is a [policy.FileError] if text is no valid rule file or has no place for the
// list. It is the error of [policy.Opening.Check] if an opening may not be added. name is used
// in messages only.
func AllowText(name string, text []byte, openings ...policy.Opening) ([]byte, error) {
	return AllowOwnText(name, text, "", openings...)
}

// AllowOwnText is [AllowText] for the list "allow" of one sandbox, which the file must have. An empty name of a
// sandbox stands for the list of the file.
func AllowOwnText(name string, text []byte, sandbox string, openings ...policy.Opening) ([]byte, error) {
	for _, o := range openings {
		if err := o.Check(); err != nil {
			return nil, err
		}
	}
	return addToList(name, text, sandbox, "allow", openings)
}

// AlsoAllowText is [AllowText] for the list "also_allow" of a sandbox.
func AlsoAllowText(name string, text []byte, sandbox string, openings ...policy.Opening) ([]byte, error) {
	for _, o := range openings {
		if err := o.Check(); err != nil {
			return nil, err
		}
	}
	return addToList(name, text, sandbox, "also_allow", openings)
}

// DenyText is [AllowText] for the list "deny", to which any pattern may be added.
func DenyText(name string, text []byte, patterns ...policy.Pattern) ([]byte, error) {
	return addToList(name, text, "", "deny", policy.OpeningsOf(patterns))
}

// AskText is [AllowText] for the list "ask", to which any pattern may be added.
func AskText(name string, text []byte, openings ...policy.Opening) ([]byte, error) {
	return addToList(name, text, "", "ask", openings)
}

// TestsText is [AllowText] for the list "tests".
func TestsText(name string, text []byte, tests ...string) ([]byte, error) {
	e, err := newListEdit(name, text, "", "tests")
	if err != nil {
		return nil, err
	}
	for _, test := range tests {
		e.values = append(e.values, value{scalarText(test), outline(stringNode(test))})
	}
	return e.apply()
}

// LineText returns the line of a list that opens o.
func LineText(o policy.Opening) string { return valueOf(o).text }

// TestText returns a line of the list "tests".
func TestText(test string) string { return scalarText(test) }

func addToList(name string, text []byte, sandbox, into string, lines []policy.Opening) ([]byte, error) {
	e, err := newListEdit(name, text, sandbox, into)
	if err != nil {
		return nil, err
	}
	for _, o := range lines {
		e.values = append(e.values, valueOf(o))
	}
	return e.apply()
}

// apply returns the text with the values.
func (e *listEdit) apply() ([]byte, error) {
	attempts := 0
	for candidate := range e.candidates() {
		if e.isMeant(candidate) {
			return candidate, nil
		}
		if attempts++; attempts == maxAttempts {
			break
		}
	}
	at := placeOf(e.place())
	return nil, policy.FileError{{File: e.name, Line: at.Line, Column: at.Column, Message: "nothing can be added to the list " + e.into + " as it is written here; write the line into the file by hand"}}
}

// maxAttempts bounds how many places for the new lines are tried.
const maxAttempts = 500

// A listEdit adds values to one list in the text of a file. The YAML
// library tells where a node begins and not where it ends, so places for the
// new text are tried, the likely one first, until the result reads as the old
// text with the values behind its own.
type listEdit struct {
	name      string
	text      []byte
	sandbox   string // whose list it is; empty for a list of the whole file
	into      string // the key of the list
	eol       string
	document  *yaml.Node
	root      *yaml.Node // the mapping that has the list: the document, or a sandbox in it
	key, list *yaml.Node // nil where root has no such key
	values    []value
}

// A value is one item of a list: its text in the file, and its [outline].
type value struct{ text, outline string }

func valueOf(o policy.Opening) value {
	host := scalarText(o.Pattern.String())
	if !o.Conditional() {
		return value{host, outline(stringNode(o.Pattern.String()))}
	}
	text, node := "{host: "+host, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	node.Content = []*yaml.Node{stringNode("host"), stringNode(o.Pattern.String())}
	for _, more := range []struct{ key, item string }{{"methods", o.Method}, {"paths", o.Path}} {
		if more.item == "" {
			continue
		}
		text += ", " + more.key + ": [" + scalarText(more.item) + "]"
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{stringNode(more.item)}}
		node.Content = append(node.Content, stringNode(more.key), list)
	}
	return value{text + "}", outline(node)}
}

func stringNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// scalarText returns text as YAML, in quotes where a list needs them, with or without brackets.
func scalarText(text string) string {
	for _, list := range []string{"- " + text, "[{a: " + text + "}]"} {
		var doc yaml.Node
		err := yaml.Unmarshal([]byte(list), &doc)
		if n := lastNode(&doc); err != nil || n.Tag != "!!str" || n.Value != text {
			return strconv.Quote(text) // of ASCII without a backslash, which is YAML, too
		}
	}
	return text
}

func newListEdit(name string, text []byte, sandbox, into string) (*listEdit, error) {
	r := &reader{name: name}
	root := r.document(text)
	if root != nil && root.Kind != yaml.MappingNode {
		r.fail(root, "the file is %s; write a mapping of keys to values", kindOf(root))
	}
	if len(r.problems) > 0 {
		return nil, r.problems.Sorted()
	}
	e := &listEdit{name: name, text: bytes.Clone(text), sandbox: sandbox, into: into, eol: "\n", document: root}
	if e.root = e.holder(root); e.root == nil {
		r.fail(root, "there is no sandbox %s", sandbox)
		return nil, r.problems.Sorted()
	}
	if bytes.Contains(text, []byte("\r\n")) {
		e.eol = "\r\n"
	}
	e.key, e.list = listOf(e.root, into)
	return e, nil
}

func (e *listEdit) holder(document *yaml.Node) *yaml.Node {
	if e.sandbox == "" {
		return document
	}
	_, all := listOf(document, "sandboxes")
	if all == nil {
		return nil
	}
	for _, one := range all.Content {
		if _, name := listOf(one, "name"); one.Kind == yaml.MappingNode && name != nil && name.Value == e.sandbox {
			return one
		}
	}
	return nil
}

func listOf(root *yaml.Node, name string) (key, list *yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == name {
			return root.Content[i], root.Content[i+1]
		}
	}
	return nil, nil
}

// place is what a message about the list points to.
func (e *listEdit) place() *yaml.Node {
	if e.key != nil {
		return e.key
	}
	return e.root
}

// isMeant reports whether candidate is a file with the values behind those of
// the old list, and everything else as it was.
func (e *listEdit) isMeant(candidate []byte) bool {
	root := (&reader{name: e.name}).document(candidate)
	if root == nil || root.Kind != yaml.MappingNode {
		return false
	}
	wantRest, want := e.meaning(e.document)
	for _, v := range e.values {
		want = append(want, v.outline)
	}
	rest, items := e.meaning(root)
	return rest == wantRest && slices.Equal(items, want)
}

func (e *listEdit) meaning(document *yaml.Node) (rest string, items []string) {
	holder := e.holder(document)
	if holder == nil {
		return "", nil
	}
	key, list := listOf(holder, e.into)
	if list != nil {
		for _, n := range list.Content {
			items = append(items, outline(n))
		}
	}
	return outline(document, key, list), items
}

// outline returns what a node says, without its place, comments and style. It leaves out the nodes of without.
func outline(n *yaml.Node, without ...*yaml.Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s %q (", n.Kind, n.Tag, n.Value)
	for _, child := range n.Content {
		if !slices.Contains(without, child) {
			b.WriteString(outline(child, without...))
		}
	}
	return b.String() + ")"
}

// candidates yields texts with the values in places where they may belong.
func (e *listEdit) candidates() iter.Seq[[]byte] {
	isNull := e.list != nil && e.list.Tag == "!!null" && e.list.Value == ""
	switch {
	case len(e.values) == 0 && isNull:
		return e.emptied
	case len(e.values) == 0:
		return func(yield func([]byte) bool) { yield(e.text) }
	case e.key == nil && isFlow(e.root):
		return e.intoRoot
	case e.key == nil:
		return e.newSection
	case isNull:
		return e.belowLine(e.key.Line, e.margin())
	case len(e.list.Content) == 0:
		return e.intoEmpty
	case isFlow(e.list):
		return e.intoFlow
	}
	return e.belowLine(lastNode(e.list).Line, e.list.Column-1)
}

func isFlow(n *yaml.Node) bool { return n.Style&yaml.FlowStyle != 0 }

// lastNode returns the node below n that begins last.
func lastNode(n *yaml.Node) *yaml.Node {
	for len(n.Content) > 0 {
		n = n.Content[len(n.Content)-1]
	}
	return n
}

// emptied gives a list without a value one.
func (e *listEdit) emptied(yield func([]byte) bool) {
	for at := e.offset(e.key); at < len(e.text); at++ {
		if e.text[at] == ':' && !yield(splice(e.text, at+1, " []")) {
			return
		}
	}
}

// intoRoot begins the list in a file that is one pair of braces.
func (e *listEdit) intoRoot(yield func([]byte) bool) {
	yield(splice(e.text, e.offset(e.root)+1, e.into+": ["+e.inline()+"], "))
}

// newSection begins the list behind the last line of the document.
func (e *listEdit) newSection(yield func([]byte) bool) {
	block := append([]string{spaces(e.root.Column-1) + e.into + ":"}, e.lines(e.margin())...)
	for line := bytes.Count(bytes.TrimRight(e.text, " \r\n"), []byte("\n")) + 1; line > 0; line-- {
		if !yield(e.insert(e.text, line, block)) {
			return
		}
	}
}

// belowLine puts lines behind that one or one that comes after it.
func (e *listEdit) belowLine(first, margin int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := first; line <= bytes.Count(e.text, []byte("\n"))+1; line++ {
			if !yield(e.insert(e.text, line, e.lines(margin))) {
				return
			}
		}
	}
}

// intoEmpty puts lines in the place of a bare pair of brackets, and values
// into a pair that stands elsewhere or has a comment inside.
func (e *listEdit) intoEmpty(yield func([]byte) bool) {
	open := e.offset(e.list)
	inside := bytes.TrimLeft(e.text[open+1:], " ")
	if bytes.HasPrefix(inside, []byte("]")) && e.key.Line == e.list.Line {
		bare := slices.Concat(bytes.TrimRight(e.text[:open], " "), inside[1:])
		if !yield(e.insert(bare, e.key.Line, e.lines(e.margin()))) {
			return
		}
	}
	yield(splice(e.text, open+1, e.inline()))
}

// intoFlow puts values behind the last one in brackets: on lines of their own
// where that one has its own.
func (e *listEdit) intoFlow(yield func([]byte) bool) {
	item := e.list.Content[len(e.list.Content)-1]
	margin := e.offset(item) - lineStart(e.text, item.Line)
	alone := item.Line > e.list.Line && len(bytes.TrimSpace(e.text[e.offset(item)-margin:e.offset(item)])) == 0
	for at := e.offset(lastNode(item)) + 1; at < len(e.text); at++ {
		if bytes.IndexByte([]byte(" ,]}\r\n"), e.text[at]) < 0 {
			continue
		}
		if alone && !yield(e.flowLines(at, margin)) || !yield(splice(e.text, at, ", "+e.inline())) {
			return
		}
	}
}

// flowLines puts values on lines behind that of an item that ends at an
// offset. A comma behind the last item is kept up.
func (e *listEdit) flowLines(at, margin int) []byte {
	tail, _, _ := bytes.Cut(e.text[at:], []byte(e.eol))
	before, after := ",", ""
	if bytes.HasPrefix(bytes.TrimLeft(tail, " "), []byte(",")) {
		before, after = "", ","
	}
	lines := e.eol + spaces(margin) + strings.Join(e.written(), ","+e.eol+spaces(margin)) + after
	return slices.Concat(e.text[:at], []byte(before), tail, []byte(lines), e.text[at+len(tail):])
}

func (e *listEdit) written() []string {
	texts := make([]string, len(e.values))
	for i, v := range e.values {
		texts[i] = v.text
	}
	return texts
}

func (e *listEdit) inline() string { return strings.Join(e.written(), ", ") }

// lines returns the values as items of a block.
func (e *listEdit) lines(margin int) []string {
	lines := e.written()
	for i := range lines {
		lines[i] = spaces(margin) + "- " + lines[i]
	}
	return lines
}

// margin is how far the items of a list of this file are indented.
func (e *listEdit) margin() int {
	for _, n := range e.root.Content {
		if n.Kind == yaml.SequenceNode && !isFlow(n) && len(n.Content) > 0 {
			return n.Column - 1
		}
	}
	return e.root.Column + 1
}

// insert puts lines behind a line of text, which is counted from 1.
func (e *listEdit) insert(text []byte, line int, lines []string) []byte {
	at := lineStart(text, line+1)
	block := strings.Join(lines, e.eol) + e.eol
	if at > 0 && text[at-1] != '\n' {
		block = e.eol + block
	}
	return splice(text, at, block)
}

// lineStart returns the offset of a line, or that of the end.
func lineStart(text []byte, line int) int {
	at := 0
	for range line - 1 {
		i := bytes.IndexByte(text[at:], '\n')
		if i < 0 {
			return len(text)
		}
		at += i + 1
	}
	return at
}

// offset returns where a node begins. Its column counts characters.
func (e *listEdit) offset(n *yaml.Node) int {
	at := lineStart(e.text, n.Line)
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(e.text[at:])
		at += size
	}
	return at
}

func splice(text []byte, at int, insert string) []byte {
	return slices.Concat(text[:at], []byte(insert), text[at:])
}

func spaces(n int) string { return strings.Repeat(" ", n) }
