package file

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

func (r *reader) rules(list string, into *[]policy.Rule, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		items := r.items(n, list)
		*into = make([]policy.Rule, len(items))
		for i, item := range items {
			rule := &(*into)[i]
			*rule = policy.Rule{ID: fmt.Sprintf("%s[%d]", list, i), At: placeOf(item)}
			if i > 0 && r.isPortOf(items[i-1], item, rule.ID) {
				continue
			}
			r.rule(item, rule, list, effect)
		}
	}
}

func (r *reader) rule(n *yaml.Node, rule *policy.Rule, list string, effect policy.Verdict) {
	what := rule.ID
	if n.Kind != yaml.MappingNode {
		r.pattern(what, &rule.Pattern)(n)
		return
	}
	if r.spellsHost(n, what) {
		return
	}
	r.mapping(n, what, r.conditions(what, rule, effect, fields{
		"host":         r.pattern(what+".host", &rule.Pattern),
		"reason":       r.checked(what+".reason", &rule.Reason, problemOfReason),
		"id":           r.id(what+".id", rule),
		"tls":          r.loosening(list, what+".tls", r.option(what+".tls", "any", &rule.AnyProtocol, effect)),
		"ech":          r.loosening(list, what+".ech", r.option(what+".ech", "allow", &rule.ECH, effect)),
		"upgrade":      r.loosening(list, what+".upgrade", r.allowOnly(list, what+".upgrade", r.option(what+".upgrade", "websocket", &rule.Upgrade, effect))),
		"max_bytes_up": r.maxBytesUp(what+".max_bytes_up", &rule.MaxBytesUp, effect),

		"set":    r.loosening(list, what+".set", r.allowOnly(list, what+".set", r.setFields(what+".set", &rule.Set))),
		"inject": r.loosening(list, what+".inject", r.allowOnly(list, what+".inject", r.inject(what+".inject", &rule.Inject))),
	}))
	if !hasKey(n, "host") {
		r.fail(n, "%s has no host; add \"host: example.com\" or the like", what)
	}
	if (rule.AnyProtocol || rule.ECH) && (rule.Conditional() || rule.Inject != nil || len(rule.Set) > 0) {
		r.fail(n, "%s has %s, which needs requests that can be seen, and tls or ech, which let pass what cannot be; remove one", what, strings.Join(inspectionKeys(rule), " and "))
	}
	if rule.Inject != nil {
		r.checkInjectHost(n, what, rule.Pattern)
	}
	if len(rule.Set) > 0 && rule.Pattern != (policy.Pattern{}) && !rule.Pattern.OneHost() {
		r.fail(n, "%s: fields are set for one host, and %s is more; write a rule for each host", what, rule.Pattern)
	}
}

// maxBytesUp reads how many bytes may go up by an allow.
func (r *reader) maxBytesUp(what string, into *int64, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if effect != policy.Allow {
			r.fail(n, "%s bounds what is let pass, and stands in allow alone", what)
			return
		}
		r.byteCount(what, into)(n)
	}
}

// isPortOf refuses a number behind a pattern with a port: the second port of [a.test:80,443].
func (r *reader) isPortOf(before, n *yaml.Node, what string) bool {
	host, _, hasPort := strings.Cut(before.Value, ":")
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || before.Kind != yaml.ScalarNode || !hasPort {
		return false
	}
	r.fail(n, "%s is a number; for a further port write the host again: %q", what, printable(host+":"+n.Value))
	return true
}

// spellsHost refuses a rule that says with a key of another tool where to: {host: a.test, port: 443}, {domain: a.test}, or
// "a.test: 443", which YAML reads as a key and a value.
func (r *reader) spellsHost(n *yaml.Node, what string) bool {
	host := "example.com"
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key, value := n.Content[i], n.Content[i+1]; key.Value == "host" && value.Kind == yaml.ScalarNode && value.Value != "" {
			host = value.Value
		}
	}
	if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch key.Value {
		case "port", "ports":
			port := value.Value
			if value.Kind == yaml.SequenceNode && len(value.Content) > 0 {
				port = value.Content[0].Value
			}
			r.fail(key, "%s has no key %q; a port stands behind the host, one in each rule: host: %q", what, key.Value, printable(host+":"+cmp.Or(port, "443")))
			return true
		case "domain", "hostname", "address", "ip", "cidr", "url", "destination", "to":
			r.fail(key, "%s has no key %q; write host: %s", what, key.Value, cmp.Or(printable(value.Value), host))
			return true
		}
		if _, err := policy.ParsePattern(key.Value + ":" + value.Value); err == nil && strings.Contains(key.Value, ".") && len(n.Content) == 2 {
			r.fail(key, "%s is a mapping; write the port without a space before it: %q", what, printable(key.Value+":"+value.Value))
			return true
		}
	}
	return false
}

