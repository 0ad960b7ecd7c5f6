package rego

import (
	"net/netip"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// authBridgeShape is what the OPA plugin of AuthBridge, the proxy beside agents of
// Kagenti, gives to policies about what an agent sends out. What AuthBridge finds
// in bodies and in tokens is not known here.
var authBridgeShape = shape{
	schema: "schema/authbridge.json",
	asked:  []string{"authbridge.outbound.request"},
	parts: []shapePart{
		{"direction", readsVersion}, // always the same
		{"method", readsMethod},
		{"path", readsPath},
		{"host", readsHost | readsPort | readsVia},
		{"headers", readsHeaders},
		{"agent", readsSandboxName},
	},
	input:  authBridgeInput,
	answer: authBridgeAnswer,
	allows: "allow",
}

func authBridgeInput(r *policy.Request, _ netip.Addr) (*ast.Term, error) {
	return object{
		{ast.StringTerm("direction"), ast.StringTerm("outbound")},
		{keyMethod, ast.StringTerm(r.HTTP.Method)},
		{keyPath, ast.StringTerm(r.HTTP.Path)},
		{keyHost, ast.StringTerm(authority(r))},
		{keyHeaders, flatHeaders(r.HTTP.Header).term()},
		{ast.StringTerm("agent"), textsOf("client_id", r.Sandbox.Name)},
	}.term(), nil
}

// authBridgeAnswer reads true, false, or an object with "allow", and perhaps a
// "reason".
func authBridgeAnswer(t *ast.Term) (answer, error) {
	allowed, object, err := allowedBy(t, "allow")
	return answer{allowed, sentenceAt(object, "reason")}, err
}
