package peers

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/policy"
)

// readOpenShell reads network_policies of an OpenShell policy. Its "*" is one label, "**" any number. Which program
// may reach a host, egressd's rules do not say.
func readOpenShell(r *reading, text []byte) error {
	var policies map[string]object
	var version int
	top, err := settings(text, parseYAML, map[string]any{"network_policies": &policies, "version": &version})
	if err != nil {
		return err
	}
	r.left(top.keys("")...)
	var all []openShellEndpoint
	for _, key := range sortedKeys(policies) {
		var name string
		var endpoints []object
		var binaries []struct{ Path string }
		if err := policies[key].takeAll(map[string]any{"name": &name, "endpoints": &endpoints, "binaries": &binaries}); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if _, err := policies[key].only(key + "."); err != nil {
			return err
		}
		anyProgram := len(binaries) > 0
		for _, b := range binaries {
			anyProgram = anyProgram && (b.Path == "/**" || b.Path == "**")
		}
		for i, o := range endpoints {
			e, err := openShellEndpointOf(fmt.Sprintf("%s, endpoint %d", key, i+1), o)
			if err != nil {
				return err
			}
			e.anyProgram = anyProgram
			all = append(all, e)
		}
	}
	for _, e := range all {
		if err := e.deny(r); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := e.allow(r); err != nil {
			return err
		}
	}
	return nil
}

// An openShellEndpoint is one endpoint of a policy. Keys that it does not have make it narrower than egressd can say.
type openShellEndpoint struct {
	said                      string
	host, protocol, access    string
	ports                     []span
	rules                     []struct{ Allow openShellMatch }
	denies                    []openShellMatch
	addresses                 []string
	anyProgram, more, audited bool
}

type openShellMatch map[string]any

func openShellEndpointOf(said string, o object) (e openShellEndpoint, err error) {
	var one uint16
	var many []uint16
	var tls, enforcement, path string
	e.said = said
	if err := o.takeAll(map[string]any{
		"host": &e.host, "port": &one, "ports": &many, "protocol": &e.protocol, "tls": &tls, "enforcement": &enforcement, "access": &e.access,
		"rules": &e.rules, "deny_rules": &e.denies, "allowed_ips": &e.addresses, "path": &path,
	}); err != nil {
		return e, fmt.Errorf("%s: %w", said, err)
	}
	e.more = path != "" || len(o) > 0
	e.audited = enforcement != "enforce"
	if one != 0 {
		many = append(many, one)
	}
	if len(many) == 0 {
		many = []uint16{443}
	}
	for _, n := range many {
		if n == 0 {
			return e, fmt.Errorf("%s: a port is 0", said)
		}
		e.ports = append(e.ports, port(n))
	}
	return e, nil
}

func (e *openShellEndpoint) hosts() (scope, error) {
	if e.host == "" {
		return just(everything), nil
	}
	if rest, ok := strings.CutPrefix(e.host, "**."); ok {
		return scopeOf("*."+rest, anyDepth)
	}
	if e.host == "**" {
		return just(everything), nil
	}
	return hostScope(e.host, oneLabel)
}

func (e *openShellEndpoint) deny(r *reading) error {
	s, err := e.hosts()
	if err != nil {
		return fmt.Errorf("%s: %w", e.said, err)
	}
	for _, d := range e.denies {
		c, whole := d.clause()
		if !whole {
			r.stricterf("%s: a deny is taken for all that its method and path hold", e.said)
		}
		c.ports = e.ports
		r.deny(e.said, s, c)
	}
	return nil
}

func (e *openShellEndpoint) allow(r *reading) error {
	s, err := e.hosts()
	if err != nil {
		return fmt.Errorf("%s: %w", e.said, err)
	}
	if !e.anyProgram && !r.widens(e.said, "only some programs may reach it") {
		return nil
	}
	if e.more && !r.widens(e.said, "it has settings that no rule of egressd has") {
		return nil
	}
	if len(e.addresses) > 0 {
		if e.host == "" {
			r.stricterf("%s: by its addresses alone, and by no name", e.said)
			return r.prefixes(true, e.addresses, clause{ports: e.ports})
		}
		if !r.widens(e.said, "its names may lead to allowed_ips alone") {
			return nil
		}
	}
	clauses, whole := e.ways()
	if e.audited && e.protocol != "" {
		r.stricterf("%s: its rules hold, which OpenShell only reports", e.said)
	}
	if !whole {
		r.stricterf("%s: a rule is left out that says more than a method and a path", e.said)
	}
	for _, c := range clauses {
		c.ports = e.ports
		r.allow(e.said, s, c)
	}
	return nil
}

// ways returns the clauses of what the endpoint allows. whole is false if one had to be left out.
func (e *openShellEndpoint) ways() (clauses []clause, whole bool) {
	whole = true
	switch e.access {
	case "read-only":
		clauses = append(clauses, clause{methods: readOnlyMethods})
	case "read-write":
		clauses = append(clauses, clause{methods: []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"}})
	case "full":
		clauses = append(clauses, clause{paths: []string{"/**"}})
	}
	for _, rule := range e.rules {
		c, same := rule.Allow.clause()
		if whole = whole && same; same {
			clauses = append(clauses, c)
		}
	}
	if e.access == "" && len(e.rules) == 0 && e.protocol == "" {
		clauses = append(clauses, clause{})
	}
	return clauses, whole
}

// clause turns a match into a clause. whole is false if the match says more than a method and a path.
func (m openShellMatch) clause() (c clause, whole bool) {
	whole = true
	for key, value := range m {
		text, isText := value.(string)
		switch {
		case key == "method" && isText && text != "*":
			c.methods = []string{strings.ToUpper(text)}
		case key == "path" && isText && text != "/**" && text != "**":
			pattern := openShellPath(text)
			if whole = whole && pattern != ""; pattern != "" {
				c.paths = []string{pattern}
			}
		case key != "method" && key != "path" || !isText:
			whole = false
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
