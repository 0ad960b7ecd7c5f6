package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/githubapi"
	"github.com/egressd/egressd/internal/graphql"
	"github.com/egressd/egressd/internal/strictjson"
)

// A GraphQLRule is met by requests of GraphQL that ask for nothing else at the root than what it lists. All operations of a
// document count, whichever the request names, and all their fields, whatever @skip and @include say.
type GraphQLRule struct {
	AnyQuery bool     // any field of a query
	Query    []string // fields of queries
	Mutation []string // fields of mutations; one of those in [GraphQLMutations], if there are Repos

	// Repos are repositories of GitHub, as in [GitRule]. A mutation may then name only nodes of these repositories. Queries
	// may read others.
	Repos []string
}

// GraphQLDate is when [GraphQLMutations] were compared with GitHub's public schema.
const GraphQLDate = githubapi.Date

// GraphQLMutations are the mutations of GitHub whose inputs egressd knows.
func GraphQLMutations() []string { return githubapi.MutationNames() }

// GraphQLMutationsOf are those of some groups of the preset github.
func GraphQLMutationsOf(groups ...string) []string { return githubapi.MutationsOf(groups...) }

// GraphQLReads are the fields at the root of GitHub's queries.
func GraphQLReads() []string { return githubapi.Reads() }

// CheckGraphQLName returns an error for text that is not the name of a field.
func CheckGraphQLName(text string) error {
	if text == "" || len(text) > 128 || strings.ContainsFunc(text, func(c rune) bool {
		return c > 0x7f || c != '_' && (!Unreserved(byte(c)) || strings.ContainsRune("-.~", c))
	}) {
		return fmt.Errorf("%q is not the name of a field; write it like createPullRequest", text)
	}
	return nil
}

// A Node is what a server said of a node id of GraphQL. The zero value is one that it does not know.
type Node = githubapi.Node

// A nodeID is a node id in a mutation.
type nodeID struct {
	text   string
	person bool // it may be a user or a team
}

// UnknownNodes returns the node ids in the body that a rule has to know more of. The text is the sandbox's.
func (h *HTTPRequest) UnknownNodes() (ids []string) {
	if h.Body == nil {
		return nil
	}
	h.Body.mu.Lock()
	defer h.Body.mu.Unlock()
	for _, id := range h.Body.nodes {
		if _, known := h.Nodes[id]; !known {
			ids = append(ids, id)
		}
	}
	return ids
}

func (g *GraphQLRule) words() string {
	var parts []string
	switch {
	case g.AnyQuery:
		parts = append(parts, "queries anything")
	case len(g.Query) > 0:
		parts = append(parts, "queries "+strings.Join(g.Query, ", "))
	}
	if len(g.Mutation) > 0 {
		parts = append(parts, "changes by "+strings.Join(g.Mutation, ", "))
	}
	words := "GraphQL " + strings.Join(parts, " and ")
	if len(g.Repos) > 0 {
		words += " in " + strings.Join(g.Repos, " or ")
	}
	return words
}

// requirement is met by a request that asks for nothing else.
func (g *GraphQLRule) requirement() *requirement {
	m := ofBody(g.words(), g.judge)
	m.needs |= NeedsMethod | NeedsQuery | NeedsHeaders
	m.class, m.what, m.asks = GraphQLDenied, "this GraphQL request", len(g.Repos) > 0
	m.match = func(h *HTTPRequest) fit { return g.whole(h, m.answer).fit }
	m.problem = func(h *HTTPRequest) string { return g.whole(h, m.answer).problem }
	return m
}

