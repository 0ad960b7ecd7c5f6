package peers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// readOpenShell reads network_policies of an OpenShell policy. Its "*" is one label, "**" any number. Which program
// may reach a host, egressd's rules do not say (docs.nvidia.com/openshell, policies/schema, read 2026-11-28).
func readOpenShell(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	var all []*openShellEndpoint
	var middlewares *setting
	s := schema{
		"network_policies": {items: func(name, said string) (schema, func(*setting) error) {
			var binaries []string
			var endpoints []*openShellEndpoint
			s := schema{
				"endpoints": {items: openShellEndpoints(&endpoints)},
				"binaries": {items: func(string, string) (schema, func(*setting) error) {
					var path string
					return schema{"path": into(&path)}.known("harness"), func(*setting) error { binaries = append(binaries, path); return nil }
				}},
			}.known("name")
			return s, func(*setting) error {
				for _, e := range endpoints {
					e.said += " in " + name
					e.programs = binaries
				}
				all = append(all, endpoints...)
				return nil
			}
		}},
		"network_middlewares": into(&middlewares),
	}.known("version").aside("filesystem_policy landlock process inference")
	if err := r.take(top, s); err != nil {
		return err
	}
	for _, e := range all {
		if err := e.deny(r); err != nil {
			return err
		}
	}
	for _, e := range all {
		e.more = e.more || middlewares != nil && len(middlewares.members) > 0
		if err := e.allow(r); err != nil {
			return err
		}
	}
	return nil
}

// An openShellEndpoint is one endpoint of a policy.
type openShellEndpoint struct {
	said                                      string
	host, protocol, access, enforcement, path word
	port                                      uint16
	many                                      []uint16
	ports                                     []span
	rules, denies                             []*openShellMatch
	addresses                                 []word
	programs                                  []string
	more                                      bool // something may refuse requests that no rule of egressd names
}

func openShellEndpoints(found *[]*openShellEndpoint) items {
	return func(_, said string) (schema, func(*setting) error) {
		e := &openShellEndpoint{said: said}
		s := schema{
			"host": into(&e.host), "port": into(&e.port), "ports": into(&e.many), "protocol": into(&e.protocol), "access": into(&e.access),
			"enforcement": into(&e.enforcement), "allowed_ips": into(&e.addresses), "path": into(&e.path),
			"deny_rules": {items: openShellMatches(&e.denies)},
			"rules": {items: func(string, string) (schema, func(*setting) error) {
				m := &openShellMatch{}
				return schema{"allow": fields(m.schema())}, func(*setting) error { e.rules = append(e.rules, m); return nil }
			}},
		}.known(`tls allow_encoded_slash credential_binding request_body_credential_rewrite websocket_credential_rewrite
			allow_uninspected_credentials credential_signing signing_service signing_region`).
			narrows(&e.more, "persisted_queries graphql_persisted_queries graphql_max_body_bytes mcp json_rpc")
		return s, func(n *setting) error {
			*found = append(*found, e)
			return e.check(n)
		}
	}
}

func (e *openShellEndpoint) check(n *setting) error {
	if e.port != 0 {
		e.many = append(e.many, e.port)
	}
	if len(e.many) == 0 {
		return n.errorf("%s has no port and no ports", e.said)
	}
	for _, p := range e.many {
		e.ports = append(e.ports, port(p))
	}
	if e.host.at == nil && len(e.addresses) == 0 {
		return n.errorf("%s has no host and no allowed_ips", e.said)
	}
	if strings.Contains(e.host.text, "*") && strings.Count(e.host.text, ".") < 2 {
		return e.host.at.errorf("%q is refused by OpenShell: a wildcard has at least three labels", e.host.text)
	}
	e.more = e.more || !slices.Contains([]string{"", "**", "/**"}, e.path.text)
	e.said = fmt.Sprintf("%s:%d", e.host.text, e.many[0])
	if e.host.at == nil {
		e.said = e.addresses[0].text
	}
	for _, c := range []struct {
		w    word
		name string
		of   []string
	}{
		{e.protocol, "protocol", []string{"rest", "websocket", "graphql", "mcp", "json-rpc", "tcp", "sql"}},
		{e.access, "access", []string{"read-only", "read-write", "full"}}, {e.enforcement, "enforcement", []string{"enforce", "audit"}},
	} {
		if c.w.at == nil {
			continue
		}
		if err := choice(c.w.text, c.name, c.w.at, c.of...); err != nil {
			return err
		}
	}
	return nil
}

