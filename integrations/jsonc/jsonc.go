// Package jsonc changes JSON with comments. It keeps everything that it does not change as it was written.
package jsonc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// A File is JSON with comments, kept as it was written.
type File struct {
	root hujson.Value
	unit string // by which one level is indented
}

func Parse(text []byte) (*File, error) {
	if deep(text) {
		return nil, fmt.Errorf("values in it are nested more than %d deep", maxDepth)
	}
	if bytes.ContainsAny(bytes.ReplaceAll(text, []byte("\r\n"), nil), "\r") {
		return nil, errors.New("a line ends in a carriage return alone: readers differ on whether a comment ends there")
	}
	root, err := hujson.Parse(text)
	if err != nil {
		return nil, err
	}
	return &File{root, unitOf(&root)}, nil
}

// maxDepth is how deep values may be nested. The parser calls itself for each level, and a program
// that runs out of stack ends.
const maxDepth = 1000

// deep reports whether values are nested more than maxDepth deep in JSON with comments, or in as
// much of text as is.
func deep(text []byte) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			i = endOf(text, i)
		case c == '/' && i+1 < len(text) && text[i+1] == '/':
			i = past(text, i, "\n")
		case c == '/' && i+1 < len(text) && text[i+1] == '*':
			i = past(text, i+2, "*/")
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// endOf is where the string ends that begins at i: at its closing quote.
func endOf(text []byte, i int) int {
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}

// past is where the next end of a comment ends, or text.
func past(text []byte, i int, end string) int {
	n := bytes.Index(text[min(i, len(text)):], []byte(end))
	if n < 0 {
		return len(text)
	}
	return i + n + len(end) - 1
}

// unitOf is how the first member of the file is indented.
func unitOf(root *hujson.Value) string {
	if object, ok := root.Value.(*hujson.Object); ok && len(object.Members) > 0 {
		before := string(object.Members[0].Name.BeforeExtra)
		unit := before[strings.LastIndexByte(before, '\n')+1:]
		if unit != "" && strings.Trim(unit, " \t") == "" && strings.Contains(before, "\n") {
			return unit
		}
	}
	return indent
}

// Indented indents text that is indented by [indent] as the file is.
func (f *File) Indented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		rest := strings.TrimLeft(line, " ")
		lines[i] = strings.Repeat(f.unit, (len(line)-len(rest))/len(indent)) + rest
	}
	return strings.Join(lines, "\n")
}

func (f *File) Pack() []byte { return f.root.Pack() }

// Standard returns text without comments and trailing commas. It returns text that is not JSON unchanged.
func Standard(text []byte) []byte {
	standard, err := hujson.Standardize(bytes.Clone(text)) // it writes over what it is given
	if err != nil {
		return text
	}
	return standard
}

// Quote returns text as JSON has it.
func Quote(text string) string { return string(hujson.String(text)) }

func Joined(keys []string) string { return strings.Join(keys, ".") }

// Set puts value, a literal, at keys, and makes the objects on the way. It returns what
// is there, and leaves that, where it is something else.
func (f *File) Set(keys []string, value string) (has string, err error) {
	v := &f.root
	for depth, key := range keys {
		object, ok := v.Value.(*hujson.Object)
		if !ok {
			return "", fmt.Errorf("%s is no object", cmp.Or(Joined(keys[:depth]), "the file"))
		}
		member, err := find(object, key)
		if err != nil {
			return "", err
		}
		if member == nil {
			f.insert(object, key, nested(keys[depth+1:], value, depth+1), depth+1)
			return "", nil
		}
		v = &member.Value
	}
	if got := strings.TrimSpace(string(hujson.Value{Value: v.Value}.Pack())); got != value {
		return got, nil
	}
	return "", nil
}

func find(object *hujson.Object, key string) (found *hujson.ObjectMember, err error) {
	for i := range object.Members {
		if name, ok := object.Members[i].Name.Value.(hujson.Literal); !ok || name.String() != key {
			continue
		}
		if found != nil {
			return nil, errors.New("it has " + key + " twice")
		}
		found = &object.Members[i]
	}
	return found, nil
}

const indent = "  "

// nested is value inside of an object for each of keys, laid out at depth.
func nested(keys []string, value string, depth int) string {
	if len(keys) == 0 {
		return value
	}
	return "{" + line(depth+1) + `"` + keys[0] + `": ` + nested(keys[1:], value, depth+1) + line(depth) + "}"
}

