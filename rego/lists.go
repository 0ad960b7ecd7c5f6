package rego

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
)

// A hostList is a compiled list of host patterns. The lookup time does not depend on its length.
type hostList struct {
	everything bool
	exact      map[string]struct{}
	below      map[string]struct{}
	labels     map[string]struct{} // patterns with a star within the first label
	parents    map[string]struct{} // below which labels has any
	prefixes   map[netip.Prefix]struct{}
	lengths    [129]bool // prefix lengths in use
}

func compileList(values ast.Value) (*hostList, error) {
	l := &hostList{
		exact: map[string]struct{}{}, below: map[string]struct{}{}, labels: map[string]struct{}{}, parents: map[string]struct{}{},
		prefixes: map[netip.Prefix]struct{}{},
	}
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
	case !p.OneHost():
		_, parent, _ := strings.Cut(canonical, ".")
		l.labels[canonical], l.parents[parent] = struct{}{}, struct{}{}
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

// has reports whether a pattern covers the host. No list has an invalid host.
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
	if label, parent, _ := strings.Cut(name, "."); l.hasLabel(label, parent) {
		return true
	}
	for _, rest, more := strings.Cut(name, "."); more; _, rest, more = strings.Cut(rest, ".") {
		if _, ok := l.below[rest]; ok {
			return true
		}
	}
	return false
}

// hasLabel reports whether a pattern with a star within its first label covers label.parent.
func (l *hostList) hasLabel(label, parent string) bool {
	if _, ok := l.parents[parent]; !ok {
		return false
	}
	texts := []string{"*{1}." + parent}
	for n := range len(label) {
		texts = append(texts, label[:n+1]+"*."+parent, "*"+label[n:]+"."+parent)
	}
	return slices.ContainsFunc(texts, func(text string) bool {
		_, ok := l.labels[text]
		return ok
	})
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
	// minCached is the minimum length of a list to cache its compiled form.
	minCached = 4

	// maxLists is the maximum number of cached lists. A policy has few lists, but an evaluation may create
	// new ones each time.
	maxLists = 64
)

// compiledLists caches the compiled lists of a policy.
type compiledLists struct {
	hosts listCache[*hostList]
	paths listCache[*pathList]
}

func newCompiledLists() *compiledLists {
	return &compiledLists{
		hosts: listCache[*hostList]{compile: compileList, lists: map[ast.Value]*hostList{}},
		paths: listCache[*pathList]{compile: compilePaths, lists: map[ast.Value]*pathList{}},
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

// A listCache caches compiled lists by identity, since Rego values never change.
type listCache[L any] struct {
	compile func(ast.Value) (L, error)

	mu    sync.RWMutex // guards lists
	lists map[ast.Value]L
}

func (k *listCache[L]) of(list ast.Value) (L, error) {
	if length(list) < minCached {
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

// A pathList is a list of path patterns by their leading literal segments. A path is compared only with
// patterns that share its beginning.
type pathList struct {
	under map[string][]string
}

// compilePaths compiles a list. An invalid pattern is always an error.
func compilePaths(values ast.Value) (*pathList, error) {
	patterns, err := each(ast.NewTerm(values), text)
	if err != nil {
		return nil, err
	}
	l := &pathList{under: make(map[string][]string, len(patterns))}
	for _, pattern := range patterns {
		if _, err := policy.PathMatches("/", pattern); err != nil {
			return nil, err
		}
		begin := literalBegin(pattern)
		l.under[begin] = append(l.under[begin], pattern)
	}
	return l, nil
}

// literalBegin returns the segments of a pattern before the first "*".
func literalBegin(pattern string) string {
	star := strings.IndexByte(pattern, '*')
	if star < 0 {
		return pattern
	}
	return pattern[:strings.LastIndexByte(pattern[:star], '/')]
}

func (l *pathList) has(path string) (held bool, err error) {
	for end := 0; end <= len(path); end++ {
		if end < len(path) && path[end] != '/' {
			continue
		}
		for _, pattern := range l.under[path[:end]] {
			if held, err = policy.PathMatches(path, pattern); held || err != nil {
				return held, err
			}
		}
	}
	return false, nil
}

// pathAny reports whether one of the patterns matches.
func (c *compiledLists) pathAny(operands []*ast.Term) (ast.Value, error) {
	path, err := text(operands[0])
	if err != nil {
		return nil, err
	}
	l, err := c.paths.of(operands[1].Value)
	if err != nil {
		return nil, err
	}
	held, err := l.has(path)
	return ast.Boolean(held), err
}
