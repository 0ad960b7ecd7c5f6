package file

import (
	"slices"
	"strings"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// setFields reads header fields, in the order in which they are written.
func (r *reader) setFields(what string, into *[]policy.SetField) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
			r.fail(n, "%s is no mapping of header fields; write {OpenAI-Organization: org-example} or the like", what)
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			var f policy.SetField
			r.checked(what, &f.Name, problemOfSetName)(n.Content[i])
			r.checked(what+"."+n.Content[i].Value, &f.Value, problemOfSetValue)(n.Content[i+1])
			if slices.ContainsFunc(*into, func(o policy.SetField) bool { return strings.EqualFold(o.Name, f.Name) }) {
				r.fail(n.Content[i], "%s has %s twice; keep one", what, f.Name)
			}
			*into = append(*into, f)
		}
	}
}

func problemOfSetName(name string) string {
	if credentials.KnownField(name) {
		return "cannot be " + name + ", which carries credentials; write them under credentials, out of the policy"
	}
	return problemOfHeader(name)
}

func problemOfSetValue(value string) string {
	if len(value) > 1024 || !printableASCII(value) || strings.TrimSpace(value) != value {
		return "is not 1 to 1024 printable ASCII characters without spaces around them"
	}
	return ""
}

// shareSetFields gives each rule under "allow" that names a host exactly all that is set for it. So no such rule lets a tunnel
// to the host pass unread.
func (r *reader) shareSetFields(f *File) {
	by := map[string][]policy.SetField{}
	for i := range f.Allow {
		rule := &f.Allow[i]
		if len(rule.Set) == 0 {
			continue
		}
		host := rule.Pattern.Host()
		for _, field := range rule.Set {
			at := slices.IndexFunc(by[host], func(o policy.SetField) bool { return strings.EqualFold(o.Name, field.Name) })
			switch {
			case at < 0:
				by[host] = append(by[host], field)
			case by[host][at].Value != field.Value:
				r.failAt(rule.At, "%s sets %s of requests to %s, and another rule sets it to something else; a field is the same for all requests to a host", rule.ID, field.Name, host)
			}
		}
	}
	for i := range f.Allow {
		if rule := &f.Allow[i]; rule.Pattern != (policy.Pattern{}) && rule.Pattern.OneHost() && by[rule.Pattern.Host()] != nil {
			if rule.AnyProtocol || rule.ECH {
				r.failAt(rule.At, "%s has tls or ech, which let pass what cannot be seen, and another rule sets fields of requests to its host; remove one", rule.ID)
			}
			rule.Set = by[rule.Pattern.Host()]
		}
	}
}
