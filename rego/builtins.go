package rego

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	_ "time/tzdata" // embeds the time zones, so that they are equal on all machines and present in an empty container

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/egressd/egressd/policy"
)

// A native is a built-in of egressd. It is a pure function of its operands.
type native struct {
	arguments []types.Type
	result    types.Type
	apply     func(operands []*ast.Term) (ast.Value, error)
}

// natives returns the built-ins behind the library, named "egressd.NAME".
func natives(compiled *compiledLists) map[string]native {
	list := types.Or(types.SetOfAny, types.NewArray(nil, types.A))
	return map[string]native{
		"host_canonical": {[]types.Type{types.S}, types.S, hostCanonical},
		"host_matches":   {[]types.Type{types.S, types.S}, types.B, hostMatches},
		"host_any":       {[]types.Type{types.S, list}, types.B, compiled.hostAny},
		"net_class":      {[]types.Type{types.S}, types.S, netClass},
		"net_contains":   {[]types.Type{types.S, types.S}, types.B, netContains},
		"net_any":        {[]types.Type{list, list}, types.B, netAny},
		"net_reaches":    {[]types.Type{types.S, types.S}, types.B, netReaches},
		"path_matches":   {[]types.Type{types.S, types.S}, types.B, pathMatches},
		"path_any":       {[]types.Type{types.S, list}, types.B, compiled.pathAny},
	}
}

// withNatives adds the natives and the bounded built-ins to the capabilities of the compiler.
func withNatives(c *ast.Capabilities) *ast.Capabilities {
	for _, b := range nativeFunctions(newCompiledLists()) {
		c.Builtins = append(c.Builtins, b.Decl)
	}
	return c
}

// nativeFunctions returns the natives and the bounded built-ins as functions.
func nativeFunctions(compiled *compiledLists) map[string]*topdown.Builtin {
	functions := map[string]*topdown.Builtin{}
	for short, n := range natives(compiled) {
		name := "egressd." + short
		functions[name] = &topdown.Builtin{
			Decl: &ast.Builtin{Name: name, Decl: types.NewFunction(n.arguments, n.result), CanSkipBctx: true},
			Func: n.call(name),
		}
	}
	for short, limit := range bounded {
		original := ast.BuiltinMap[short]
		functions[boundedPrefix+short] = &topdown.Builtin{
			Decl: &ast.Builtin{Name: boundedPrefix + short, Decl: original.Decl},
			Func: limit.around(short, topdown.GetBuiltin(short)),
		}
	}
	return functions
}

func (n native) call(name string) topdown.BuiltinFunc {
	return func(b topdown.BuiltinContext, operands []*ast.Term, yield func(*ast.Term) error) error {
		value, err := n.apply(operands)
		if err != nil {
			return &topdown.Error{Code: topdown.BuiltinErr, Message: name + ": " + err.Error(), Location: b.Location}
		}
		return yield(ast.NewTerm(value))
	}
}

func text(t *ast.Term) (string, error) {
	s, ok := t.Value.(ast.String)
	if !ok {
		return "", fmt.Errorf("it wants text, not %s", ast.ValueName(t.Value))
	}
	return string(s), nil
}

func twoTexts(operands []*ast.Term) (a, b string, err error) {
	if a, err = text(operands[0]); err == nil {
		b, err = text(operands[1])
	}
	return a, b, err
}

// hostPattern parses a pattern of the rule file without a port.
func hostPattern(pattern string) (policy.Pattern, error) {
	if strings.HasPrefix(pattern, "[") || strings.Count(pattern, ":") == 1 {
		return policy.Pattern{}, fmt.Errorf("pattern %q has a port or brackets; compare input.destination.port instead", pattern)
	}
	return policy.ParsePattern(pattern)
}

// covers reports whether the pattern covers the host. No pattern covers an invalid host.
func covers(p policy.Pattern, host string) bool {
	name, addr, err := policy.ParseHost(host)
	switch {
	case err != nil:
		return false
	case addr.IsValid():
		return p.CoversAddr(addr)
	default:
		return p.CoversName(name)
	}
}

