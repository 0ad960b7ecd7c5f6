package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// file reads the whole file. A key that this version cannot honour is
// known too, and refused: none is passed over.
func (r *reader) file(f *File, root *yaml.Node) {
	fallback := "deny"
	r.mapping(root, "the file", r.kind.only(r, fields{
		"version":      r.version,
		"listen":       r.listen(&f.Listen),
		"default":      word(r, "default", &fallback, "deny", "allow"),
		"allow":        r.rules("allow", &f.Allow, Allow),
		"deny":         r.rules("deny", &f.Deny, Deny),
		"ask":          r.rules("ask", &f.Ask, Ask),
		"ceiling":      r.ceiling(f),
		"presets":      r.presets(&f.Presets),
		"rego":         r.rego("rego", &f.Rego),
		"unsafe_allow": r.rules("unsafe_allow", &f.UnsafeAllow, Allow),
		"tests":        r.tests(&f.Tests),
		"sandboxes":    r.sandboxes(&f.Sandboxes),
		"tls":          r.tls(&f.TLS),
		"docker":       r.docker(&f.Docker),
		"audit":        r.audit(&f.Audit),
		"upstream":     r.upstream(&f.Upstream),
		"limits":       r.limits(&f.Limits),
		"canaries":     r.canaries(&f.Canaries),
	}))
	if fallback == "allow" {
		f.Default = Allow
	}
	if root.Kind == yaml.MappingNode && !hasKey(root, "version") {
		r.failAt(place{1, 1}, "the file has no version; begin it with \"version: 1\"")
	}
	r.checkListeners(f)
	r.checkIdentity(f)
	r.checkContainers(f)
	r.checkGuarded(f)
	r.checkNever(f)
}

// checkGuarded keeps what needs "unsafe_allow" out of "allow", and the rest
// out of "unsafe_allow".
func (r *reader) checkGuarded(f *File) {
	for _, rule := range f.Allow {
		if class := guardedClass(rule.Pattern); class != "" {
			r.failAt(rule.at, "%s: %s is %s, which an allow does not open; if a sandbox is really to reach it, write it under unsafe_allow", rule.ID, rule.Pattern, class)
		}
	}
	for _, rule := range f.UnsafeAllow {
		p := rule.Pattern
		if p.kind != none && !p.IsAddress() && !InSpecialSpace(p) {
			r.failAt(rule.at, "%s: %s is a public name; write it under allow, or write the address that is to be opened", rule.ID, p)
		}
	}
}

// guardedClass returns the class of p where an allow is not enough for it.
func guardedClass(p Pattern) AddressClass {
	if !InSpecialSpace(p) {
		return ""
	}
	var class AddressClass
	switch p.kind {
	case addresses:
		class = ClassOf(p.prefix.Addr())
	case exactHost:
		class = classOfName(p.name)
	case hostsBelow:
		class = classBelow(p.name)
	}
	if !class.guarded() {
		return ""
	}
	return class
}

func (r *reader) version(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Value != "1" {
		r.fail(n, "version cannot be %s; write \"version: 1\", or use an egressd that knows it", cmp.Or(printable(n.Value), kindOf(n)))
	}
}