// whole judges a request by its head, its body, and what the server said of the node ids in it.
func (g *GraphQLRule) whole(h *HTTPRequest, ofBody func(*HTTPRequest) bodyAnswer) bodyAnswer {
	switch {
	case h.Method != "POST" || h.Upgrade:
		return bodyAnswer{fit: no, problem: "it is no POST"}
	case h.Query != "":
		return bodyAnswer{fit: no, problem: "it has a query in its URL, which servers may take for the document"}
	}
	a := ofBody(h)
	for _, id := range a.ids {
		node, known := h.Nodes[id.text]
		switch {
		case !known:
			return bodyAnswer{fit: unread}
		case node.Repo != "" && matchesRepo(g.Repos, node.Repo):
			h.Body.say("graphql in " + node.Repo)
		case node.Repo != "":
			return bodyAnswer{fit: no, problem: "a node id of it belongs to another repository"}
		case !id.person || !node.Person:
			return bodyAnswer{fit: no, problem: "a node id of it belongs to no repository that the server names"}
		}
	}
	return a
}

// judge reads all operations of the document.
func (g *GraphQLRule) judge(h *HTTPRequest) bodyAnswer {
	content, problem := h.JSONContent()
	if problem != "" {
		return bodyAnswer{fit: unclear, problem: problem}
	}
	document, variables, problem := readGraphQL(content)
	if problem != "" {
		return bodyAnswer{fit: unclear, problem: problem}
	}
	operations, err := graphql.Parse(document, variables)
	if err != nil {
		return bodyAnswer{fit: unclear, problem: err.Error()}
	}
	a := bodyAnswer{fit: yes}
	for _, o := range operations {
		a.says = append(a.says, sayOperation(&o))
		for i := range o.Fields {
			if problem := g.refuses(o.Kind, &o.Fields[i], &a); problem != "" && a.problem == "" {
				a.fit, a.problem = no, problem
			}
		}
	}
	switch {
	case a.problem != "":
		a.ids = nil
	case len(a.ids) > githubapi.MaxIDs:
		return bodyAnswer{fit: no, says: a.says, problem: fmt.Sprintf("it has more than %d node ids", githubapi.MaxIDs)}
	}
	return a
}

// sayOperation names an operation for the record.
func sayOperation(o *graphql.Operation) string {
	names := make([]string, len(o.Fields))
	for i, f := range o.Fields {
		names[i] = f.Name
	}
	return "graphql " + o.Kind + " " + strings.Join(slices.Compact(names), ", ")
}

// refuses returns why a field at the root may not pass, or "". It adds the node ids of a mutation to a.
func (g *GraphQLRule) refuses(kind string, f *graphql.RootField, a *bodyAnswer) string {
	switch {
	case f.Name == "__typename" && kind != "subscription":
		return ""
	case kind == "query" && (g.AnyQuery || slices.Contains(g.Query, f.Name)):
		return ""
	case kind != "mutation" || !slices.Contains(g.Mutation, f.Name):
		return "the " + kind + sayable(f.Name) + " is not among what it lists"
	case len(g.Repos) == 0:
		return ""
	}
	m := githubapi.MutationNamed(f.Name)
	if m == nil || len(f.Arguments) != 1 || f.Arguments[0].Name != "input" || f.Arguments[0].Value.Kind != graphql.Object {
		return "the mutation" + sayable(f.Name) + " has not the one input that egressd knows"
	}
	for _, member := range f.Arguments[0].Value.Members {
		var ok bool
		switch {
		case slices.Contains(m.IDs, member.Name):
			ok = a.addIDs(&member.Value, false)
		case slices.Contains(m.People, member.Name):
			ok = a.addIDs(&member.Value, true)
		case slices.Contains(m.Logins, member.Name):
			ok = areLogins(&member.Value)
		case slices.Contains(m.Plain, member.Name):
			ok = isPlain(&member.Value)
		default:
			allowed, known := m.Objects[member.Name]
			ok = known && ofPlain(&member.Value, allowed)
		}
		if !ok {
			return "the input of" + sayable(f.Name) + " has" + sayable(member.Name) + " in a form that egressd does not know"
		}
	}
	return ""
}

// addIDs adds the node ids of a value: one, or a list of them. It returns false for anything else.
func (a *bodyAnswer) addIDs(v *graphql.Value, person bool) bool {
	switch {
	case v.Kind == graphql.Null:
		return true
	case v.Kind == graphql.List:
		for i := range v.Items {
			if v.Items[i].Kind == graphql.List || !a.addIDs(&v.Items[i], person) {
				return false
			}
		}
		return true
	case v.Kind == graphql.Text && githubapi.CheckID(v.Text):
		a.ids = append(a.ids, nodeID{v.Text, person})
		return true
	}
	return false
}