func (e *openShellEndpoint) hosts() (s scope, err error) {
	rest, deep := strings.CutPrefix(e.host.text, "**.")
	switch {
	case e.host.text == "":
		return just(everything), nil
	case deep:
		s, err = scopeOf("*."+rest, anyDepth)
	default:
		s, err = hostScope(e.host.text, oneLabel)
	}
	if err != nil {
		err = e.host.at.errorf("%w", err)
	}
	return s, err
}

// requests reports whether the endpoint's rules are about methods and paths of HTTP.
func (e *openShellEndpoint) requests() bool {
	return e.protocol.text == "" || e.protocol.text == "rest" || e.protocol.text == "websocket"
}

func (e *openShellEndpoint) deny(r *reading) error {
	s, err := e.hosts()
	if err != nil {
		return err
	}
	for _, d := range e.denies {
		c, whole := d.clause()
		if !e.requests() {
			c, whole = clause{}, false
		}
		if !whole {
			r.stricterf("%s: a deny is taken for all that its method, path and query hold", e.said)
		}
		c.ports = e.ports
		r.deny(e.said, s, c)
	}
	return nil
}

// controlPlane are ports that OpenShell blocks at endpoints with a name or an address.
var controlPlane = []uint16{2379, 2380, 6443, 10250, 10255}

func (e *openShellEndpoint) allow(r *reading) error {
	s, err := e.hosts()
	if err != nil {
		return err
	}
	anyProgram := func(path string) bool { return path == "/**" || path == "**" }
	if len(e.programs) == 0 {
		r.stricterf("%s is left out: no program may reach it", e.said)
		return nil
	}
	if !slices.ContainsFunc(e.programs, anyProgram) && !r.widens(e.said, "only "+strings.Join(e.programs, ", ")+" may reach it") {
		return nil
	}
	if e.more && !r.widens(e.said, "it has settings that no rule of egressd has") {
		return nil
	}
	if !strings.Contains(e.host.text, "*") {
		e.ports = slices.DeleteFunc(e.ports, func(s span) bool { return slices.Contains(controlPlane, s.first) })
		if len(e.ports) < len(e.many) {
			r.stricterf("%s: OpenShell blocks the ports of control planes", e.said)
		}
		if len(e.ports) == 0 {
			return nil
		}
	}
	if len(e.addresses) > 0 {
		if e.host.text == "" {
			r.stricterf("%s: by its addresses alone, and by no name", e.said)
			return r.prefixes(r.allow, e.addresses, clause{ports: e.ports})
		}
		if !r.widens(e.said, "its names may lead to allowed_ips alone") {
			return nil
		}
	}
	clauses, whole := e.ways()
	if e.enforcement.text != "enforce" && e.protocol.text != "" && e.protocol.text != "tcp" {
		r.stricterf("%s: its rules hold, which OpenShell only reports", e.said)
	}
	if e.protocol.text == "" && (e.access.text != "" || len(e.rules) > 0) {
		r.stricterf("%s: its rules hold, though it has no protocol", e.said)
	}
	if !whole {
		r.stricterf("%s: a rule is left out that says more than egressd can: methods, paths, exact values of a query, fields of GraphQL by name", e.said)
	}
	for _, c := range clauses {
		c.ports = e.ports
		r.allow(e.said, s, c)
	}
	return nil
}