// checkListeners refuses two listeners at one place.
func (r *reader) checkListeners(f *File) {
	first := make(map[string]string)
	once := func(what, text string) {
		if text == "" || strings.HasSuffix(text, ":0") {
			return
		}
		text = strings.TrimPrefix(strings.TrimPrefix(text, TLSListener), TProxyListener)
		if before, ok := first[text]; ok {
			r.failAt(r.places[what], "%s is %s, and so is %s; give each its own", what, printable(text), before)
		}
		first[text] = what
	}
	for i, text := range f.Listen.Proxy {
		once(fmt.Sprintf("listen.proxy[%d]", i), text)
	}
	for i, text := range f.Listen.Transparent {
		once(fmt.Sprintf("listen.transparent[%d]", i), text)
	}
	for i, text := range f.Listen.DNS {
		once(fmt.Sprintf("listen.dns[%d]", i), text)
	}
	for i, text := range f.Listen.Enter {
		once(fmt.Sprintf("listen.enter[%d]", i), text)
	}
	once("listen.admin", f.Listen.Admin)
	for i, s := range f.Sandboxes {
		once(fmt.Sprintf("sandboxes[%d].listen", i), s.Listen)
		once(fmt.Sprintf("sandboxes[%d].enter", i), s.Enter)
	}
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

func (r *reader) listen(l *Listen) func(*yaml.Node) {
	return r.section("listen", fields{
		"proxy":        r.listeners("listen.proxy", &l.Proxy),
		"transparent":  r.list("listen.transparent", &l.Transparent, r.captureListener),
		"dns":          r.list("listen.dns", &l.DNS, r.nameListener),
		"enter":        r.list("listen.enter", &l.Enter, r.socket),
		"admin":        r.listener("listen.admin", &l.Admin),
		"client_ca":    r.path("listen.client_ca", &l.ClientCA),
		"server_names": r.list("listen.server_names", &l.ServerNames, r.serverName),
	})
}

func (r *reader) tls(t *TLS) func(*yaml.Node) {
	return r.section("tls", r.kind.onlyTLS(r, fields{
		"ca_dir":      r.path("tls.ca_dir", &t.CADir),
		"never":       r.patterns("tls.never", &t.Never),
		"ech":         word(r, "tls.ech", &t.ECH, "refuse", "allow"),
		"extra_roots": r.list("tls.extra_roots", &t.ExtraRoots, r.path),
	}))
}

func (r *reader) audit(a *Audit) func(*yaml.Node) {
	return r.section("audit", fields{
		"dir":           r.path("audit.dir", &a.Dir),
		"durability":    word(r, "audit.durability", &a.Durability, "disk", "process"),
		"segment_bytes": number(r, "audit.segment_bytes", &a.SegmentBytes, 64<<10, 16<<30),
		"key_dir":       r.path("audit.key_dir", &a.KeyDir),
		"retain":        r.retain(&a.Retain),
		"sinks":         r.sinks(&a.Sinks),
		"anchors":       r.anchors(&a.Anchors),
		"witnesses":     r.witnesses(&a.Witnesses),
	})
}

func (r *reader) retain(t *Retain) func(*yaml.Node) {
	age := func(what string, into *time.Duration) func(*yaml.Node) {
		return r.durationWithin(what, into, time.Hour, 10*366*24*time.Hour, "a duration from 1h, like 720h for thirty days")
	}
	read := r.section("audit.retain", fields{
		"bytes":    number(r, "audit.retain.bytes", &t.Bytes, 1<<20, 1<<50),
		"age":      age("audit.retain.age", &t.Age),
		"segments": number(r, "audit.retain.segments", &t.Segments, 2, 1<<30),
		"sinks": r.section("audit.retain.sinks", fields{
			"bytes": number(r, "audit.retain.sinks.bytes", &t.Sinks.Bytes, 1<<20, 1<<50),
			"age":   age("audit.retain.sinks.age", &t.Sinks.Age),
		}),
	})
	return func(n *yaml.Node) {
		if t.All = n.Kind == yaml.ScalarNode && n.Value == "all"; t.All {
			return
		}
		read(n)
		switch {
		case t.Sinks == RetainSinks{}:
		case t.Bytes == 0 && t.Age == 0 && t.Segments == 0:
			r.fail(n, "audit.retain.sinks says how long removal waits, and nothing is removed; add bytes, age or segments to audit.retain")
		case t.Sinks.Bytes > 0 && t.Sinks.Bytes <= t.Bytes:
			r.fail(n, "audit.retain.sinks.bytes leaves nothing for sinks; write more than the %d of audit.retain.bytes", t.Bytes)
		case t.Sinks.Age > 0 && t.Sinks.Age <= t.Age:
			r.fail(n, "audit.retain.sinks.age leaves nothing for sinks; write more than the %s of audit.retain.age", t.Age)
		}
	}
}

func (r *reader) upstream(u *Upstream) func(*yaml.Node) {
	return r.section("upstream", fields{
		"dns":   r.list("upstream.dns", &u.DNS, r.resolver),
		"proxy": r.notYet("upstream.proxy", "write null; egressd connects directly"),
	})
}

func (r *reader) limits(l *Limits) func(*yaml.Node) {
	return r.section("limits", fields{
		"connections":       number(r, "limits.connections", &l.Connections, 1, 1<<20),
		"flows_per_sandbox": number(r, "limits.flows_per_sandbox", &l.FlowsPerSandbox, 1, 1<<20),
		"head_bytes":        number(r, "limits.head_bytes", &l.HeadBytes, 1<<10, 1<<20),
		"header_fields":     number(r, "limits.header_fields", &l.HeaderFields, 1, 10000),
		"head_timeout":      r.duration("limits.head_timeout", &l.HeadTimeout),
		"hello_bytes":       number(r, "limits.hello_bytes", &l.HelloBytes, 1<<10, 64<<10),
		"hello_timeout":     r.duration("limits.hello_timeout", &l.HelloTimeout),
		"dial_timeout":      r.duration("limits.dial_timeout", &l.DialTimeout),
		"idle_timeout":      r.duration("limits.idle_timeout", &l.IdleTimeout),
		"tunnel_lifetime":   r.lifetime("limits.tunnel_lifetime", &l.TunnelLifetime),
		"ask_wait":          r.askWait("limits.ask_wait", &l.AskWait),

		"dns_queries_per_second": number(r, "limits.dns_queries_per_second", &l.DNSQueriesPerSecond, 1, 1<<20),
		"dns_name_bytes":         number(r, "limits.dns_name_bytes", &l.DNSNameBytes, 64, 1<<30),
	})
}

// list reads a list of texts with the reader of one text.
func (r *reader) list(what string, into *[]string, one func(string, *string) func(*yaml.Node)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		items := r.items(n, what)
		*into = make([]string, len(items))
		for i, item := range items {
			one(fmt.Sprintf("%s[%d]", what, i), &(*into)[i])(item)
		}
	}
}

