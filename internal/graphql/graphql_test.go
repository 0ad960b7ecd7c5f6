package graphql

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/rules"
	"pgregory.net/rapid"
)

// shown is a short form of what a document does: "mutation a(input:{id:"x"})".
func shown(all []Operation) string {
	var out []string
	for _, o := range all {
		text := o.Kind
		for _, f := range o.Fields {
			text += " " + f.Name + members(f.Arguments, "(", ")")
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func members(all []Member, begin, end string) string {
	if len(all) == 0 {
		return ""
	}
	texts := make([]string, len(all))
	for i, m := range all {
		texts[i] = m.Name + ":" + valueText(m.Value)
	}
	return begin + strings.Join(texts, ",") + end
}

func valueText(v Value) string {
	switch v.Kind {
	case Null:
		return "null"
	case Text:
		return fmt.Sprintf("%q", v.Text)
	case Object:
		return "{" + members(v.Members, "", "") + "}"
	case List:
		items := make([]string, len(v.Items))
		for i, item := range v.Items {
			items[i] = valueText(item)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return v.Text
}

func TestOperations(t *testing.T) {
	given := map[string]Value{"s": {Kind: Text, Text: "sent"}, "n": {}, "o": {Kind: Object, Members: []Member{{"id", Value{Kind: Text, Text: "in"}}}}}
	for _, row := range []struct {
		says, document, want string
		err                  error
	}{
		{"a query without a word", `{viewer{login}}`, "query viewer", nil},
		{"an alias", `mutation{addComment:deleteIssue(input:{issueId:"x"}){clientMutationId}}`, `mutation deleteIssue(input:{issueId:"x"})`, nil},
		{"a fragment first", `fragment F on Mutation{deleteIssue(input:{issueId:"x"}){clientMutationId}} mutation{...F}`, `mutation deleteIssue(input:{issueId:"x"})`, nil},
		{"a fragment in a fragment", `mutation{...A} fragment A on Mutation{...B a} fragment B on Mutation{b}`, "mutation b a", nil},
		{"a fragment that nobody uses", `{a} fragment A on Mutation{b}`, "query a", nil},
		{"an inline fragment", `mutation{... on Mutation{a} ... @include(if:true){b} ...{c}}`, "mutation a b c", nil},
		{"two operations", `query Q{a} mutation M{b}`, "query a; mutation b", nil},
		{"skipped", `mutation{a @skip(if:true) b @include(if:false)}`, "mutation a b", nil},
		{"the word in a text", `query{search(query:"mutation{a}",type:ISSUE){issueCount}} # mutation{b}`, `query search(query:"mutation{a}",type:ISSUE)`, nil},
		{"several of one field", `mutation{a:x(i:1) b:x(i:2)}`, "mutation x(i:1) x(i:2)", nil},
		{"variables", `mutation($s:ID!,$d:ID="def",$n:ID="def",$none:ID,$o:O){a(s:$s,d:$d,n:$n,none:$none,o:$o,l:[$s,$none],in:{s:$s,none:$none})}`,
			`mutation a(s:"sent",d:"def",n:null,o:{id:"in"},l:["sent",null],in:{s:"sent"})`, nil},
		{"escapes", `{a(s:"\u0073\n\"")}`, `query a(s:"s\n\"")`, nil},
		{"commas and tabs", "{,a,\t,b\r\n}", "query a b", nil},
		{"a subscription", `subscription{a}`, "subscription a", nil},

		{"nothing", ``, "", ErrEmpty},
		{"a comment alone", `# x`, "", ErrEmpty},
		{"fragments alone", `fragment A on Query{a}`, "", ErrEmpty},
		{"a type", `type Query{a:Int}`, "", ErrSyntax},
		{"half", `{a`, "", ErrSyntax},
		{"no fields", `query Q`, "", ErrSyntax},
		{"a fragment that spreads itself", `mutation{...A} fragment A on Mutation{...A}`, "", ErrFragment},
		{"a ring", `mutation{...A} fragment A on Mutation{...B} fragment B on Mutation{...A}`, "", ErrFragment},
		{"no such fragment", `mutation{...A}`, "", ErrFragment},
		{"a fragment twice", `{...A} fragment A on Query{a} fragment A on Query{b}`, "", ErrTwice},
		{"a fragment with variables", `{...A} fragment A($x:Int=1) on Query{a}`, "", ErrFragment},
		{"an argument twice", `{a(x:1,x:2)}`, "", ErrTwice},
		{"a member twice", `{a(x:{i:1,i:2})}`, "", ErrTwice},
		{"a variable twice", `query($x:Int,$x:ID){a(x:$x)}`, "", ErrTwice},
		{"a variable that is not declared", `{a(x:$s)}`, "", ErrVariable},
		{"a variable of another operation", `query A($s:ID){a} query B{a(x:$s)}`, "", ErrVariable},
		{"a directive", `{a @defer}`, "", ErrDirective},
		{"a directive inside", `{a{b{c @stream}}}`, "", ErrDirective},
		{"a directive of the operation", `query @live{a}`, "", ErrDirective},
		{"a block text", `{a(x:"""b""")}`, "", ErrBlock},
		{"three quotes and one", `{a(x:"""b"""")}`, "", ErrBlock},
		{"a comment that ends early for some", "{a #\rb\n}", "", ErrCharacters},
		{"a line separator", "{a #\u2028b\n}", "", ErrCharacters},
		{"a byte order mark", "\ufeff{a}", "", ErrCharacters},
		{"a NUL", "{a #\x00\n}", "", ErrCharacters},
		{"a broken character", "{a #\xff\n}", "", ErrCharacters},
		{"many fields", "{" + strings.Repeat("a ", MaxFields+1) + "}", "", ErrLong},
		{"many values", `query($s:ID){a(x:[` + strings.Repeat("1 ", MaxValues+1) + `])}`, "", ErrLong},
		{"fragments that double", doubling(20), "", ErrLong},
		{"many tokens", strings.Repeat("{a}", MaxTokens), "", ErrSyntax},
		{"deep", "{a(x:" + strings.Repeat("[", MaxTokens) + ")}", "", ErrSyntax},
	} {
		got, err := Parse(row.document, given)
		if !errors.Is(err, row.err) || err == nil && shown(got) != row.want {
			t.Errorf("%s: %v, %s, want %s", row.says, err, shown(got), row.want)
		}
	}
}

// doubling is a document whose fields double with each fragment.
func doubling(n int) string {
	text := "{...F0}"
	for i := range n {
		text += fmt.Sprintf(" fragment F%d on Query{...F%d ...F%d}", i, i+1, i+1)
	}
	return text + fmt.Sprintf(" fragment F%d on Query{a}", n)
}

const schemaText = `
type Query { viewer(id: ID): String, node(ids: [ID!]): Mutation }
type Mutation { addComment(input: In!): Mutation, deleteIssue(input: In!, ids: [ID]): Mutation }
input In { subjectId: ID, body: String, more: [In!] }`

// TestTheReferenceUnderstandsTheSame makes documents at random, and has gqlparser's validator find out which fields an executor
// would call with which arguments. For each document that the validator takes and that is read here, every call has to be among
// those that are read here.
func TestTheReferenceUnderstandsTheSame(t *testing.T) {
	schema := gqlparser.MustLoadSchema(&ast.Source{Input: schemaText})
	lenient := rules.NewDefaultRules() // as some servers are
	for _, name := range []string{"NoUnusedVariables", "NoUnusedFragments", "OverlappingFieldsCanBeMerged"} {
		lenient.RemoveRule(name)
	}
	taken, calls := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		document := drawDocument(t)
		sent := map[string]any{"a": "A1", "in": map[string]any{"subjectId": "S1", "more": []any{map[string]any{"subjectId": "S2"}}}}
		doc, errs := gqlparser.LoadQueryWithRules(schema, document, lenient)
		if len(errs) > 0 {
			return
		}
		ours, err := Parse(document, map[string]Value{"a": {Kind: Text, Text: "A1"}, "in": {Kind: Object, Members: []Member{
			{"subjectId", Value{Kind: Text, Text: "S1"}}, {"more", Value{Kind: List, Items: []Value{{Kind: Object, Members: []Member{{"subjectId", Value{Kind: Text, Text: "S2"}}}}}}}}}})
		if err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		taken++
		for i, o := range doc.Operations {
			vars, err := validator.VariableValues(schema, o, sent)
			if err != nil {
				continue
			}
			for _, call := range executed(o.SelectionSet, vars) {
				calls++
				if !slices.Contains(callsOf(&ours[i]), call) {
					t.Fatalf("%s\nthe reference calls %s, read here: %s", document, call, shown(ours))
				}
			}
		}
	})
	if taken < 20 || calls < 20 {
		t.Errorf("%d documents were compared, with %d calls", taken, calls)
	}
}

// executed lists the fields that an executor calls for a selection at the root, with all ids in their arguments.
func executed(set ast.SelectionSet, vars map[string]any) (all []string) {
	goes := func(d ast.DirectiveList) bool {
		for _, one := range d {
			if on, _ := one.ArgumentMap(vars)["if"].(bool); on == (one.Name == "skip") {
				return false
			}
		}
		return true
	}
	for _, one := range set {
		switch s := one.(type) {
		case *ast.Field:
			if goes(s.Directives) {
				all = append(all, s.Name+fmt.Sprint(idsIn(s.ArgumentMap(vars))))
			}
		case *ast.InlineFragment:
			if goes(s.Directives) {
				all = append(all, executed(s.SelectionSet, vars)...)
			}
		case *ast.FragmentSpread:
			if goes(s.Directives) {
				all = append(all, executed(s.Definition.SelectionSet, vars)...)
			}
		}
	}
	return all
}

// idsIn returns all texts of arguments, in order.
func idsIn(v any) (ids []string) {
	switch v := v.(type) {
	case string:
		ids = []string{v}
	case map[string]any:
		for _, one := range v {
			ids = append(ids, idsIn(one)...)
		}
	case []any:
		for _, one := range v {
			ids = append(ids, idsIn(one)...)
		}
	}
	slices.Sort(ids)
	return ids
}

func callsOf(o *Operation) (all []string) {
	for _, f := range o.Fields {
		var ids []string
		for _, a := range f.Arguments {
			ids = append(ids, textsIn(&a.Value)...)
		}
		slices.Sort(ids)
		all = append(all, f.Name+fmt.Sprint(ids))
	}
	return all
}

func textsIn(v *Value) (all []string) {
	if v.Kind == Text || v.Kind == Number {
		all = append(all, v.Text)
	}
	for i := range v.Members {
		all = append(all, textsIn(&v.Members[i].Value)...)
	}
	for i := range v.Items {
		all = append(all, textsIn(&v.Items[i])...)
	}
	return all
}

// drawDocument draws documents of which the validator takes many.
func drawDocument(t *rapid.T) string {
	pick := func(of ...string) string { return rapid.SampledFrom(of).Draw(t, "of") }
	id := func() string { return pick(`"x"`, `"y"`, `"\u0078"`, "$a", "$d", "null", `"mutation{a}"`) }
	var input func(depth int) string
	input = func(depth int) string {
		switch n := rapid.IntRange(0, 4).Draw(t, "input"); {
		case n == 0:
			return "$in"
		case n == 1 && depth < 2:
			return "{subjectId:" + id() + " more:[" + input(depth+1) + "]}"
		case n == 2:
			return "{body:\"# \\\"}\"}"
		}
		return "{subjectId:" + id() + "}"
	}
	directive := func() string { return pick("", "", "", " @skip(if:true)", " @include(if:false)", " @include(if:true)") }
	alias := func() string { return pick("", "", "addComment:", "viewer:", "node:", "z:", "y:", "x:") }
	field := func(kind string) string {
		switch {
		case kind == "query" && pick("v", "n") == "v":
			return alias() + "viewer(id:" + id() + ")" + directive()
		case kind == "query":
			return alias() + "node(ids:[" + pick(`"q"`, `"r" "q"`) + "])" + directive() + "{__typename}"
		case pick("a", "d") == "a":
			return alias() + "addComment(input:" + input(0) + ")" + directive() + "{__typename}"
		}
		return alias() + "deleteIssue(ids:[" + id() + "] input:" + input(0) + ")" + directive() + "{__typename}"
	}
	fragments := ""
	var selection func(kind string, depth int) string
	selection = func(kind string, depth int) string {
		text := "{"
		for range rapid.IntRange(1, 2).Draw(t, "n") {
			on := strings.ToUpper(kind[:1]) + kind[1:]
			switch n := rapid.IntRange(0, 5).Draw(t, "what"); {
			case n == 0 && depth < 3:
				text += " ... on " + on + directive() + selection(kind, depth+1)
			case n == 1 && depth < 3:
				name := fmt.Sprintf("F%d", strings.Count(fragments, "fragment"))
				fragments += " fragment " + name + " on " + on // reserves the number
				body := selection(kind, depth+1)
				fragments = strings.Replace(fragments, " fragment "+name+" on "+on, " fragment "+name+" on "+on+body, 1)
				text += " ..." + name + directive()
			default:
				text += " " + field(kind)
			}
		}
		return text + "}"
	}
	operation := func(name string) string {
		kind := pick("query", "mutation")
		return kind + " " + name + `($a:ID $d:ID="D1" $in:In={subjectId:"I1"})` + selection(kind, 0)
	}
	text := operation("A")
	if pick("one", "two") == "two" {
		text += " " + operation("B")
	}
	if pick("first", "last") == "first" {
		return fragments + "\n" + text
	}
	return text + "# mutation{x}\n" + fragments
}
