// Package importer reads the settings of other sandboxes as patterns of a policy file.
package importer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/integrations/jsonc"
)

// An Import is what another sandbox's settings say, in patterns of a policy file. It
// decides as they do but for what Stricter says; it is never wider.
type Import struct {
	Allow, Deny  []string
	AllowDefault bool     // what no pattern speaks of is allowed
	Stricter     []string // where the policy refuses what they let pass, or ask about
	Left         []string // what of the settings is about something else
}

// Kinds are the settings that can be read, by name.
func Kinds() []string { return slices.Sorted(maps.Keys(importers)) }

var importers = map[string]func(map[string]json.RawMessage) (*Import, error){
	"claude": importClaude, "srt": importSRT, "e2b": importE2B,
}

// Read reads settings of the kind that [Importers] names. A setting about
// destinations that it does not know is an error.
func Read(from string, text []byte) (*Import, error) {
	read, ok := importers[from]
	if !ok {
		return nil, fmt.Errorf("%q is none of %s", from, strings.Join(Kinds(), ", "))
	}
	var top map[string]json.RawMessage
	if _, err := jsonc.Parse(bytes.Clone(text)); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	if err := json.Unmarshal(jsonc.Standard(text), &top); err != nil || top == nil {
		return nil, fmt.Errorf("it is no JSON object")
	}
	return read(top)
}