func line(depth int) string { return "\n" + strings.Repeat(indent, depth) }

// insert adds a member to the end of object, laid out like those before it. Comments
// at the end stay where they are, before it.
func (f *File) insert(object *hujson.Object, key, text string, depth int) {
	value, err := hujson.Parse([]byte(f.Indented(text)))
	if err != nil {
		panic(err) // text is made by nested
	}
	value.BeforeExtra = hujson.Extra(" ")
	broken := f.Indented(line(depth))
	margin, end := broken, f.Indented(line(depth-1))
	comments := strings.TrimRight(string(object.AfterExtra), " \t\r\n")
	if n := len(object.Members); n > 0 {
		last := &object.Members[n-1]
		margin, end = string(last.Name.BeforeExtra), string(object.AfterExtra[len(comments):])
		if strings.TrimSpace(margin) != "" || comments != "" {
			margin = broken
		}
		if last.Value.AfterExtra != nil { // a comma stands after the last one
			value.AfterExtra = hujson.Extra{}
		}
	}
	object.Members = append(object.Members, hujson.ObjectMember{
		Name: hujson.Value{BeforeExtra: hujson.Extra(comments + margin), Value: hujson.String(key)}, Value: value,
	})
	object.AfterExtra = hujson.Extra(end)
}

// Include appends the missing words to the list at key, and makes the list if there is none.
func (f *File) Include(key string, words []string) error {
	object, ok := f.root.Value.(*hujson.Object)
	if !ok {
		return errors.New("the file is no object")
	}
	member, err := find(object, key)
	if err != nil {
		return err
	}
	if member == nil {
		f.insert(object, key, tall(words), 1)
		return nil
	}
	array, ok := member.Value.Value.(*hujson.Array)
	if !ok {
		return errors.New(key + " is no list")
	}
	for _, w := range words {
		if !has(array, w) {
			f.push(array, w)
		}
	}
	return nil
}

// Replace puts change of each word of the list at key in the word's place. It does nothing where there is no such list.
func (f *File) Replace(key string, change func(word string) string) {
	object, _ := f.root.Value.(*hujson.Object)
	if object == nil {
		return
	}
	member, err := find(object, key)
	if err != nil || member == nil {
		return
	}
	array, ok := member.Value.Value.(*hujson.Array)
	if !ok {
		return
	}
	for i := range array.Elements {
		if l, ok := array.Elements[i].Value.(hujson.Literal); ok && l.Kind() == '"' {
			array.Elements[i].Value = replaced(l, change(l.String()))
		}
	}
}

// replaced is a literal with another word, or itself as it was spelt.
func replaced(l hujson.Literal, word string) hujson.Literal {
	if word == l.String() {
		return l
	}
	return hujson.String(word)
}

// tall is a list with a line for each of words, laid out as the value of a key of the
// whole file.
func tall(words []string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(line(2) + Quote(w))
	}
	return "[" + b.String() + line(1) + "]"
}

func has(array *hujson.Array, word string) bool {
	return slices.ContainsFunc(array.Elements, func(v hujson.Value) bool {
		l, ok := v.Value.(hujson.Literal)
		return ok && l.Kind() == '"' && l.String() == word
	})
}

// push appends a word to array, in the layout of the element before. Comments at the end stay before the word.
func (f *File) push(array *hujson.Array, word string) {
	broken := f.Indented(line(2))
	added := hujson.Value{Value: hujson.String(word)}
	n := len(array.Elements)
	comments := strings.TrimRight(string(array.AfterExtra), " \t\r\n")
	if n == 0 {
		if comments != "" {
			added.BeforeExtra, array.AfterExtra = hujson.Extra(comments+broken), hujson.Extra(f.Indented(line(1)))
		}
		array.Elements = append(array.Elements, added)
		return
	}
	last := &array.Elements[n-1]
	margin, end := string(array.Elements[0].BeforeExtra), string(array.AfterExtra[len(comments):])
	if n > 1 {
		margin = string(last.BeforeExtra)
	}
	switch {
	case strings.TrimSpace(margin) != "" || comments != "":
		margin = broken
	case margin == "":
		margin = " "
	}
	if last.AfterExtra != nil { // a comma stands after the last one
		added.AfterExtra = hujson.Extra{}
	}
	added.BeforeExtra = hujson.Extra(comments + margin)
	array.Elements = append(array.Elements, added)
	array.AfterExtra = hujson.Extra(end)
}
