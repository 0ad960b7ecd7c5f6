package rego

import (
	"net/netip"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// authBridgeShape is the input of the OPA plugin of AuthBridge, Kagenti's proxy for the outbound requests
// of agents. It lacks the data that AuthBridge reads from bodies and tokens.
var authBridgeShape = foreignShape{
	schema:    "schema/authbridge.json",
	decisions: []string{"authbridge.outbound.request"},
	parts: []shapePart{
		{"direction", readsVersion}, // constant
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
	return inputObject{
		{ast.StringTerm("direction"), ast.StringTerm("outbound")},
		{keyMethod, ast.StringTerm(r.HTTP.Method)},
		{keyPath, ast.StringTerm(r.HTTP.Path)},
		{keyHost, ast.StringTerm(authority(r))},
		{keyHeaders, flatHeaders(r.HTTP.Header).term()},
		{ast.StringTerm("agent"), textsOf("client_id", r.Sandbox.Name)},
	}.term(), nil
}

// authBridgeAnswer reads true, false, or an object with "allow" and an optional "reason".
func authBridgeAnswer(t *ast.Term) (answer, error) {
	allowed, object, err := allowedBy(t, "allow")
	return answer{allowed, sentenceAt(object, "reason")}, err
}
