package file

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	forPeople "github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// file reads the whole file. A key that this version cannot honour is
// known too, and refused: none is passed over.
func (r *reader) file(f *File, root *yaml.Node) {
	fallback := "deny"
	r.mapping(root, "the file", r.kind.only(r, r.modeFields(fields{
		"version":        r.version,
		"listen":         r.listen(&f.Listen),
		"default":        word(r, "default", &fallback, "deny", "allow"),
		"allow":          r.rules("allow", &f.Allow, policy.Allow),
		"deny":           r.rules("deny", &f.Deny, policy.Deny),
		"ask":            r.rules("ask", &f.Ask, policy.Ask),
		"allow_file":     r.list("allow_file", &f.AllowFiles, r.path),
		"deny_file":      r.list("deny_file", &f.DenyFiles, r.path),
		"ceiling":        r.ceiling(f),
		"approve_within": r.path("approve_within", &f.ApproveWithin),
		"deny_message":   r.checked("deny_message", &f.DenyMessage, problemOfDenyMessage),
		"presets":        r.presets(&f.Presets),
		"rego":           r.rego("rego", &f.Rego),
		"labels":         r.labels("labels", &f.Labels),
		"unsafe_allow":   r.rules("unsafe_allow", &f.UnsafeAllow, policy.Allow),
		"tests":          r.tests(&f.Tests),
		"sandboxes":      r.sandboxes(&f.Sandboxes),
		"tls":            r.tls(&f.TLS),
		"docker":         r.docker(&f.Docker),
		"placeholders":   r.placeholders(&f.Placeholders),
		"audit":          r.audit(&f.Audit),
		"upstream":       r.upstream(&f.Upstream),
		"limits":         r.limits(&f.Limits),
		"notify":         r.notify(f),
		"metrics":        r.metrics(&f.Metrics),
		"canaries":       r.canaries(&f.Canaries),
		"budgets":        r.budgets(&f.Budgets),
		"credentials":    r.credentialList(&f.Credentials),
	}, "", &f.Mode)))
	if fallback == "allow" {
		f.Default = policy.Allow
	}
	if root.Kind == yaml.MappingNode && !hasKey(root, "version") {
		r.failAt(policy.Position{Line: 1, Column: 1}, "the file has no version; begin it with \"version: 1\"")
	}
	r.checkListeners(f)
	r.checkUndone(f)
	r.checkIdentity(f)
	r.checkContainers(f)
	r.checkGuarded(f)
	r.addPresetLines(f)
	r.giveCredentials(f)
	r.shareSetFields(f)
	r.checkNever(f)
	r.checkHidden(f)
	r.checkModes(f)
	r.checkLabels(f)
}

// MaxDenyMessage bounds [File.DenyMessage], in bytes: the replies of some protocols are one line.
const MaxDenyMessage = 240

func problemOfDenyMessage(text string) string {
	if len(text) > MaxDenyMessage || text != strings.TrimSpace(text) || text != forPeople.Text(text) {
		return fmt.Sprintf("is not one line of up to %d bytes that every terminal shows as it is; write whom to ask, such as \"Ask #network, https://wiki.example.com/egress\"", MaxDenyMessage)
	}
	return ""
}

// placesOf reads the sections of [ParsePlaces] and ignores every other one. A wrong section "listen" counts as absent.
func (r *reader) placesOf(f *File, root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "listen":
			before := len(r.problems)
			if r.listen(&f.Listen)(root.Content[i+1]); len(r.problems) > before {
				f.Listen, r.problems = defaults().Listen, r.problems[:before]
			}
		case "audit":
			r.audit(&f.Audit)(root.Content[i+1])
		}
	}
}

// only has every other key say where it belongs.
func (k fileKind) only(r *reader, all fields) fields {
	if k == userFile {
		return all
	}
	return r.elsewhere(all, k.keys(), "")
}

// onlyKey does so for a section of which an organisation has one key.
func (k fileKind) onlyKey(r *reader, section, key string, all fields) fields {
	if k == userFile {
		return all
	}
	return r.elsewhere(all, []string{key}, section+".")
}

func (r *reader) elsewhere(all fields, here []string, prefix string) fields {
	out := maps.Clone(all)
	for key := range all {
		if !slices.Contains(here, key) {
			out[key] = func(n *yaml.Node) { r.fail(n, "%s%s belongs into egressd.yaml; write it there", prefix, key) }
		}
	}
	return out
}

func (r *reader) version(n *yaml.Node) {
	switch _, err := strconv.Atoi(n.Value); {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!int" && n.Value == "1":
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == "1":
		r.fail(n, "version is text; write version: 1, without quotes")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!int" && err == nil:
		r.fail(n, "this egressd does not know version %s; write version: 1, or use an egressd that knows it", printable(n.Value))
	default:
		r.fail(n, "version cannot be %s; write version: 1", cmp.Or(printable(n.Value), kindOf(n)))
	}
}

func (r *reader) tls(t *TLS) func(*yaml.Node) {
	return r.section("tls", r.kind.onlyKey(r, "tls", "never", fields{
		"ca_dir":      r.path("tls.ca_dir", &t.CADir),
		"never":       r.patterns("tls.never", &t.Never),
		"ech":         word(r, "tls.ech", &t.ECH, "refuse", "allow"),
		"extra_roots": r.list("tls.extra_roots", &t.ExtraRoots, r.path),
	}))
}

