// Package graphql reads what a request of GraphQL has a server carry out. It refuses documents that two servers could read in
// two ways. Nothing is checked against a schema.
//
//	operations, err := graphql.Parse(query, variables)
package graphql

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// Bounds of one document.
const (
	MaxTokens = 20_000
	MaxFields = 256    // at the roots of all operations, once fragments are expanded
	MaxValues = 10_000 // in the arguments of these fields, once variables are filled in
)

// An Operation is one of those that a document has. A server carries one of them out.
type Operation struct {
	Kind   string      // "query", "mutation" or "subscription"
	Fields []RootField // at its root, those of fragments among them, whatever @skip and @include say
}

// A RootField is what a server is asked for or has to do.
type RootField struct {
	Name      string // never the alias
	Arguments []Member
}

// A Member is an argument, or a field of an object.
type Member struct {
	Name  string
	Value Value
}

// A Value is an argument, with variables filled in.
type Value struct {
	Kind    ValueForm
	Text    string   // of Text and Number
	Members []Member // of Object
	Items   []Value  // of List
}

// A ValueForm is what a [Value] is.
type ValueForm uint8

const (
	Null ValueForm = iota
	Text
	Number
	Word // true, false or an enum value
	Object
	List
)

// Errors that [Parse] returns. They hold nothing of the document.
var (
	ErrSyntax     = errors.New("its query is no GraphQL document, or longer than " + strconv.Itoa(MaxTokens) + " tokens")
	ErrCharacters = errors.New("its query has characters that servers read in different ways")
	ErrBlock      = errors.New(`its query has a text in """, which servers read in different ways`)
	ErrEmpty      = errors.New("its query has no operation")
	ErrTwice      = errors.New("its query has a name twice where it may stand once")
	ErrFragment   = errors.New("its query has a fragment that is missing, has variables or spreads itself")
	ErrDirective  = errors.New("its query has a directive other than @skip and @include")
	ErrVariable   = errors.New("its query uses a variable that it does not declare")
	ErrLong       = errors.New("its query has more than " + strconv.Itoa(MaxFields) + " fields at its root, or more than " + strconv.Itoa(MaxValues) + " values")
)

// Parse returns all operations of a document. Variables that stand for nothing are left out, as servers do.
func Parse(document string, variables map[string]Value) ([]Operation, error) {
	switch {
	case strings.Contains(document, `"""`):
		return nil, ErrBlock
	case !plain(document):
		return nil, ErrCharacters
	}
	doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: document}, MaxTokens)
	switch {
	case err != nil:
		return nil, ErrSyntax
	case len(doc.Operations) == 0:
		return nil, ErrEmpty
	}
	r := documentReader{fragments: map[string]*ast.FragmentDefinition{}, variables: variables}
	for _, f := range doc.Fragments {
		switch {
		case r.fragments[f.Name] != nil:
			return nil, ErrTwice
		case len(f.VariableDefinition) > 0:
			return nil, ErrFragment
		}
		r.fragments[f.Name] = f
		r.directives(f.Directives)
	}
	var all []Operation
	for _, o := range doc.Operations {
		all = append(all, r.operation(o))
	}
	if r.err != nil {
		return nil, r.err
	}
	return all, nil
}

// plain reports whether all servers see the same lines and tokens in a document: a comment ends at the same place for all.
func plain(document string) bool {
	for i, c := range document {
		switch {
		case c == '\n' || c == '\t':
		case c == '\r':
			if !strings.HasPrefix(document[i:], "\r\n") {
				return false
			}
		case c < ' ' || c >= 0x7f && c < 0xa0 || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == utf8.RuneError:
			return false
		}
	}
	return true
}

// A documentReader reads the operations of one document. Its first error stays.
type documentReader struct {
	fragments      map[string]*ast.FragmentDefinition
	variables      map[string]Value
	declared       map[string]*ast.VariableDefinition // of the operation
	spreading      []string                           // fragments around what is read
	fields, values int
	err            error
}

func (r *documentReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *documentReader) operation(o *ast.OperationDefinition) Operation {
	r.declared = map[string]*ast.VariableDefinition{}
	for _, v := range o.VariableDefinitions {
		if r.declared[v.Variable] != nil {
			r.fail(ErrTwice)
		}
		r.declared[v.Variable] = v
		r.directives(v.Directives)
	}
	r.directives(o.Directives)
	return Operation{Kind: string(o.Operation), Fields: r.selection(nil, o.SelectionSet)}
}

