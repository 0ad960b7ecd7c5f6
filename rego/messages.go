package rego

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/internal/spelling"
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

// message returns OPA's message on one line, and what to write.
func message(err *ast.Error) string {
	text := err.Message
	if name, ok := strings.CutPrefix(text, "undefined function "); ok {
		text += "; " + aboutMissing(name)
	}
	if name, ok := strings.CutPrefix(text, "deprecated built-in function calls in expression: "); ok && replacements[name] != "" {
		text += "; write: " + replacements[name]
	}
	if name, ok := strings.CutPrefix(text, "var "); ok && err.Code == ast.UnsafeVarErr {
		text += "; " + aboutUnsafe(strings.TrimSuffix(name, " is unsafe"))
	}
	switch details := err.Details.(type) {
	case nil:
	case *ast.RefErrInvalidDetail:
		if name, ok := strings.CutPrefix(text, "undefined ref: input."); ok {
			return text + "; " + cmp.Or(otherInput(name), otherField(details))
		}
		text += "; " + otherKey(details)
	case *ast.UnificationErrDetail:
		text = neverEqual(details.Left, details.Right)
	default:
		for _, line := range err.Details.Lines() {
			if line = strings.TrimSpace(line); strings.Trim(line, "^") != "" && !strings.HasSuffix(text, line) {
				text += "; " + line
			}
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

// otherField says which fields there are in place of one that is not.
func otherField(d *ast.RefErrInvalidDetail) string {
	parent := d.Ref[:d.Pos].String()
	var names []string
	for _, v := range d.OneOf {
		if name, ok := v.(ast.String); ok {
			names = append(names, string(name))
		}
	}
	wrong, isName := d.Ref[d.Pos].Value.(ast.String)
	if len(names) == 0 || !isName {
		return parent + " has no members"
	}
	near := slices.MinFunc(names, func(a, b string) int {
		return cmp.Compare(spelling.Distance(string(wrong), a), spelling.Distance(string(wrong), b))
	})
	if d := spelling.Distance(string(wrong), near); 3*d <= len(wrong) {
		return fmt.Sprintf("did you mean %s.%s?", parent, near)
	}
	if parent == "input" {
		return "that is the input of another program; egressd decides connections and requests: input.destination, .http, .tls, .dns, .sandbox, .process, .usage, .via, .stage and .time"
	}
	return fmt.Sprintf("%s has %s", parent, strings.Join(names, ", "))
}

// otherKey says what is wrong with a key of a list or of an object.
func otherKey(d *ast.RefErrInvalidDetail) string {
	switch {
	case d.Want != nil && types.Compare(d.Want, types.N) == 0:
		return "a list has numbers for keys; write VALUE in LIST"
	case d.Have != nil && types.Compare(d.Have, types.N) == 0:
		return "its keys are texts and never a number; write them without quotes"
	}
	return "it has no such key"
}

// neverEqual says what is wrong with a comparison of two types.
func neverEqual(left, right types.Type) string {
	for _, pair := range [][2]types.Type{{left, right}, {right, left}} {
		a, b := pair[0], pair[1]
		list, isList := a.(*types.Array)
		switch {
		case types.Compare(a, types.N) == 0 && types.Compare(b, types.S) == 0:
			return "a number never equals a text; write the number without quotes, as in input.destination.port == 443"
		case isList && types.Compare(b, types.S) == 0 && list.Len() == 0:
			return `a list never equals a text; write "TEXT" in LIST`
		case isList && types.Compare(b, types.S) == 0:
			return `a text never equals a list; write one text, as in input.http.path == "/v1/models"`
		}
	}
	return fmt.Sprintf("these are never equal: the left side is of type %s, the right side of type %s; compare values of one type", types.Sprint(left), types.Sprint(right))
}

// aboutUnsafe says what to write for a variable that has no value.
func aboutUnsafe(name string) string {
	if strings.HasPrefix(name, "_") {
		return `it has no value below "not" or in a head; write: not "TEXT" in LIST`
	}
	return fmt.Sprintf("nothing gives it a value; write %q if it is a text, or: some %s in LIST", name, name)
}

// replacements are what to write for built-ins that OPA has given up. The map is never written.
var replacements = map[string]string{
	"any": "true in LIST", "all": "every x in LIST { x }", "re_match": "regex.match", "set_diff": "a - b",
	"net.cidr_overlap": "net.cidr_contains", "cast_array": "[x | some x in SET]", "cast_set": "{x | some x in LIST}",
}

// otherInput returns a hint for a field that is named otherwise here, or that another tool has, or "".
func otherInput(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return strings.ContainsRune(`.[]"`, c) })
	if len(words) > 1 {
		switch words[0] {
		case "destination", "http", "process", "sandbox", "tls":
			return hints[words[0]+"."+words[1]]
		}
	}
	if len(words) == 0 {
		return ""
	}
	return hints[words[0]]
}

const (
	ofHost      = "write input.destination.host"
	ofPort      = "write input.destination.port"
	ofAddresses = "write input.destination.addresses, a list"
	ofURL       = "write input.destination.host and input.http.path"
	ofRequest   = "write input.http.method, .path, .query or .headers"
	ofCaller    = "write input.sandbox.name, .kind or .labels: who asks"
	ofProgram   = "write input.process.exe or .argv"
	ofScheme    = "compare input.destination.port, such as 443, in place of a scheme"
	ofEnvoy     = "that is Envoy's input; write input.http.method, .path, .query or .headers, and input.destination.host"
	ofKeeper    = "that is Gatekeeper's input, about objects of Kubernetes; egressd decides connections and requests: input.destination and input.http"
	ofFile      = "that is a file as conftest reads it; egressd decides connections and requests: input.destination and input.http"
	ofTool      = "that is a call of a tool; egressd decides connections and requests: input.destination and input.http"
	ofBody      = "write input.http.body, which is there if the body is JSON"
)

// hints are by the name of a field in lower case. The map is never written.
var hints = map[string]string{
	"attributes": ofEnvoy, "parsed_path": ofEnvoy, "parsed_query": ofEnvoy, "parsed_body": ofEnvoy, "truncated_body": ofEnvoy,
	"review": ofKeeper, "parameters": ofKeeper,
	"kind": ofFile, "spec": ofFile, "metadata": ofFile, "resource_changes": ofFile, "planned_values": ofFile, "configuration": ofFile, "resource": ofFile,
	"tool": ofTool, "tool_name": ofTool, "mcp": ofTool, "arguments": ofTool, "args": ofTool,
	"host": ofHost, "hostname": ofHost, "domain": ofHost, "dest": ofHost, "dst": ofHost, "dest_host": ofHost, "server": ofHost,
	"destination_host": ofHost, "target": ofHost, "target_host": ofHost, "authority": ofHost, "server_name": ofHost, "fqdn": ofHost,
	"destination.domain": ofHost, "destination.name": ofHost, "destination.hostname": ofHost, "destination.fqdn": ofHost,
	"http.host": ofHost, "http.authority": ofHost, "http.hostname": ofHost,
	"port": ofPort, "dest_port": ofPort, "dst_port": ofPort, "destination_port": ofPort, "http.port": ofPort,
	"ip": ofAddresses, "dest_ip": ofAddresses, "dst_ip": ofAddresses, "address": ofAddresses, "destination_ip": ofAddresses,
	"destination.ip": ofAddresses, "destination.ips": ofAddresses, "destination.address": ofAddresses, "destination.addr": ofAddresses,
	"method": "write input.http.method", "path": "write input.http.path", "query": "write input.http.query", "headers": "write input.http.headers",
	"http.header": "write input.http.headers", "http.params": "write input.http.query", "http.user_agent": `write input.http.headers["user-agent"], a list`,
	"url": ofURL, "uri": ofURL, "http.url": ofURL, "http.uri": ofURL, "destination.url": ofURL,
	"request": ofRequest,
	"user":    ofCaller, "subject": ofCaller, "principal": ofCaller, "identity": ofCaller, "client": ofCaller, "source": ofCaller,
	"agent": ofCaller, "workload": ofCaller, "role": ofCaller, "roles": ofCaller, "groups": ofCaller, "token": ofCaller, "client_ip": ofCaller, "source_ip": ofCaller,
	"sandbox.id": "write input.sandbox.name", "sandbox.user": "write input.sandbox.name", "sandbox.tags": "write input.sandbox.labels",
	"command": ofProgram, "program": ofProgram,
	"process.args": "write input.process.argv", "process.command": "write input.process.argv", "process.cmdline": "write input.process.argv",
	"process.name": "write input.process.exe", "process.path": "write input.process.exe", "process.executable": "write input.process.exe",
	"protocol": ofScheme, "scheme": ofScheme, "destination.protocol": ofScheme, "destination.scheme": ofScheme, "http.scheme": ofScheme, "http.protocol": ofScheme,
	"body": ofBody, "http.raw_body": ofBody, "http.parsed_body": ofBody,
	"tls.server_name": "write input.tls.sni", "sni": "write input.tls.sni",
	"now": "write input.time, or time.now_ns()", "hour": "write time.between(time.now_ns(), ZONE, \"08:00\", \"18:00\")",
}

// aboutMissing says what to write in place of a function that does not exist.
func aboutMissing(name string) string {
	if instead := withheld[name]; instead != "" {
		return "egressd leaves out this built-in of OPA; " + instead
	}
	if slices.ContainsFunc(ast.Builtins, func(b *ast.Builtin) bool { return b.Name == name }) {
		return "egressd leaves out this built-in of OPA; " + giveData
	}
	if path, ok := strings.CutPrefix(name, "data."); ok {
		if i := strings.LastIndexByte(path, '.'); i > 0 {
			return fmt.Sprintf("no file here has it; name the file with package %s in rego, too", path[:i])
		}
	}
	return "write a function of this name, or import the package that has it"
}