// ways returns the clauses of what the endpoint allows. whole is false if one had to be left out.
func (e *openShellEndpoint) ways() (clauses []clause, whole bool) {
	if e.protocol.text == "tcp" {
		return []clause{{}}, true
	}
	whole = true
	switch {
	case e.access.text == "full":
		clauses = append(clauses, clause{paths: []string{"/**"}})
	case e.access.text != "" && e.protocol.text == "graphql":
		clauses = append(clauses, clause{only: narrowing{graphql: &policy.GraphQLRule{AnyQuery: true}}})
		whole = e.access.text == "read-only"
	case e.access.text != "" && !e.requests():
		whole = false
	case e.access.text == "read-only":
		clauses = append(clauses, clause{methods: readOnlyMethods})
	case e.access.text == "read-write":
		clauses = append(clauses, clause{methods: []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"}})
	}
	for _, rule := range e.rules {
		c, same := rule.clause()
		if e.protocol.text == "graphql" {
			c, same = rule.operation()
		} else {
			same = same && e.requests()
		}
		if whole = whole && same; same {
			clauses = append(clauses, c)
		}
	}
	if e.access.text == "" && len(e.rules) == 0 && e.protocol.text == "" {
		clauses = append(clauses, clause{})
	}
	return clauses, whole
}

// An openShellMatch is what a rule is about.
type openShellMatch struct {
	method, path, kind word
	fields             []word
	query              *setting
	more               bool
}

func (m *openShellMatch) schema() schema {
	return schema{"method": into(&m.method), "path": into(&m.path), "query": into(&m.query), "operation_type": into(&m.kind), "fields": into(&m.fields)}.
		narrows(&m.more, "operation_name tool params rpc_method command")
}

func openShellMatches(found *[]*openShellMatch) items {
	return func(string, string) (schema, func(*setting) error) {
		m := &openShellMatch{}
		return m.schema(), func(*setting) error { *found = append(*found, m); return nil }
	}
}

// operation turns a match of GraphQL into a clause: one operation, all of whose fields are listed. egressd cannot allow all
// mutations, nor subscriptions.
func (m *openShellMatch) operation() (c clause, whole bool) {
	g := &policy.GraphQLRule{}
	c.only.graphql = g
	var names []string
	for _, f := range m.fields {
		if policy.CheckGraphQLName(f.text) != nil {
			return c, false
		}
		names = append(names, f.text)
	}
	switch strings.ToLower(m.kind.text) {
	case "query":
		g.Query, g.AnyQuery = names, len(names) == 0
	case "mutation":
		g.Mutation = names
	}
	return c, !m.more && m.method.at == nil && m.path.at == nil && m.query == nil && (g.AnyQuery || len(g.Query)+len(g.Mutation) > 0)
}

// addQuery adds the match's conditions on parameters. It returns false if egressd's meet other requests, too: the "*" of
// egressd stands for any text, and that of OpenShell ends at a dot.
func (m *openShellMatch) addQuery(only *narrowing) (whole bool) {
	if m.query == nil {
		return true
	}
	if whole = m.query.kind == isMapping; !whole {
		return false
	}
	for _, p := range m.query.members {
		matchers := []*setting{p.value}
		if any := p.value.at("any"); any != nil {
			matchers = any.list
		}
		var values []string
		said := len(matchers) > 0
		for _, v := range matchers {
			said = said && v.kind == isText && !strings.ContainsAny(v.text, `?[]{}!\`)
			whole = whole && (v.text == "**" || !strings.Contains(v.text, "*"))
			values = append(values, strings.ReplaceAll(v.text, "**", "*"))
		}
		whole = said && only.parameter(p.key, values...) && whole
	}
	return whole
}

// clause turns a match into a clause. whole is false if the match says more than egressd can.
func (m *openShellMatch) clause() (c clause, whole bool) {
	whole = m.addQuery(&c.only)
	whole = whole && !m.more && m.kind.at == nil && len(m.fields) == 0
	if method := strings.ToUpper(m.method.text); method != "" && method != "*" {
		if c.methods = []string{method}; strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			c.methods, whole = nil, false
		}
	}
	if text := m.path.text; text != "" && text != "/**" && text != "**" {
		pattern := openShellPath(text)
		if whole = whole && pattern != ""; pattern != "" {
			c.paths = []string{pattern}
		}
	}
	if !c.conditional() {
		c.paths = []string{"/**"}
	}
	return c, whole
}

// openShellPath is the pattern of egressd for a glob of which "/**" at the end needs the slash.
func openShellPath(text string) string {
	base, deep := strings.CutSuffix(text, "/**")
	if strings.Contains(base, "**") || strings.ContainsAny(base, `[]{}!\?`) {
		return ""
	}
	if deep {
		text = base + "/*/**"
	}
	if _, err := policy.ParsePathPattern(text); err != nil {
		return ""
	}
	return text
}
