package policy

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/strictjson"
)

// An MCPRule is met by messages of the Model Context Protocol over streamable HTTP that call nothing else than what it lists.
// Messages that only open, list and keep a session are among them. The body decides, and the Mcp-* fields have to agree with
// it. Names compare byte for byte; "*" stands for text without "/" and ".", "**" for any text.
type MCPRule struct {
	Tools     []string // of tools/call
	Resources []string // URIs of resources/read, resources/subscribe and resources/unsubscribe
	Prompts   []string // of prompts/get
	Methods   []string // that pass besides, whatever they say
	Versions  []string // of the protocol; empty: any
}

// latestMCP is the version from which on the Mcp-* fields are required (SEP-2243).
const latestMCP = "2026-07-28"

// mcpPlain are methods that carry nothing that a rule has to list.
var mcpPlain = []string{
	"initialize", "server/discover", "ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "subscriptions/listen",
}

// CheckMCPMethod returns an error for a method that a rule cannot let pass as a whole.
func CheckMCPMethod(method string) error {
	switch key := mcpCalls[method]; {
	case key != "":
		return fmt.Errorf("%s is let pass by the names of what it calls; write them under %s", method, key)
	case slices.Contains(mcpPlain, method) || strings.HasPrefix(method, "notifications/"):
		return fmt.Errorf("%s passes by itself; leave it out", method)
	case method == "" || len(method) > 128 || strings.ContainsFunc(method, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		return fmt.Errorf("%q is not a method of MCP; write it like completion/complete", method)
	}
	return nil
}

// mcpCalls are the methods that name what they call, and the keys that list those names.
var mcpCalls = map[string]string{
	"tools/call": "tools", "resources/read": "resources", "resources/subscribe": "resources", "resources/unsubscribe": "resources", "prompts/get": "prompts",
}

// An mcpMessage is what a rule looks at in a message.
type mcpMessage struct {
	id        string // as it stands in the message, "" for none
	method    string
	response  bool              // it has a result or an error
	params    map[string]string // the texts name, uri and protocolVersion among them
	version   string            // of _meta
	isRPC     bool
	ambiguous string // why servers could read it in two ways; constant text
}

const mcpVersionKey = "io.modelcontextprotocol/protocolVersion"

// called returns the name or URI of what a message calls.
func (m *mcpMessage) called() (name string, ok bool) {
	key := "name"
	if mcpCalls[m.method] == "resources" {
		key = "uri"
	}
	if mcpCalls[m.method] != "" {
		name, ok = m.params[key]
	}
	return name, ok
}

// MCPMessageID returns the JSON text of the id of the MCP request in the body. The response must repeat the id. MCPMessageID
// returns "" for a message without an id.
func (h *HTTPRequest) MCPMessageID() string {
	content, problem := h.JSONContent()
	if problem != "" {
		return ""
	}
	m, problem := readMCP(content)
	if problem != "" || m.method == "" || len(m.id) > 256 {
		return ""
	}
	return m.id
}

// readMCP reads one message of JSON-RPC 2.0.
func readMCP(content []byte) (m mcpMessage, problem string) {
	m.params = map[string]string{}
	err := strictjson.Walk(content, m.read)
	switch {
	case err != nil:
		return m, err.Error()
	case m.ambiguous != "":
		return m, m.ambiguous
	case !m.isRPC:
		return m, "it is no message of JSON-RPC 2.0"
	}
	return m, ""
}

// read takes one value of the message.
func (m *mcpMessage) read(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
	switch {
	case len(at) == 0 && kind == '[':
		m.ambiguous = "it is a batch, which no version of the protocol has had since 2025-06-18"
	case len(at) == 0 && kind != '{':
		m.ambiguous = "it is no object"
	case len(at) == 0 || at[0].Index >= 0:
	case len(at) == 1:
		m.member(at[0].Name, kind, raw)
	case at[0].Name != "params":
	case len(at) == 2:
		m.unlike(at[1].Name, "name", "uri", "_meta", "protocolVersion")
		if name := at[1].Name; kind == '"' && (name == "name" || name == "uri" || name == "protocolVersion") {
			m.params[name] = strictjson.Text(raw)
		}
	case len(at) == 3 && at[1].Name == "_meta":
		m.unlike(at[2].Name, mcpVersionKey)
		if at[2].Name == mcpVersionKey {
			m.version = m.text(kind, raw)
		}
	}
}

func (m *mcpMessage) member(name string, kind strictjson.ValueKind, raw []byte) {
	m.unlike(name, "jsonrpc", "id", "method", "params", "result", "error")
	switch name {
	case "jsonrpc":
		m.isRPC = m.text(kind, raw) == "2.0"
	case "id":
		if kind != '"' && kind != '0' {
			m.ambiguous = "its id is neither text nor number"
		}
		m.id = string(raw)
	case "method":
		m.method = m.text(kind, raw)
	case "params":
		if kind != '{' {
			m.ambiguous = "its params are no object"
		}
	case "result", "error":
		m.response = true
	}
}

// text decodes a value that has to be text.
func (m *mcpMessage) text(kind strictjson.ValueKind, raw []byte) string {
	if kind != '"' {
		m.ambiguous = "it has another value where a text has to be"
		return ""
	}
	return strictjson.Text(raw)
}

// unlike notes a name that some servers take for one of names.
func (m *mcpMessage) unlike(name string, names ...string) {
	for _, other := range names {
		if name != other && strictjson.Alike(name, other) {
			m.ambiguous = "it has a name that servers may take for " + other
		}
	}
}

// requirement is met by one message, and by what opens and ends a session of an older version.
func (r *MCPRule) requirement() *requirement {
	m := ofBody(r.words(), r.judge)
	m.needs |= NeedsMethod | NeedsHeaders
	m.class, m.what = MCPDenied, "this MCP message"
	ofMessage := m.match
	m.match = func(h *HTTPRequest) fit {
		switch h.Method {
		case "POST":
			return ofMessage(h)
		case "GET", "DELETE":
			if !h.Unread() && h.Body == nil && r.version(h, "") == "" {
				return yes
			}
		}
		return no
	}
	return m
}

func (r *MCPRule) words() string {
	var parts []string
	for _, some := range []struct {
		what  string
		names []string
	}{{"tools", r.Tools}, {"resources", r.Resources}, {"prompts", r.Prompts}, {"methods", r.Methods}, {"versions", r.Versions}} {
		if len(some.names) > 0 {
			parts = append(parts, some.what+" "+strings.Join(some.names, ", "))
		}
	}
	if len(parts) == 0 {
		return "MCP calls nothing"
	}
	return "MCP calls only " + strings.Join(parts, "; ")
}

// judge decides a message by its body, and compares the fields of its head with it.
func (r *MCPRule) judge(h *HTTPRequest) bodyAnswer {
	content, problem := h.JSONContent()
	if problem != "" {
		return bodyAnswer{fit: unclear, problem: problem}
	}
	m, problem := readMCP(content)
	if problem != "" {
		return bodyAnswer{fit: unclear, problem: problem}
	}
	name, named := m.called()
	a := bodyAnswer{says: []string{strings.TrimSpace("mcp " + strings.TrimSpace(m.method+" "+name))}}
	if a.problem = m.unlikeHead(h, name, named); a.problem == "" {
		a.problem = r.version(h, m.params["protocolVersion"])
	}
	if a.problem == "" {
		a.problem = r.refuses(&m, name, named)
	}
	if a.problem == "" {
		a.fit = yes
	}
	return a
}

// refuses returns why a message may not pass, or "".
func (r *MCPRule) refuses(m *mcpMessage, name string, named bool) string {
	key := mcpCalls[m.method]
	listed := map[string][]string{"tools": r.Tools, "resources": r.Resources, "prompts": r.Prompts}[key]
	matches := func(pattern string) bool { return matchMCP(pattern, name) }
	switch {
	case m.method == "" && m.response && m.id != "":
		return ""
	case m.method == "" || m.response:
		return "it is neither a request nor a response"
	case key != "" && !named:
		return "it does not say what it calls"
	case key != "" && slices.ContainsFunc(listed, matches):
		return ""
	case key != "":
		return strings.TrimSuffix(key, "s") + sayable(name) + " is not among its " + key
	case slices.Contains(mcpPlain, m.method), strings.HasPrefix(m.method, "notifications/"), slices.Contains(r.Methods, m.method):
		return ""
	}
	return "method" + sayable(m.method) + " is not among its methods"
}

// sayable returns a name that is short and plain enough to be said in a reason, with a space in front, or "".
func sayable(name string) string {
	if len(name) > 64 || !PlainMethod(strings.ReplaceAll(name[:min(len(name), 32)], "/", "-")) || len(name) > 32 && !PlainMethod(strings.ReplaceAll(name[32:], "/", "-")) {
		return ""
	}
	return " " + name
}

// unlikeHead compares a message with the fields that repeat parts of it (SEP-2243). A server may go by either.
func (m *mcpMessage) unlikeHead(h *HTTPRequest, name string, named bool) string {
	method, method1 := oneField(h, "mcp-method")
	called, called1 := oneField(h, "mcp-name")
	version, version1 := oneField(h, "mcp-protocol-version")
	latest := version == latestMCP || m.version == latestMCP
	if decoded, ok := strings.CutPrefix(called, "=?base64?"); ok {
		text, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(decoded, "?="))
		if called = string(text); err != nil || !strings.HasSuffix(decoded, "?=") {
			return "its Mcp-Name is not in a form that the protocol has"
		}
	}
	switch {
	case method1 > 1 || called1 > 1 || version1 > 1:
		return "it has a field Mcp-* or MCP-* twice"
	case method1 == 1 && method != m.method, called1 == 1 && (!named || called != name):
		return "its Mcp-Method or Mcp-Name differs from its body"
	case m.version != "" && version1 == 1 && version != m.version:
		return "its MCP-Protocol-Version differs from its body"
	case latest && (version1 == 0 || m.version == "" || method1 == 0 || named && called1 == 0):
		return "it lacks a field or member that version " + latestMCP + " requires"
	}
	return ""
}