func hostMatches(operands []*ast.Term) (ast.Value, error) {
	host, pattern, err := twoTexts(operands)
	if err != nil {
		return nil, err
	}
	p, err := hostPattern(pattern)
	if err != nil {
		return nil, err
	}
	return ast.Boolean(covers(p, host)), nil
}

func hostCanonical(operands []*ast.Term) (ast.Value, error) {
	host, err := text(operands[0])
	if err != nil {
		return nil, err
	}
	name, addr, err := policy.ParseHost(host)
	if err != nil {
		return nil, err
	}
	if addr.IsValid() {
		name = addr.String()
	}
	return ast.String(name), nil
}

// address parses an address. An invalid address is an error, so that the rule "not net.contains" fails for
// a name instead of holding.
func address(t *ast.Term) (netip.Addr, error) {
	s, err := text(t)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address", s)
	}
	return addr.Unmap(), nil
}

func prefix(t *ast.Term) (netip.Prefix, error) {
	s, err := text(t)
	if err != nil {
		return netip.Prefix{}, err
	}
	p, err := policy.ParsePattern(s)
	if err != nil || !p.IsAddress() || strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1 {
		return netip.Prefix{}, fmt.Errorf("%q is not an address or a prefix without host bits", s)
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

func netClass(operands []*ast.Term) (ast.Value, error) {
	addr, err := address(operands[0])
	if err != nil {
		return nil, err
	}
	return ast.String(className(policy.ClassOf(addr))), nil
}

// className returns the class in the form that policies see. The empty class is "public", because an empty
// string is easily mistaken for a missing value.
func className(class policy.AddressClass) string {
	if class == "" {
		return "public"
	}
	return string(class)
}

func prefixAndAddress(operands []*ast.Term) (p netip.Prefix, addr netip.Addr, err error) {
	if p, err = prefix(operands[0]); err == nil {
		addr, err = address(operands[1])
	}
	return p, addr, err
}

func netContains(operands []*ast.Term) (ast.Value, error) {
	p, addr, err := prefixAndAddress(operands)
	return ast.Boolean(err == nil && p.Contains(addr)), err
}

// netAny reports whether one of the prefixes contains one of the addresses. An invalid prefix or address
// is always an error.
func netAny(operands []*ast.Term) (ast.Value, error) {
	prefixes, err := each(operands[0], prefix)
	if err != nil {
		return nil, err
	}
	addresses, err := each(operands[1], address)
	if err != nil {
		return nil, err
	}
	return ast.Boolean(slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return slices.ContainsFunc(addresses, p.Contains) })), nil
}

func each[T any](list *ast.Term, read func(*ast.Term) (T, error)) (all []T, err error) {
	add := func(t *ast.Term) bool {
		var one T
		one, err = read(t)
		all = append(all, one)
		return err != nil
	}
	switch list := list.Value.(type) {
	case ast.Set:
		list.Until(add)
	case *ast.Array:
		list.Until(add)
	default:
		return nil, fmt.Errorf("it wants a set or an array, not %s", ast.ValueName(list))
	}
	return all, err
}

// netReaches is like netContains, but also checks the IPv4 address embedded in an IPv6 address.
func netReaches(operands []*ast.Term) (ast.Value, error) {
	p, addr, err := prefixAndAddress(operands)
	if err != nil {
		return nil, err
	}
	v4 := policy.EmbeddedIPv4(addr)
	return ast.Boolean(p.Contains(addr) || v4.IsValid() && p.Contains(v4)), nil
}

func pathMatches(operands []*ast.Term) (ast.Value, error) {
	path, pattern, err := twoTexts(operands)
	if err != nil {
		return nil, err
	}
	matches, err := policy.PathMatches(path, pattern)
	return ast.Boolean(matches), err
}