// path reads the name of a file or folder, in which variables may stand.
func (r *reader) path(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if text, ok := r.text(n, what); ok {
			*into = text
			r.places[what] = placeOf(n)
		}
	}
}

func (r *reader) listeners(what string, into *[]string) func(*yaml.Node) {
	return r.list(what, into, r.listener)
}

// listener reads "unix:/path", in which variables may stand, or address:port,
// for a proxy also behind "tls:".
func (r *reader) listener(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		if err := checkListener(text, what == "listen.admin"); err != nil {
			r.fail(n, "%s: %v", what, err)
			return
		}
		*into = text
		r.places[what] = placeOf(n)
	}
}

// captureListener reads address:port, for tproxy behind "tproxy:". Who uses it
// needs to know its port, so 0 is none.
func (r *reader) captureListener(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		at, err := netip.ParseAddrPort(strings.TrimPrefix(text, TProxyListener))
		if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() || at.Port() == 0 {
			r.fail(n, "%s: %q is not an address and a port; write 10.99.0.2:3129 or [fd99::2]:3129 for connections that NAT redirects, tproxy:127.0.0.1:3129 for those that tproxy takes", what, printable(text))
			return
		}
		*into = text
		r.places[what] = placeOf(n)
	}
}

// socket reads "unix:/path", in which variables may stand.
func (r *reader) socket(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if text, ok := r.text(n, what); ok && !isUnix(text) {
			r.fail(n, "%s: %q is not a Unix socket, by which alone descriptors can be handed over; write unix:/path", what, printable(text))
			return
		}
		r.listener(what, into)(n)
	}
}

