package rego

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// sealed returns what a policy may use of the language: every built-in but those
// that reach outside, depend on chance or on a clock that is not the request's, or
// can run for long without being interrupted.
func sealed() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(slices.Clone(c.Builtins), func(b *ast.Builtin) bool { return !keeps(b) })
	c.AllowNet = []string{} // nil would be any host
	return c
}

func keeps(b *ast.Builtin) bool {
	switch b.Name {
	case "time.now_ns":
		return true // the time of the request, see [Evaluator.ask]
	case "http.send", "net.lookup_ip_addr", "opa.runtime", "trace", "rego.parse_module", "providers.aws.sign_req":
		return false
	case "crypto.x509.parse_and_verify_certificates", "crypto.x509.parse_and_verify_certificates_with_options":
		return false // by the clock of the machine
	case "graph.reachable_paths":
		return false // takes exponential time in one step
	case "strings.render_template":
		return false // a second language, without a deadline
	}
	return !b.Nondeterministic && !strings.HasPrefix(b.Name, "graphql.")
}