// oneField returns the first value of a field and how many there are.
func oneField(h *HTTPRequest, name string) (value string, n int) {
	values := h.Header[name]
	if len(values) == 0 {
		return "", 0
	}
	return values[0], len(values)
}

// version returns why the version of a message may not pass, or "". opens is the version that initialize asks for.
func (r *MCPRule) version(h *HTTPRequest, opens string) string {
	version, n := oneField(h, "mcp-protocol-version")
	if n == 0 {
		version = opens
	}
	if len(r.Versions) > 0 && (n > 1 || !slices.Contains(r.Versions, version)) {
		return "its version of the protocol is not among its versions"
	}
	return ""
}

// mcpNameMost is the length of the longest name, in bytes, that a pattern with a star matches.
const mcpNameMost = 4 << 10

// matchMCP reports whether a name matches a pattern, in which "*" stands for text without "/" and "." and "**" for any text. A URI that
// servers may take for another one matches no star.
func matchMCP(pattern, name string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == name
	}
	if len(name) > mcpNameMost || strings.Contains(name, "://") && leadsElsewhere(name) {
		return false
	}
	// reached marks the places of the pattern that the name, as far as it was read, may have led to.
	reached, next := make([]bool, len(pattern)+1), make([]bool, len(pattern)+1)
	star := func(at int) int { // the length of the star there, or 0
		rest := pattern[at:]
		return len(rest) - len(strings.TrimPrefix(strings.TrimPrefix(rest, "*"), "*"))
	}
	reach := func(places []bool, at int) {
		places[at] = true
		for n := star(at); n > 0; n = star(at) { // which may stand for nothing
			at += n
			places[at] = true
		}
	}
	reach(reached, 0)
	for i := range len(name) {
		clear(next)
		for at := range len(pattern) {
			switch n := star(at); {
			case !reached[at]:
			case n == 2, n == 1 && name[i] != '/' && name[i] != '.':
				reach(next, at)
			case n == 0 && pattern[at] == name[i]:
				reach(next, at+1)
			}
		}
		reached, next = next, reached
	}
	return reached[len(pattern)]
}

// leadsElsewhere reports whether the path of a URI has dot segments, empty ones or backslashes, perhaps escaped, which many servers
// resolve.
func leadsElsewhere(uri string) bool {
	_, path, _ := strings.Cut(uri, "://")
	dots := func(segment string) bool { return segment == "." || segment == ".." }
	for range 3 { // escapes of escapes
		before, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "?")
		if strings.Contains(path, `\`) || strings.Contains(before, "//") || slices.ContainsFunc(strings.Split(path, "/"), dots) {
			return true
		}
		decoded, err := url.PathUnescape(path)
		if err != nil || strings.Count(decoded, "/") != strings.Count(path, "/") {
			return true
		}
		path = decoded
	}
	return false
}
