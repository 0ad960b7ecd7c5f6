// Package strictjson reads JSON that every server reads alike, and refuses all other: JSON with a name twice, invalid UTF-8,
// a second value, or more than [MaxDepth] levels. Nothing is built in memory, so a long text costs time alone.
//
//	err := strictjson.Walk(body, func(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) { … })
package strictjson

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"
)

// MaxDepth is how many objects and arrays may stand in each other.
const MaxDepth = 64

// A ValueKind tells which type a value has: '{', '[', '"', 't', 'f', 'n', or '0' for a number.
type ValueKind byte

// A PathStep leads from an object or an array to one of its members.
type PathStep struct {
	Name  string // of an object's member, decoded
	Index int    // of an array's element; -1 for a member of an object
}

// Errors that [Walk] returns. They hold nothing of the text.
var (
	ErrSyntax    = errors.New("it is not JSON as RFC 8259 has it")
	ErrDuplicate = errors.New("it has a name twice in one object")
	ErrUTF8      = errors.New("it is not valid UTF-8")
	ErrDepth     = errors.New("it is nested more than " + strconv.Itoa(MaxDepth) + " levels deep")
	ErrTrailing  = errors.New("it has more than one value")
	ErrNUL       = errors.New("it has a NUL in a name")
)

// Walk calls visit for each value of text, an object or array before its members. raw is the text of a string, number,
// boolean or null, and nil for the others; [Text] decodes a string. at and raw are valid until visit returns.
//
// Values are visited until the text turns out bad, so the caller must use what it has seen only if Walk returns nil.
func Walk(text []byte, visit func(at []PathStep, kind ValueKind, raw []byte)) error {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	w := jsonWalk{dec: d, visit: visit, at: make([]PathStep, 0, 16)}
	if err := w.value(); err != nil {
		return err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return ErrTrailing
	}
	return nil
}

type jsonWalk struct {
	dec   *jsontext.Decoder
	visit func(at []PathStep, kind ValueKind, raw []byte)
	at    []PathStep
}

// value reads one value, with its members.
func (w *jsonWalk) value() error {
	kind := w.dec.PeekKind()
	if kind != '{' && kind != '[' {
		raw, err := w.dec.ReadValue()
		if err != nil {
			return problemOf(err)
		}
		w.visit(w.at, ValueKind(kind), raw)
		return nil
	}
	if len(w.at) >= MaxDepth {
		return ErrDepth
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return problemOf(err)
	}
	w.visit(w.at, ValueKind(kind), nil)
	for i := 0; ; i++ {
		switch next := w.dec.PeekKind(); {
		case next == '}' || next == ']':
			_, err := w.dec.ReadToken()
			return problemOf(err)
		case kind == '{':
			name, err := w.dec.ReadToken()
			if err != nil {
				return problemOf(err)
			}
			step := PathStep{Name: name.String(), Index: -1}
			if strings.ContainsRune(step.Name, 0) {
				return ErrNUL
			}
			w.at = append(w.at, step)
		default:
			w.at = append(w.at, PathStep{Index: i})
		}
		if err := w.value(); err != nil {
			return err
		}
		w.at = w.at[:len(w.at)-1]
	}
}

// problemOf returns which rule of JSON a text breaks.
func problemOf(err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jsontext.ErrDuplicateName):
		return ErrDuplicate
	case errors.As(err, &syntax) && syntax.Err != nil && strings.Contains(syntax.Err.Error(), "UTF-8"):
		return ErrUTF8
	}
	return ErrSyntax
}

// Text decodes a string that [Walk] has visited.
func Text(raw []byte) string {
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return "" // Walk has read it, so it is a string
	}
	return string(text)
}

// Alike reports whether some server takes one name for the other: one that ignores case, or that has both in one form of
// Unicode.
func Alike(a, b string) bool {
	return a == b || strings.EqualFold(norm.NFKC.String(a), norm.NFKC.String(b))
}