func checkListener(text string, admin bool) error {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "${") {
			return fmt.Errorf("%q is not an absolute path; write unix:/path", printable(path))
		}
		return nil
	}
	address, tls := strings.CutPrefix(text, TLSListener)
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() || tls && admin {
		return fmt.Errorf("%q is not an address and a port; write 127.0.0.1:3128, [::1]:3128 or unix:/path", printable(text))
	}
	if admin && at.Port() == 0 {
		return fmt.Errorf("%s has no port that rules could keep sandboxes from; write one, like 127.0.0.1:9464", at)
	}
	if admin && !at.Addr().IsLoopback() {
		return fmt.Errorf("%s can be reached from other machines; write an address in 127.0.0.0/8 or unix:/path", at)
	}
	return nil
}

// resolver reads "system", or an address with or without a port.
func (r *reader) resolver(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		_, errAddr := netip.ParseAddr(text)
		_, errPort := netip.ParseAddrPort(text)
		if text != "system" && errAddr != nil && errPort != nil {
			r.fail(n, "%s: %q is not a resolver; write system, 9.9.9.9 or 9.9.9.9:53", what, printable(text))
			return
		}
		*into = text
	}
}

func (r *reader) sandboxes(into *[]SandboxRules) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "sandboxes") {
			at := fmt.Sprintf("sandboxes[%d]", i)
			s := SandboxRules{Narrowed: hasKey(item, "allow")}
			r.mapping(item, at, fields{
				"name":        r.sandboxName(at+".name", &s.Name),
				"token_file":  r.path(at+".token_file", &s.TokenFile),
				"listen":      r.listener(at+".listen", &s.Listen),
				"enter":       r.socket(at+".enter", &s.Enter),
				"uid":         r.uids(at+".uid", &s.UIDs),
				"source":      r.sources(at+".source", &s.Sources),
				"docker":      r.containers(at+".docker", &s.Docker),
				"certificate": r.certificate(at+".certificate", &s.Certificate),
				"allow":       r.rules(at+".allow", &s.Allow, Allow),
				"deny":        r.rules(at+".deny", &s.Deny, Deny),
				"rego":        r.plainRego(at+".rego", &s.Rego),
				"project":     r.path(at+".project", &s.Project),
			})
			r.checkSandbox(item, at, s, *into)
			*into = append(*into, s)
		}
	}
}

func (r *reader) checkSandbox(n *yaml.Node, at string, s SandboxRules, before []SandboxRules) {
	if n.Kind != yaml.MappingNode {
		return
	}
	if !hasKey(n, "name") {
		r.fail(n, "%s has no name; add \"name: web\" or the like", at)
	}
	if !toldApart(n) {
		r.fail(n, "nothing tells %s from the others; add token_file, listen, enter, uid, source, docker or certificate", at)
	}
	same := func(b SandboxRules) bool { return s.Name != "" && b.Name == s.Name }
	if slices.ContainsFunc(before, same) {
		r.fail(n, "a sandbox %q stands above already; give this one another name", s.Name)
	}
}

// sandboxName reads a name that can stand in a log, a URL and a proxy user.
func (r *reader) sandboxName(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if ok && !plainName(text) {
			r.fail(n, "%s cannot be %q; write up to 64 letters, digits, dots, dashes and underscores", what, printable(text))
			return
		}
		*into = text
	}
}

// plainName reports whether text has 1 to 64 bytes, all of them letters,
// digits, ".", "-" and "_", and begins with a letter or a digit.
func plainName(text string) bool {
	if text == "" || len(text) > 64 || strings.IndexByte(".-_", text[0]) >= 0 {
		return false
	}
	for i := range len(text) {
		if !unreserved(text[i]) || text[i] == '~' {
			return false
		}
	}
	return true
}
