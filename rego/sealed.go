package rego

import (
	"errors"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
)

// sealed returns the capabilities of a policy. They lack built-ins that reach outside, use random numbers
// or the system clock, or run for long without interruption.
func sealed() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(slices.Clone(c.Builtins), func(b *ast.Builtin) bool { return !keeps(b) })
	c.AllowNet = []string{} // nil would allow any host
	return c
}

func keeps(b *ast.Builtin) bool {
	switch b.Name {
	case "time.now_ns":
		return true // returns the time of the request, see [Evaluator.ask]
	case "http.send", "net.lookup_ip_addr", "opa.runtime", "trace", "rego.parse_module", "providers.aws.sign_req":
		return false
	case "crypto.x509.parse_and_verify_certificates", "crypto.x509.parse_and_verify_certificates_with_options":
		return false // uses the system clock
	case "graph.reachable_paths", "regex.globs_match":
		return false // takes exponential time in one step
	case "strings.render_template":
		return false // a second language without a deadline
	}
	return !b.Nondeterministic && !strings.HasPrefix(b.Name, "graphql.")
}

// Format returns a module in the layout of "opa fmt". The error is a [policy.FileError].
func Format(s Source) ([]byte, error) {
	return formatted(s, ast.RegoV1)
}

// Rewrite lays a module out as [Format] does, and rewrites one of Rego v0 first. A module of today stays as it is.
func Rewrite(s Source) ([]byte, error) {
	if text, err := Format(s); err == nil || !isV0(s) {
		return text, err
	}
	text, err := formatted(s, ast.RegoV0)
	if err != nil {
		return nil, err
	}
	return Format(Source{Name: s.Name, Text: text}) // it has to be one of today
}

func formatted(s Source, from ast.RegoVersion) ([]byte, error) {
	parsing := ast.ParserOptions{Capabilities: sealed(), RegoVersion: from}
	text, err := format.SourceWithOpts(s.Name, s.Text, format.Opts{RegoVersion: ast.RegoV1, ParserOptions: &parsing, DropRedundantDirectiveImports: from == ast.RegoV0})
	var problems ast.Errors
	switch {
	case errors.As(err, &problems):
		return nil, problemsOf(s.Name, problems)
	case err != nil:
		return nil, policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: err.Error()}}
	}
	return text, nil
}