// areLogins reports whether a value is the login of a person, or a list of them.
func areLogins(v *graphql.Value) bool {
	for i := range v.Items {
		if v.Items[i].Kind == graphql.List || !areLogins(&v.Items[i]) {
			return false
		}
	}
	return v.Kind == graphql.Null || v.Kind == graphql.List || v.Kind == graphql.Text && githubapi.CheckLogin(v.Text)
}

func isPlain(v *graphql.Value) bool { return v.Kind != graphql.Object && v.Kind != graphql.List }

// ofPlain reports whether a value is plain, or an object with these plain members, or a list of such values.
func ofPlain(v *graphql.Value, names []string) bool {
	for i := range v.Items {
		if v.Items[i].Kind == graphql.List || !ofPlain(&v.Items[i], names) {
			return false
		}
	}
	return !slices.ContainsFunc(v.Members, func(m graphql.Member) bool { return !slices.Contains(names, m.Name) || !isPlain(&m.Value) })
}

// readGraphQL reads a body. Extensions, by which servers take a document that they have stored, are refused, as is every
// member besides those of the specification, and a list of requests.
func readGraphQL(content []byte) (document string, variables map[string]graphql.Value, problem string) {
	var b graphqlBody
	if err := strictjson.Walk(content, b.read); err != nil {
		return "", nil, err.Error()
	}
	switch {
	case b.problem != "":
		return "", nil, b.problem
	case !b.isDocument:
		return "", nil, "it has no query"
	}
	variables = map[string]graphql.Value{}
	for _, m := range b.variables.Members {
		variables[m.Name] = m.Value
	}
	return b.document, variables, ""
}

// A graphqlBody collects the members of a body.
type graphqlBody struct {
	document   string
	isDocument bool
	variables  graphql.Value
	open       []*graphql.Value // the objects and lists around the value to come, from variables on
	values     int
	problem    string
}

func (b *graphqlBody) read(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
	switch {
	case b.problem != "":
	case len(at) == 0:
		if kind != '{' {
			b.problem = "it is no object; lists of requests are refused"
		}
	case at[0].Name == "variables":
		b.variable(at, kind, raw)
	case at[0].Name == "query" && kind == '"':
		b.document, b.isDocument = strictjson.Text(raw), true
	case at[0].Name == "operationName" && (kind == '"' || kind == 'n'):
	default:
		b.problem = "it has a member other than query, variables and operationName"
	}
}

// variable adds a value to those of variables.
func (b *graphqlBody) variable(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
	b.values++
	switch {
	case len(at) == 1 && kind == 'n':
		return
	case len(at) == 1 && kind != '{':
		b.problem = "its variables are no object"
		return
	case b.values > graphql.MaxValues:
		b.problem = graphql.ErrLong.Error()
		return
	}
	var v graphql.Value
	switch kind {
	case '{':
		v.Kind = graphql.Object
	case '[':
		v.Kind = graphql.List
	case '"':
		v.Kind, v.Text = graphql.Text, strictjson.Text(raw)
	case '0':
		v.Kind, v.Text = graphql.Number, string(raw)
	case 't', 'f':
		v.Kind, v.Text = graphql.Word, string(raw)
	}
	if len(at) == 1 {
		b.variables, b.open = v, []*graphql.Value{&b.variables}
		return
	}
	in := b.open[len(at)-2]
	var place *graphql.Value
	if step := at[len(at)-1]; in.Kind == graphql.Object {
		in.Members = append(in.Members, graphql.Member{Name: step.Name, Value: v})
		place = &in.Members[len(in.Members)-1].Value
	} else {
		in.Items = append(in.Items, v)
		place = &in.Items[len(in.Items)-1]
	}
	b.open = append(b.open[:len(at)-1], place)
}
