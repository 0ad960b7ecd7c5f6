package policy

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// A requirement is a condition of a rule on more than the method and path of a request.
type requirement struct {
	// words say what is asked, for a person. Two requirements that ask the same have the same words.
	words string
	needs Needs
	match func(*HTTPRequest) fit

	near func(*HTTPRequest) bool       // of git: the request is about a repository of the rule
	says func(*HTTPRequest) gitRefusal // of git: what the rule does not let

	class Class // of a request that lacks it, and what that is called; else they follow from needs
	what  string

	answer func(*HTTPRequest) bodyAnswer // of what reads bodies; made by ofBody

	asks bool // of GraphQL: egressd asks the server about what a request names

	problem func(*HTTPRequest) string // why the fit is unclear, if that is not plain from words; or nil
}

// A fit says whether a request meets a condition.
type fit uint8

const (
	no      fit = iota
	yes         // it does, however servers read it
	unclear     // servers may read the request in two ways: it meets the conditions of a deny or an ask, and not those of an allow
	unread      // more of the body has to be read first; only of a request that is [HTTPRequest.Unread]
)

// ask returns the fit of a request. For a request that stands for many, the fit is assumed.
func (m *requirement) ask(h *HTTPRequest) fit {
	if h.assumed != nil {
		return h.assumed[m.words]
	}
	return m.match(h)
}

// refuse fills in the class of a request that lacks what m asks, and returns what of the request is not allowed.
func (m *requirement) refuse(h *HTTPRequest, d *Decision) (what string) {
	switch {
	case m.says != nil:
		refused := m.says(h)
		d.Class, d.Ref = GitDenied, refused.ref
		return refused.what
	case m.class != "":
		d.Class = m.class
		return m.what
	case m.needs == NeedsQuery:
		d.Class = QueryDenied
		return "this query"
	case m.needs == NeedsBody:
		d.Class = BodyDenied
		return "this body"
	}
	d.Class = HeaderDenied
	return "these header fields"
}

// why says in a reason what m.words do not say of a request that lacks it, or nothing.
func (m *requirement) why(h *HTTPRequest) string {
	if m.problem == nil || m.problem(h) == "" {
		return ""
	}
	return ", since " + m.problem(h)
}

// A FieldRule is a condition on one field of a request's head, or on one parameter of its query.
type FieldRule struct {
	Name   string   // of a field in lower case
	Values []string // of which one has to match; "*" stands for any run of bytes
}

func (f FieldRule) words(of string) string {
	return of + " " + f.Name + " is " + strings.Join(f.Values, " or ")
}

func (f FieldRule) matches(value string) bool {
	return slices.ContainsFunc(f.Values, func(pattern string) bool { return matchSegment(pattern, value) })
}

// CheckHeaderName returns an error for a field that no rule can compare: its name is in no form that requests have, or
// egressd writes the field itself.
func CheckHeaderName(name string) error {
	switch {
	case name == "" || len(name) > 64 || strings.ContainsFunc(name, func(c rune) bool { return c > 0x7f || c != '-' && c != '_' && !Unreserved(byte(c)) }):
		return fmt.Errorf("%q is not the name of a header field; write it like content-type", name)
	case name != strings.ToLower(name):
		return fmt.Errorf("%q has upper case, and names of fields have none here; write %q", name, strings.ToLower(name))
	case slices.Contains([]string{"host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect"}, name), strings.HasPrefix(name, "proxy-"):
		return fmt.Errorf("egressd writes %s itself, so no rule can compare it; leave it out", name)
	}
	return nil
}

// header is met by exactly one field of that name, with one of the values.
func (f FieldRule) header() *requirement {
	return &requirement{words: f.words("header"), needs: NeedsHeaders, match: func(h *HTTPRequest) fit {
		switch values := h.Header[f.Name]; {
		case len(values) == 0:
			return no
		case len(values) > 1:
			return unclear
		case f.matches(values[0]):
			return yes
		}
		return no
	}}
}

// query is met by exactly one parameter of that name, with one of the values.
func (f FieldRule) query() *requirement {
	return &requirement{words: f.words("query"), needs: NeedsQuery, match: func(h *HTTPRequest) fit {
		parameters, err := parseQuery(h.Query)
		values := parameters[f.Name]
		switch {
		case err != nil, len(values) > 1:
			return unclear
		case len(values) == 1 && f.matches(values[0]):
			return yes
		}
		return no
	}}
}

// queryOnly is met by a query without other parameters than those of some rules.
func queryOnly(rules []FieldRule) *requirement {
	var names []string
	for _, f := range rules {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	words := "query has only " + strings.Join(names, ", ")
	if len(names) == 0 {
		words = "there is no query"
	}
	return &requirement{words: words, needs: NeedsQuery, match: func(h *HTTPRequest) fit {
		parameters, err := parseQuery(h.Query)
		if err != nil {
			return unclear
		}
		for name := range parameters {
			if !slices.Contains(names, name) {
				return no
			}
		}
		return yes
	}}
}

// errQuery is a query that servers read in different ways.
var errQuery = errors.New("has ; or an escape that servers read in different ways")

// parseQuery decodes a query once. Servers differ in whether ";" separates parameters, in what they make of an escape that is
// none, and in what follows a NUL.
func parseQuery(query string) (map[string][]string, error) {
	if query == "" {
		return nil, nil
	}
	parameters := make(map[string][]string)
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil || strings.Contains(pair, ";") || strings.ContainsRune(name+value, 0) {
			return nil, errQuery
		}
		if pair != "" {
			parameters[name] = append(parameters[name], value)
		}
	}
	return parameters, nil
}
