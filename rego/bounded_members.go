package rego

import (
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// members turns a number of members into the bytes that a [bound] counts in.
func members(n int) int { return saturated(n, maxMade/maxMembers) }

// unmarshalled counts the text, and what could begin a member in it.
func unmarshalled(operands []*ast.Term) int {
	text, _ := operands[0].Value.(ast.String)
	n := 0
	for i := range len(text) {
		switch text[i] {
		case ',', '[', '{', ':', '\n', '-':
			n++
		}
	}
	return len(text) + members(n)
}

// encoded counts as many bytes as a byte may become, at most.
func encoded(operands []*ast.Term) int { return saturated(3, size(operands[0])) }

func appended(operands []*ast.Term) int { return members(width(operands[0]) + width(operands[1])) }

// flattened counts the members of the members.
func flattened(operands []*ast.Term) int {
	total := 0
	if list, ok := operands[0].Value.(*ast.Array); ok {
		list.Foreach(func(t *ast.Term) { total += 1 + width(t) })
	}
	return members(total)
}

// width is how many members a value has.
func width(t *ast.Term) int {
	if object, ok := t.Value.(ast.Object); ok {
		return object.Len()
	}
	return length(t.Value)
}

// crossed counts the pairs that are compared. What is no list is one.
func crossed(operands []*ast.Term) int {
	return members(saturated(max(width(operands[0]), 1), max(width(operands[1]), 1)))
}

// multiplied counts digits.
func multiplied(operands []*ast.Term) int {
	digits := 0
	add := func(t *ast.Term) {
		n, _ := t.Value.(ast.Number)
		digits += len(n)
	}
	switch list := operands[0].Value.(type) {
	case ast.Set:
		list.Foreach(add)
	case *ast.Array:
		list.Foreach(add)
	}
	return saturated(digits, maxMade/maxDigits)
}

// divided counts the parts of a text.
func divided(operands []*ast.Term) int {
	text, _ := operands[0].Value.(ast.String)
	separator, _ := operands[1].Value.(ast.String)
	return members(strings.Count(string(text), string(separator)))
}

// found counts a match at each byte of a text, or as many as are asked for, with each of its groups.
func found(operands []*ast.Term) int {
	pattern, _ := operands[0].Value.(ast.String)
	most := -1
	if len(operands) > 2 {
		most = atMost(operands[2])
	}
	matches := size(operands[1]) + 1
	if most >= 0 {
		matches = min(matches, most)
	}
	return members(saturated(matches, 1+strings.Count(string(pattern), "("))) + searched(operands[0], operands[1], most)
}

// atMost is how many matches are asked for, or less than none for all of them.
func atMost(t *ast.Term) int {
	number, _ := t.Value.(ast.Number)
	if n, ok := number.Int(); ok {
		return n
	}
	return -1
}

// interpolated counts what each part of a string prints.
func interpolated(operands []*ast.Term) int {
	total := 0
	if parts, ok := operands[0].Value.(*ast.Array); ok {
		parts.Foreach(func(t *ast.Term) { total += marshalled([]*ast.Term{t}) })
	}
	return total
}