// take decodes the value at key into v and deletes the key. A missing key leaves v as it is.
func take(from map[string]json.RawMessage, key string, v any) error {
	text, ok := from[key]
	delete(from, key)
	if !ok {
		return nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// aside are keys of the sandbox's network that open no destination and close none.
var aside = []string{
	"allowUnixSockets", "allowAllUnixSockets", "allowLocalBinding", "allowMachLookup", "allowManagedDomainsOnly",
	"httpProxyPort", "socksProxyPort", "deniedDomainReasons",
}

// importLists reads allowedDomains and deniedDomains, where a deny wins.
func importLists(network map[string]json.RawMessage, allowed, denied []string) (*Import, error) {
	var moreAllowed, moreDenied []string
	if err := take(network, "allowedDomains", &moreAllowed); err != nil {
		return nil, err
	}
	if err := take(network, "deniedDomains", &moreDenied); err != nil {
		return nil, err
	}
	in := &Import{Stricter: []string{"a name that resolves to a private address is refused, unless the address is allowed itself"}}
	for _, key := range slices.Sorted(maps.Keys(network)) {
		if !slices.Contains(aside, key) {
			return nil, fmt.Errorf("network.%s is not known here; take it out if it is not about destinations", key)
		}
		in.Left = append(in.Left, "network."+key)
	}
	allow, err := readEntries(append(allowed, moreAllowed...))
	if err != nil {
		return nil, err
	}
	deny, err := readEntries(append(denied, moreDenied...))
	if err != nil {
		return nil, err
	}
	in.denyWins(allow, deny)
	return in, nil
}

// denyWins says lists of which a deny wins in a policy, where the more specific pattern
// does: each intersection of an allow and a deny is a deny of its own.
func (in *Import) denyWins(allow, deny []entry) {
	for _, d := range deny {
		in.Deny = add(in.Deny, d.String())
	}
	for _, a := range allow {
		whole := false
		for _, d := range deny {
			both, ok := a.and(d)
			if !ok {
				continue
			}
			in.Deny = add(in.Deny, both.String())
			whole = whole || both == a
		}
		if !whole {
			in.Allow = add(in.Allow, a.String())
		}
	}
}

func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func importSRT(top map[string]json.RawMessage) (*Import, error) {
	var network map[string]json.RawMessage
	if err := take(top, "network", &network); err != nil {
		return nil, err
	}
	in, err := importLists(network, nil, nil)
	if err != nil {
		return nil, err
	}
	in.Left = append(in.Left, slices.Sorted(maps.Keys(top))...)
	return in, nil
}

func importClaude(top map[string]json.RawMessage) (*Import, error) {
	var sandbox, network, permissions map[string]json.RawMessage
	var allow, deny []string
	if err := take(top, "sandbox", &sandbox); err != nil {
		return nil, err
	}
	if err := take(top, "permissions", &permissions); err != nil {
		return nil, err
	}
	for key, list := range map[string]*[]string{"allow": &allow, "deny": &deny} { // by these names alone, whatever their case
		if err := take(permissions, key, list); err != nil {
			return nil, fmt.Errorf("permissions.%w", err)
		}
	}
	if err := take(sandbox, "network", &network); err != nil {
		return nil, err
	}
	in, err := importLists(network, fetched(allow), fetched(deny))
	if err != nil {
		return nil, err
	}
	in.Stricter = append(in.Stricter, "what is not listed is refused, where Claude Code asks")
	for _, key := range slices.Sorted(maps.Keys(sandbox)) {
		in.Left = append(in.Left, "sandbox."+key)
	}
	return in, nil
}

// fetched are the hosts of WebFetch(domain:HOST) among rules: Claude Code adds them
// to the lists of its sandbox.
func fetched(rules []string) (hosts []string) {
	for _, rule := range rules {
		if rest, ok := strings.CutPrefix(rule, "WebFetch(domain:"); ok {
			hosts = append(hosts, strings.TrimSuffix(rest, ")"))
		}
	}
	return hosts
}

func importE2B(top map[string]json.RawMessage) (*Import, error) {
	internet := true
	var allowed, denied []string
	for _, names := range []struct {
		camel, snake string
		into         any
	}{
		{"allowInternetAccess", "allow_internet_access", &internet},
		{"allowOut", "allow_out", &allowed},
		{"denyOut", "deny_out", &denied},
	} {
		if top[names.camel] != nil && top[names.snake] != nil {
			return nil, fmt.Errorf("%s and %s are the same setting", names.camel, names.snake)
		}
		if err := take(top, names.camel, names.into); err != nil {
			return nil, err
		}
		if err := take(top, names.snake, names.into); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(top)) {
		return nil, fmt.Errorf("%s is not known here; the object of the network option is", key)
	}
	return e2bLists(internet, allowed, denied)
}

// e2bLists converts lists in which allow wins. In E2B a denied prefix inside an allowed prefix has no effect, but in a
// policy it would.
func e2bLists(internet bool, allowed, denied []string) (*Import, error) {
	in := &Import{AllowDefault: internet, Stricter: []string{
		"a name that resolves to a private address, or one that is denied, is refused, unless the address is allowed itself",
		"8.8.8.8 is not opened for DNS: egressd resolves",
	}}
	var prefixes, closed []netip.Prefix
	for _, text := range allowed {
		prefix, ok := prefixOf(text)
		switch {
		case ok:
			prefixes = append(prefixes, prefix)
			in.Allow = add(in.Allow, prefixText(prefix)+":*")
		case strings.ContainsAny(text, ":/"):
			return nil, fmt.Errorf("allowOut: %q is neither a name nor an address", text)
		default:
			in.Allow = add(in.Allow, text) // ports 80 and 443 alone, in both
		}
	}
	for _, text := range denied {
		prefix, ok := prefixOf(text)
		if !ok {
			return nil, fmt.Errorf("denyOut: %q is no address", text)
		}
		if prefix.Bits() == 0 {
			in.AllowDefault = false
		}
		closed = append(closed, prefix)
	}
	for _, prefix := range closed {
		inside := func(p netip.Prefix) bool { return p.Bits() <= prefix.Bits() && p.Contains(prefix.Addr()) }
		if in.AllowDefault && !slices.ContainsFunc(prefixes, inside) {
			in.Deny = add(in.Deny, prefixText(prefix)+":*")
		}
	}
	return in, nil
}

// prefixOf reads an IPv4 address or prefix, all that E2B has.
func prefixOf(text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), addr.Is4()
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err == nil && prefix.Addr().Is4()
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// An entry is a host, "*.NAME", "*" or an address. Port 0 stands for all ports.
type entry struct {
	host string
	port uint16
}

func readEntries(texts []string) (all []entry, err error) {
	for _, text := range texts {
		e, ok := readEntry(strings.ToLower(text))
		if !ok {
			return nil, fmt.Errorf("%q is no host, with a port or without", text)
		}
		all = append(all, e)
	}
	return all, nil
}

func readEntry(text string) (e entry, ok bool) {
	e.host = text
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		port, err := strconv.ParseUint(text[i+1:], 10, 16)
		if err != nil || port == 0 {
			return e, false
		}
		e.host, e.port = text[:i], uint16(port)
	}
	if inner, bracketed := strings.CutPrefix(e.host, "["); bracketed {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		e.host = "[" + addr.String() + "]"
		return e, err == nil && addr.Is6()
	}
	return e, e.host != "" && !strings.ContainsAny(e.host, ":/ ")
}

func (e entry) String() string {
	if e.port == 0 {
		return e.host + ":*"
	}
	return e.host + ":" + strconv.Itoa(int(e.port))
}

// and is what both match.
func (e entry) and(other entry) (entry, bool) {
	if e.port == 0 {
		e.port = other.port
	} else if other.port != 0 && other.port != e.port {
		return entry{}, false
	}
	switch {
	case within(e.host, other.host):
		return e, true
	case within(other.host, e.host):
		return entry{other.host, e.port}, true
	}
	return entry{}, false
}

// within says that every host of a is one of b.
func within(a, b string) bool {
	suffix, below := strings.CutPrefix(b, "*.")
	return a == b || b == "*" || below && a != "*" && strings.HasSuffix(a, "."+suffix)
}