// allowOnly reads a key that belongs to rules of one list alone.
func (r *reader) allowOnly(list, what string, read func(*yaml.Node)) func(*yaml.Node) {
	if list == "allow" {
		return read
	}
	return func(n *yaml.Node) {
		r.fail(n, "%s stands only in rules of the file's own list allow; write it there, and leave it out here", what)
	}
}

func (r *reader) pattern(what string, into *policy.Pattern) func(*yaml.Node) {
	return parsed(r, what, into, policy.ParsePattern)
}

func (r *reader) patterns(what string, into *[]policy.Pattern) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, what) {
			var p policy.Pattern
			r.pattern(fmt.Sprintf("%s[%d]", what, i), &p)(item)
			*into = append(*into, p)
		}
	}
}

func (r *reader) methods(what string, rule *policy.Rule) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for _, item := range r.condition(n, what) {
			method, ok := r.text(item, what)
			switch {
			case !ok:
			case method == "CONNECT":
				r.fail(item, "%s: CONNECT opens a tunnel and is no request inside it; name the methods of requests", what)
			case method != strings.ToUpper(method) || !policy.PlainMethod(method):
				r.fail(item, "%s: %q is not a method; write it as requests do, like GET", what, printable(method))
			default:
				rule.Methods = append(rule.Methods, method)
			}
		}
	}
}

func (r *reader) paths(what string, rule *policy.Rule) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for _, item := range r.condition(n, what) {
			if pattern, ok := parse(r, item, what, policy.ParsePathPattern); ok {
				rule.Paths = append(rule.Paths, pattern)
			}
		}
	}
}

func problemOfReason(text string) string {
	if len(text) > 200 || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return "is longer than 200 bytes or has control characters; write one short sentence"
	}
	return ""
}

func (r *reader) id(what string, rule *policy.Rule) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		switch {
		case !ok:
		case !plainName(text):
			r.fail(n, "%s %s", what, unless(plainName(text), text, plainNames))
		case slices.Contains([]string{"default", "baseline", "none", "policy-error", "ceiling", policy.LearnRule}, text):
			r.fail(n, "%s cannot be %q, which egressd itself uses in the log; choose another", what, text)
		case r.ids[text].Line > 0:
			r.fail(n, "%s: a rule in line %d has the id %q too; choose another", what, r.ids[text].Line, text)
		default:
			rule.ID, r.ids[text] = text, placeOf(n)
		}
	}
}

// option reads a word that loosens an allow.
func (r *reader) option(what, only string, into *bool, effect policy.Verdict) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		switch {
		case !ok:
		case text != only:
			r.fail(n, "%s cannot be %q; write %q, or leave the key out", what, printable(text), only)
		case effect != policy.Allow:
			r.fail(n, "%s loosens an allow and means nothing here; leave it out", what)
		default:
			*into = true
		}
	}
}

func (r *reader) presets(into *[]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "presets") {
			what := fmt.Sprintf("presets[%d]", i)
			if item.Kind == yaml.MappingNode {
				r.presetWith(item, what)
				continue
			}
			name, ok := r.text(item, what)
			switch {
			case !ok:
			case !slices.Contains(Presets(), name):
				r.fail(item, "there is no preset %q; %s", printable(name), didYouMeanPreset(name))
			case slices.Contains(*into, name):
				r.fail(item, "the preset %q stands twice; keep one", name)
			default:
				*into = append(*into, name)
				r.places["preset "+name] = placeOf(item)
				r.placeMembers(name, item)
			}
		}
	}
}

// placeMembers has the presets that a preset names stand where it does.
func (r *reader) placeMembers(name string, at *yaml.Node) {
	members, err := parsePresets([]string{name})
	if err != nil {
		return
	}
	for _, m := range members {
		if _, named := r.places[m.name]; !named {
			r.places[m.name] = placeOf(at)
		}
	}
}

func (r *reader) tests(into *[]Test) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "tests") {
			if test, ok := parse(r, item, fmt.Sprintf("tests[%d]", i), parseTest); ok {
				test.at = placeOf(item)
				*into = append(*into, test)
			}
		}
	}
}

// ceiling reads the list "ceiling".
func (r *reader) ceiling(f *File) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.rules("ceiling", &f.Ceiling, policy.Allow)(n)
		f.Ceiled = true
	}
}

// loosening reads a key that gives more than a destination, where a rule may.
func (r *reader) loosening(list, what string, read func(*yaml.Node)) func(*yaml.Node) {
	switch {
	case list == "ceiling":
		return func(n *yaml.Node) {
			r.fail(n, "%s: a ceiling says where to, and gives nothing; leave it out, and write it into the allow", what)
		}
	case r.kind == projectFile:
		return func(n *yaml.Node) {
			r.fail(n, "%s: a project cannot give that; write the rule into egressd.yaml", what)
		}
	case r.kind == organisationFile && strings.HasSuffix(what, ".inject"):
		return func(n *yaml.Node) {
			r.fail(n, "%s: credentials belong to who runs egressd; write the rule into egressd.yaml", what)
		}
	}
	return read
}
