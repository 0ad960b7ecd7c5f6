package peers

import (
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A narrowing is what a line says of requests beyond their methods and paths. The zero value says nothing.
type narrowing struct {
	headers, query []policy.FieldRule
	graphql        *policy.GraphQLRule // of an allow
}

func (n narrowing) none() bool { return len(n.headers)+len(n.query) == 0 && n.graphql == nil }

func (n narrowing) same(other narrowing) bool { return n.String() == other.String() }

// String is the end of a line of a policy file: ", query: {\"v\": [\"1\"]}".
func (n narrowing) String() string {
	text := fieldRules("headers", n.headers) + fieldRules("query", n.query)
	if g := n.graphql; g != nil {
		var parts []string
		if g.AnyQuery {
			parts = append(parts, "query: any")
		} else if len(g.Query) > 0 {
			parts = append(parts, "query: "+quotedList(g.Query))
		}
		if len(g.Mutation) > 0 {
			parts = append(parts, "mutation: "+quotedList(g.Mutation))
		}
		text += ", graphql: {" + strings.Join(parts, ", ") + "}"
	}
	return text
}

func fieldRules(key string, all []policy.FieldRule) string {
	if len(all) == 0 {
		return ""
	}
	parts := make([]string, len(all))
	for i, f := range all {
		parts[i] = quoted(f.Name) + ": " + quotedList(f.Values)
	}
	return ", " + key + ": {" + strings.Join(parts, ", ") + "}"
}

func quotedList(all []string) string {
	parts := make([]string, len(all))
	for i, s := range all {
		parts[i] = quoted(s)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// field adds a condition on a header field. It reports whether egressd can say it.
func (n *narrowing) field(name string, values ...string) bool {
	name = strings.ToLower(name)
	return policy.CheckHeaderName(name) == nil && addField(&n.headers, name, values)
}

// parameter adds a condition on a parameter of the query. It reports whether egressd can say it.
func (n *narrowing) parameter(name string, values ...string) bool {
	return addField(&n.query, name, values)
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

func addField(all *[]policy.FieldRule, name string, values []string) bool {
	has := func(f policy.FieldRule) bool { return f.Name == name }
	if name == "" || len(name) > 256 || strings.ContainsFunc(name, isControl) || slices.ContainsFunc(*all, has) || slices.ContainsFunc(values, func(v string) bool { return len(v) > 1024 || strings.ContainsFunc(v, isControl) }) {
		return false
	}
	*all = append(*all, policy.FieldRule{Name: name, Values: values})
	slices.SortFunc(*all, func(a, b policy.FieldRule) int { return strings.Compare(a.Name, b.Name) })
	return true
}
