// Package rego decides by policies that are written in Rego. It is the only
// package that knows OPA, and no type of OPA leaves it.
//
// A policy is sealed: it sees its input and its data and nothing else, it cannot
// reach the network, the environment or chance, a field that does not exist is an
// error when it is loaded, and an evaluation has a deadline. What fails, conflicts, or
// answers in a wrong shape is an error, which [policy.Policy] counts as a denial.
//
//	e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: text}}, rego.Options{Layer: policy.Organisation})
//	d, err := e.Evaluate(ctx, &request)
package rego
