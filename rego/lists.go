package rego

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// A hostList is a list of patterns in the shape in which it is asked: the time
// that takes does not grow with the list.
type hostList struct {
	everything bool
	exact      map[string]struct{}
	below      map[string]struct{}
	prefixes   map[netip.Prefix]struct{}
	lengths    [129]bool // of the prefixes
}

func compileList(values ast.Value) (*hostList, error) {
	l := &hostList{exact: map[string]struct{}{}, below: map[string]struct{}{}, prefixes: map[netip.Prefix]struct{}{}}
	var problem error
	add := func(t *ast.Term) bool {
		s, err := text(t)
		if err == nil {
			err = l.add(s)
		}
		problem = err
		return err != nil
	}
	switch list := values.(type) {
	case ast.Set:
		list.Until(add)
	case *ast.Array:
		list.Until(add)
	default:
		problem = fmt.Errorf("it wants a set or an array of patterns, not %s", ast.ValueName(values))
	}
	return l, problem
}

func (l *hostList) add(text string) error {
	p, err := hostPattern(text)
	if err != nil {
		return err
	}
	canonical := p.String()
	suffix, below := strings.CutPrefix(canonical, "*.")
	switch {
	case canonical == "*":
		l.everything = true
	case below:
		l.below[suffix] = struct{}{}
	case p.IsAddress():
		return l.addPrefix(canonical)
	default:
		l.exact[canonical] = struct{}{}
	}
	return nil
}

func (l *hostList) addPrefix(text string) error {
	p, err := prefix(ast.StringTerm(text))
	if err != nil {
		return err
	}
	l.prefixes[p] = struct{}{}
	l.lengths[p.Bits()] = true
	return nil
}

// has reports whether a pattern of the list holds the host. What is no host is in
// no list.
func (l *hostList) has(host string) bool {
	name, addr, err := policy.ParseHost(host)
	switch {
	case err != nil:
		return false
	case l.everything:
		return true
	case addr.IsValid():
		return l.hasAddr(addr)
	}
	if _, ok := l.exact[name]; ok {
		return true
	}
	for _, rest, more := strings.Cut(name, "."); more; _, rest, more = strings.Cut(rest, ".") {
		if _, ok := l.below[rest]; ok {
			return true
		}
	}
	return false
}

func (l *hostList) hasAddr(addr netip.Addr) bool {
	for bits := addr.BitLen(); bits >= 0; bits-- {
		if !l.lengths[bits] {
			continue
		}
		p, err := addr.Prefix(bits)
		if err != nil {
			return false
		}
		if _, ok := l.prefixes[p]; ok {
			return true
		}
	}
	return false
}

const (
	// worthKeeping is how long a list has to be for its compiled form to be kept.
	worthKeeping = 4

	// maxLists is how many compiled lists are kept. A policy has few; lists that an
	// evaluation makes anew each time push each other out.
	maxLists = 64
)

// compiledLists keeps the compiled form of the lists of a policy.
type compiledLists struct {
	hosts keptLists[*hostList]
	paths keptLists[*pathList]
}

func newCompiledLists() *compiledLists {
	return &compiledLists{
		hosts: keptLists[*hostList]{compile: compileList, lists: map[ast.Value]*hostList{}},
		paths: keptLists[*pathList]{compile: compilePaths, lists: map[ast.Value]*pathList{}},
	}
}

func (c *compiledLists) hostAny(operands []*ast.Term) (ast.Value, error) {
	host, err := text(operands[0])
	if err != nil {
		return nil, err
	}
	l, err := c.hosts.of(operands[1].Value)
	if err != nil {
		return nil, err
	}
	return ast.Boolean(l.has(host)), nil
}

// keptLists keeps compiled lists. A value of Rego never changes, so that its identity
// is enough to know it again.
type keptLists[L any] struct {
	compile func(ast.Value) (L, error)

	mu    sync.RWMutex // guards lists
	lists map[ast.Value]L
}

func (k *keptLists[L]) of(list ast.Value) (L, error) {
	if length(list) < worthKeeping {
		return k.compile(list)
	}
	k.mu.RLock()
	l, found := k.lists[list]
	k.mu.RUnlock()
	if found {
		return l, nil
	}
	l, err := k.compile(list)
	if err != nil {
		return l, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.lists) >= maxLists {
		clear(k.lists)
	}
	k.lists[list] = l
	return l, nil
}

func length(list ast.Value) int {
	switch list := list.(type) {
	case ast.Set:
		return list.Len()
	case *ast.Array:
		return list.Len()
	}
	return 0
}
