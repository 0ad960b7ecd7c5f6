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

// withheld are the built-ins of OPA that policies lack, and what to write in their place. Some reach outside, or are not the same
// each time. Others take long or make much in one step, which no deadline interrupts; a bound for a built-in
// that hardly any policy uses is not worth its code.
var withheld = map[string]string{
	"http.send":               giveData,
	"net.lookup_ip_addr":      "since it reaches outside, read input.destination.addresses, which egressd resolved",
	"opa.runtime":             giveData,
	"trace":                   "write print",
	"rego.parse_module":       giveData,
	"providers.aws.sign_req":  "have egressd add the credential (inject)",
	"graph.reachable_paths":   "write graph.reachable",
	"regex.globs_match":       "write glob.match, or host.matches",
	"regex.template_match":    "write regex.match, or path.matches",
	"regex.is_valid":          "leave it out: egressd policy check names patterns that are none",
	"strings.render_template": "write sprintf, or a template string",
	"strings.replace_n":       "write replace once for each text",
	"bits.lsh":                "multiply by the power of two",
	"product":                 "multiply the numbers: a * b",

	// These two use the system clock.
	"crypto.x509.parse_and_verify_certificates":              "write crypto.x509.parse_certificates",
	"crypto.x509.parse_and_verify_certificates_with_options": "write crypto.x509.parse_certificates",
}

const giveData = "since it reaches outside or is random, give the policy data in its place"

func keeps(b *ast.Builtin) bool {
	if b.Name == "time.now_ns" { // returns the time of the request, see [Evaluator.ask]
		return true
	}
	return withheld[b.Name] == "" && !b.Nondeterministic && !strings.HasPrefix(b.Name, "graphql.")
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