func (r *reader) upstream(u *Upstream) func(*yaml.Node) {
	return r.section("upstream", fields{
		"dns":       r.list("upstream.dns", &u.DNS, r.resolver),
		"dns_types": r.list("upstream.dns_types", &u.DNSTypes, r.recordType),
		"proxy":     r.upstreamProxy(&u.Proxy),
	})
}

// recordType reads a type of records that sandboxes may ask for.
func (r *reader) recordType(what string, into *string) func(*yaml.Node) {
	return word(r, what, into, "SRV", "TXT")
}

func (r *reader) limits(l *Limits) func(*yaml.Node) {
	return r.section("limits", fields{
		"connections":       number(r, "limits.connections", &l.Connections, 1, 1<<20),
		"flows_per_sandbox": number(r, "limits.flows_per_sandbox", &l.FlowsPerSandbox, 1, 1<<20),
		"head_bytes":        number(r, "limits.head_bytes", &l.HeadBytes, 1<<10, 1<<20),
		"header_fields":     number(r, "limits.header_fields", &l.HeaderFields, 1, 10000),

		"response_head_bytes": number(r, "limits.response_head_bytes", &l.ResponseHeadBytes, 1<<10, 1<<20),
		"response_fields":     number(r, "limits.response_fields", &l.ResponseFields, 1, 10000),

		"body_bytes":      number(r, "limits.body_bytes", &l.BodyBytes, 1<<10, 64<<20),
		"head_timeout":    r.duration("limits.head_timeout", &l.HeadTimeout),
		"hello_bytes":     number(r, "limits.hello_bytes", &l.HelloBytes, 1<<10, 64<<10),
		"hello_timeout":   r.duration("limits.hello_timeout", &l.HelloTimeout),
		"dial_timeout":    r.duration("limits.dial_timeout", &l.DialTimeout),
		"idle_timeout":    r.duration("limits.idle_timeout", &l.IdleTimeout),
		"tunnel_lifetime": r.lifetime("limits.tunnel_lifetime", &l.TunnelLifetime),
		"ask_wait":        r.askWait("limits.ask_wait", &l.AskWait),

		"dns_queries_per_second": number(r, "limits.dns_queries_per_second", &l.DNSQueriesPerSecond, 1, 1<<20),
		"dns_name_bytes":         number(r, "limits.dns_name_bytes", &l.DNSNameBytes, 64, 1<<30),
	})
}

// checkGuarded keeps what needs "unsafe_allow" out of "allow", and the rest
// out of "unsafe_allow".
func (r *reader) checkGuarded(f *File) {
	for _, rule := range f.Allow {
		if class := rule.Pattern.NeedsUnsafe(); class != "" {
			r.failAt(rule.At, "%s: %s is %s; no allow rule opens that. If a sandbox must reach it, write it under unsafe_allow", rule.ID, rule.Pattern, class)
		}
	}
	for _, rule := range f.UnsafeAllow {
		p := rule.Pattern
		if p != (policy.Pattern{}) && !p.IsAddress() && !policy.InSpecialSpace(p) {
			r.failAt(rule.At, "%s: %s is a public name; write it under allow, or write the address that is to be opened", rule.ID, p)
		}
	}
}

// checkNever refuses a rule that needs a look into tunnels that "tls.never"
// keeps shut: one of the two would not be kept.
func (r *reader) checkNever(f *File) {
	for i := range f.Ceiling {
		r.checkRuleNever(&f.Ceiling[i], f.Ceiling[i].Pattern, f.TLS.Never)
	}
	for _, lists := range f.ruleLists() {
		for _, list := range [][]policy.Rule{lists.Allow, lists.UnsafeAllow} {
			for i := range list {
				r.checkRuleNever(&list[i], list[i].Pattern, f.TLS.Never)
			}
		}
		for _, list := range [][]policy.Rule{lists.Deny, lists.Ask} {
			for i := range list {
				r.checkRuleNever(&list[i], list[i].Pattern.AnyPort(), f.TLS.Never)
			}
		}
	}
}

// checkRuleNever takes the hosts and ports of the rule from about.
func (r *reader) checkRuleNever(rule *policy.Rule, about policy.Pattern, never []policy.Pattern) {
	keys := inspectionKeys(rule)
	if len(keys) == 0 {
		return
	}
	for _, p := range never {
		if !about.SharesTunnel(p) {
			continue
		}
		hint := "remove one of them"
		if !rule.Injects() && about.HasPort(80) {
			hint += ", or narrow the rule to " + rule.Pattern.At(80).String()
		}
		r.failAt(rule.At, "%s: %s of %s needs a look into tunnels that tls.never keeps shut with %s; %s",
			rule.ID, strings.Join(keys, " and "), rule.Pattern, p, hint)
		return
	}
}

// inspectionKeys returns the keys of the rule for which a tunnel is looked into.
func inspectionKeys(r *policy.Rule) (keys []string) {
	for _, key := range []struct {
		name string
		set  bool
	}{{"methods", len(r.Methods) > 0}, {"paths", len(r.Paths) > 0}, {"upgrade", r.Upgrade}, {"inject", r.Inject != nil}, {"set", len(r.Set) > 0}, {"credentials", r.Credential != ""}} {
		if key.set {
			keys = append(keys, key.name)
		}
	}
	return append(keys, furtherKeys(r)...)
}
