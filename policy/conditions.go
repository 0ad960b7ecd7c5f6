package policy

import (
	"net/url"
	"slices"
	"strings"
)

// conditions are what a rule asks of a request besides its destination. A request has to meet them all.
type conditions struct {
	methods []string // with HEAD where GET is
	paths   []PathPattern
	further []*requirement
	ofAllow bool // what servers could read in two ways does not meet the conditions of an allow, and meets those of others
}

func (r *Rule) conditions(effect Verdict) conditions {
	c := conditions{methods: r.Methods, paths: r.Paths, further: r.requirements(), ofAllow: effect == Allow}
	if slices.Contains(r.Methods, "GET") && !slices.Contains(r.Methods, "HEAD") {
		c.methods = append(slices.Clone(r.Methods), "HEAD")
	}
	if r.PathsFold {
		c.paths = make([]PathPattern, len(r.Paths))
		for i, p := range r.Paths {
			c.paths[i] = p.Folded()
		}
	}
	return c
}

// requirements are those of the rule's conditions on more than method and path.
func (r *Rule) requirements() (all []*requirement) {
	for _, f := range r.Headers {
		all = append(all, f.header())
	}
	for _, f := range r.Query {
		all = append(all, f.query())
	}
	if r.QueryOnly {
		all = append(all, queryOnly(r.Query))
	}
	for _, f := range r.JSON {
		all = append(all, f.requirement())
	}
	if r.MCP != nil {
		all = append(all, r.MCP.requirement())
	}
	if r.Model != nil {
		all = append(all, r.Model.requirement(len(r.Paths) > 0))
	}
	if r.GraphQL != nil {
		all = append(all, r.GraphQL.requirement())
	}
	if r.Git != nil {
		all = append(all, r.Git.requirement())
	}
	if r.LFS != nil {
		all = append(all, r.LFS.requirement())
	}
	return all
}

// needs says what has to be seen of a request.
func (c *conditions) needs() (n Needs) {
	if len(c.methods) > 0 {
		n |= NeedsMethod
	}
	if len(c.paths) > 0 {
		n |= NeedsPath
	}
	for _, m := range c.further {
		n |= m.needs
	}
	return n
}

// conditional reports whether there is any condition.
func (c *conditions) conditional() bool { return c.needs() != 0 }

func (c *conditions) holds(request *HTTPRequest) bool {
	return c.holdsMethodOf(request) && c.holdsPath(request.Path) && c.missing(request) == nil
}

// missing returns the first condition beyond method and path that keeps a request out, or nil.
func (c *conditions) missing(request *HTTPRequest) *requirement {
	if request.Own && c.ofAllow && slices.ContainsFunc(c.further, func(m *requirement) bool { return m.asks }) {
		return nil // another request has met the other conditions, and egressd wrote this one
	}
	for _, m := range c.further {
		if a := m.ask(request); a == no || a != yes && c.ofAllow {
			return m
		}
	}
	return nil
}

// near reports whether the request is about a repository of the conditions.
func (c *conditions) near(request *HTTPRequest) bool {
	return slices.ContainsFunc(c.further, func(m *requirement) bool { return m.near != nil && m.near(request) })
}

// awaits returns the needs that keep the conditions from being decided before more of the body is read, or more is known of
// what is in it. It returns 0 if that changes nothing.
func (c *conditions) awaits(request *HTTPRequest) (n Needs) {
	whole := !request.Unread()
	if whole && request.Body == nil || !c.holdsMethodOf(request) || !c.holdsPath(request.Path) {
		return 0
	}
	for _, m := range c.further {
		switch a := m.ask(request); {
		case a == unread && whole:
			n |= NeedsNodes
		case a == unread:
			n |= m.needs & needsOfBody
		case a == no, a == unclear && c.ofAllow:
			return 0
		}
	}
	return n
}

// work is the most that [conditions.holds] compares: bytes of the path, times patterns, of the query and of the body.
func (c *conditions) work(request *HTTPRequest) int {
	n := min(len(request.Path), pathMost)*len(c.paths) + len(request.Query)*len(c.further)
	if request.Body != nil {
		for _, m := range c.further {
			if m.needs.ReadsBody() {
				n += len(request.Body.Content)
			}
		}
	}
	return n
}

// holdsMethodOf is holdsMethod for a request that may ask a server to take another method for its own.
func (c *conditions) holdsMethodOf(request *HTTPRequest) bool {
	if len(c.methods) > 0 && request.overridesMethod() {
		return !c.ofAllow
	}
	return c.holdsMethod(request.Method)
}

// overridesMethod reports whether the request has a field or a parameter by which many frameworks replace its method. Servers may
// take "_" in the name of a field for "-". Google takes $httpMethod, Symfony and others _method. Of a request that was sent,
// ReplacesMethod tells of the field, and egressd check puts it into Header.
func (h *HTTPRequest) overridesMethod() bool {
	for name := range h.Header {
		switch strings.ReplaceAll(name, "_", "-") {
		case "x-http-method-override", "x-http-method", "x-method-override":
			return true
		}
	}
	return h.ReplacesMethod || h.hasParameter("$httpMethod", "_method")
}

// hasParameter reports whether the query has a parameter that some server takes for one of names.
func (h *HTTPRequest) hasParameter(names ...string) bool {
	for part := range strings.FieldsFuncSeq(h.Query, func(c rune) bool { return c == '&' || c == ';' }) {
		written, _, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(written)
		if err == nil && slices.ContainsFunc(names, func(one string) bool { return strings.EqualFold(one, name) }) {
			return true
		}
	}
	return false
}

// holdsMethod lets only an exact method through, and stops one that a lenient server could take for the one that is named.
func (c *conditions) holdsMethod(method string) bool {
	if len(c.methods) == 0 || slices.Contains(c.methods, method) {
		return true
	}
	folded := func(m string) bool { return strings.EqualFold(m, method) }
	return !c.ofAllow && slices.ContainsFunc(c.methods, folded)
}

// holdsPath takes a path that can be read in two ways for the worse of them.
func (c *conditions) holdsPath(path string) bool {
	if len(c.paths) == 0 {
		return true
	}
	under := func(p PathPattern) bool { return p.Match(path) }
	matches := len(path) <= pathMost && slices.ContainsFunc(c.paths, under)
	if c.ofAllow {
		return matches && canonicalPath(path) == nil
	}
	return matches || canonicalPath(path) != nil
}

// words says what is asked of a request: "method is GET or HEAD".
func (c *conditions) words() string {
	var parts []string
	if len(c.methods) > 0 {
		parts = append(parts, "method is "+strings.Join(c.methods, " or "))
	}
	if len(c.paths) > 0 {
		texts := make([]string, len(c.paths))
		for i, p := range c.paths {
			texts[i] = p.text
		}
		parts = append(parts, "path matches "+strings.Join(texts, " or "))
	}
	for _, m := range c.further {
		parts = append(parts, m.words)
	}
	return strings.Join(parts, " and ")
}
