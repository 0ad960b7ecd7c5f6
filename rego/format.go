package rego

import (
	"errors"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"

	"github.com/egressd/egressd/policy"
)

// Format returns a module in the one layout that "opa fmt" gives it too. The error
// is a [policy.FileError].
func Format(s Source) ([]byte, error) {
	parsing := ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1}
	text, err := format.SourceWithOpts(s.Name, s.Text, format.Opts{RegoVersion: ast.RegoV1, ParserOptions: &parsing})
	var problems ast.Errors
	switch {
	case errors.As(err, &problems):
		return nil, problemsOf(s.Name, problems)
	case err != nil:
		return nil, policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: err.Error()}}
	}
	return text, nil
}