// selection appends the fields of a selection at the root.
func (r *documentReader) selection(into []RootField, set ast.SelectionSet) []RootField {
	for _, one := range set {
		if r.err != nil {
			return into
		}
		switch s := one.(type) {
		case *ast.Field:
			if r.fields++; r.fields > MaxFields {
				r.fail(ErrLong)
				return into
			}
			r.directives(s.Directives)
			r.inside(s.SelectionSet)
			into = append(into, RootField{Name: s.Name, Arguments: r.arguments(s.Arguments)})
		case *ast.InlineFragment:
			r.directives(s.Directives)
			into = r.selection(into, s.SelectionSet)
		case *ast.FragmentSpread:
			r.directives(s.Directives)
			into = r.spread(into, s.Name)
		default:
			r.fail(ErrSyntax)
		}
	}
	return into
}

// spread appends the fields of a fragment at the root.
func (r *documentReader) spread(into []RootField, name string) []RootField {
	f := r.fragments[name]
	if f == nil || slices.Contains(r.spreading, name) {
		r.fail(ErrFragment)
		return into
	}
	if r.fields++; r.fields > MaxFields { // a fragment without fields of its own costs as much
		r.fail(ErrLong)
		return into
	}
	r.spreading = append(r.spreading, name)
	into = r.selection(into, f.SelectionSet)
	r.spreading = r.spreading[:len(r.spreading)-1]
	return into
}

// inside looks at the directives of what is read of a field's result.
func (r *documentReader) inside(set ast.SelectionSet) {
	for _, one := range set {
		switch s := one.(type) {
		case *ast.Field:
			r.directives(s.Directives)
			r.inside(s.SelectionSet)
		case *ast.InlineFragment:
			r.directives(s.Directives)
			r.inside(s.SelectionSet)
		case *ast.FragmentSpread:
			r.directives(s.Directives)
		}
	}
}

func (r *documentReader) directives(all ast.DirectiveList) {
	for _, d := range all {
		if d.Name != "skip" && d.Name != "include" {
			r.fail(ErrDirective)
		}
	}
}

func (r *documentReader) arguments(all ast.ArgumentList) (out []Member) {
	for _, a := range all {
		if slices.ContainsFunc(out, func(m Member) bool { return m.Name == a.Name }) {
			r.fail(ErrTwice)
		}
		if v, ok := r.value(a.Value); ok {
			out = append(out, Member{a.Name, v})
		}
	}
	return out
}

// value returns a value with variables filled in. ok is false for a variable that stands for nothing.
func (r *documentReader) value(v *ast.Value) (out Value, ok bool) {
	if r.values++; r.values > MaxValues || v == nil {
		r.fail(ErrLong)
		return out, false
	}
	switch v.Kind {
	case ast.Variable:
		return r.variable(v.Raw)
	case ast.StringValue:
		return Value{Kind: Text, Text: v.Raw}, true
	case ast.IntValue, ast.FloatValue:
		return Value{Kind: Number, Text: v.Raw}, true
	case ast.NullValue:
		return out, true
	case ast.ListValue:
		out.Kind = List
		for _, item := range v.Children {
			one, _ := r.value(item.Value) // a variable that stands for nothing is null in a list
			out.Items = append(out.Items, one)
		}
		return out, true
	case ast.ObjectValue:
		out.Kind = Object
		names := map[string]bool{}
		for _, member := range v.Children {
			if names[member.Name] {
				r.fail(ErrTwice)
			}
			names[member.Name] = true
			if one, ok := r.value(member.Value); ok {
				out.Members = append(out.Members, Member{member.Name, one})
			}
		}
		return out, true
	}
	return Value{Kind: Word, Text: v.Raw}, true
}

// variable returns what was sent for a variable, or else its default.
func (r *documentReader) variable(name string) (Value, bool) {
	declared := r.declared[name]
	if declared == nil {
		r.fail(ErrVariable)
		return Value{}, false
	}
	if v, sent := r.variables[name]; sent {
		r.values += v.count()
		if r.values > MaxValues {
			r.fail(ErrLong)
		}
		return v, true
	}
	if declared.DefaultValue == nil {
		return Value{}, false
	}
	return r.value(declared.DefaultValue) // which holds no variables
}

// count returns how many values are in v.
func (v *Value) count() int {
	n := 1
	for i := range v.Members {
		n += v.Members[i].Value.count()
	}
	for i := range v.Items {
		n += v.Items[i].count()
	}
	return n
}
