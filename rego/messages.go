package rego

import (
	"errors"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
)

// isV0 reports whether a module has the syntax of Rego before OPA 1.0.
func isV0(s Source) bool {
	_, err := ast.ParseModuleWithOpts(s.Name, string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV0})
	return err == nil
}

// oldSyntax is the problem with such a module, at the place of its first error as a module of today.
func oldSyntax(name string, err error) policy.Problem {
	p := problemsOf(name, err)[0]
	p.Message = "this is Rego v0, which OPA 1.0 and egressd do not read; type: egressd policy fmt --rewrite-v0 -w " + shell.Word(name)
	return p
}

func problemsOf(name string, err error) (problems policy.FileError) {
	var several ast.Errors
	if !errors.As(err, &several) {
		return policy.FileError{{File: name, Line: 1, Column: 1, Message: err.Error()}}
	}
	for _, one := range several {
		problems = append(problems, problemAt(one.Location, message(one)))
	}
	return problems
}

func problemAt(at *ast.Location, text string) policy.Problem {
	if at == nil {
		return policy.Problem{Line: 1, Column: 1, Message: text}
	}
	return policy.Problem{File: at.File, Line: max(at.Row, 1), Column: max(at.Col, 1), Message: text}
}

// message returns OPA's message and details on one line, without markers.
func message(err *ast.Error) string {
	text := err.Message
	if name, ok := strings.CutPrefix(text, "undefined function "); ok {
		text += "; " + aboutMissing(name)
	}
	if name, ok := strings.CutPrefix(text, "deprecated built-in function calls in expression: "); ok && replacements[name] != "" {
		text += "; write: " + replacements[name]
	}
	if name, ok := strings.CutPrefix(text, "undefined ref: input."); ok {
		if says := otherInput(name); says != "" {
			return text + "; " + says
		}
	}
	if err.Details == nil {
		return strings.Join(strings.Fields(text), " ")
	}
	for _, line := range err.Details.Lines() {
		if line = strings.TrimSpace(line); strings.Trim(line, "^") != "" && !strings.HasSuffix(text, line) {
			text += "; " + line
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

// replacements are what to write for built-ins that OPA has given up. The map is never written.
var replacements = map[string]string{
	"any": "true in LIST", "all": "every x in LIST { x }", "re_match": "regex.match", "set_diff": "a - b",
	"net.cidr_overlap": "net.cidr_contains", "cast_array": "[x | some x in SET]", "cast_set": "{x | some x in LIST}",
}

// otherInput returns a hint for a field of another tool's input, or "".
func otherInput(name string) string {
	first, _, _ := strings.Cut(name, ".")
	first, _, _ = strings.Cut(first, "[")
	switch first {
	case "attributes", "parsed_path", "parsed_query", "parsed_body", "truncated_body":
		return "that is Envoy's input; write input.http.method, .path, .query or .headers, and input.destination.host"
	case "review", "parameters":
		return "that is Gatekeeper's input, about objects of Kubernetes; egressd decides connections and requests: input.destination and input.http"
	case "kind", "spec", "metadata", "resource_changes", "planned_values", "configuration", "resource":
		return "that is a file as conftest reads it; egressd decides connections and requests: input.destination and input.http"
	case "host", "hostname", "domain", "dest", "dst", "dest_host", "server", "destination_host":
		return "write input.destination.host"
	case "port", "dest_port", "dst_port":
		return "write input.destination.port"
	case "ip", "dest_ip", "dst_ip", "address":
		return "write input.destination.addresses, a list"
	case "method", "path", "query", "headers":
		return "write input.http." + name
	case "url", "uri":
		return "write input.destination.host and input.http.path"
	case "request":
		return "write input.http.method, .path, .query or .headers"
	case "user", "subject", "principal", "identity", "client", "source", "agent", "workload":
		return "write input.sandbox.name, .kind or .labels: who asks"
	case "command", "program":
		return "write input.process.exe or .argv"
	}
	return ""
}

// aboutMissing says what to write in place of a function that does not exist.
func aboutMissing(name string) string {
	if slices.ContainsFunc(ast.Builtins, func(b *ast.Builtin) bool { return b.Name == name }) {
		return "egressd leaves out this built-in of OPA, since it reaches outside, is random or takes too long: give the policy data in its place"
	}
	return "write a function of this name, or import the package that has it"
}
