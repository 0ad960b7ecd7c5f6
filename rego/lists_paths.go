package rego

import (
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// A pathList is a list of patterns of paths by the whole segments that each begins
// with: a path is compared with those alone that begin as it does.
type pathList struct {
	under map[string][]string
}

// compilePaths reads a list. One that is no pattern is an error, whatever the others
// are.
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

// literalBegin returns the segments of a pattern before the first with a "*".
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

// pathAny holds where one of the patterns does.
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
