package file

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestMessagesOfMCP(t *testing.T) {
	p := compiled(t, `allow: [{host: a.test, paths: [/mcp], mcp: {tools: [search, "read_*", "github.**"], resources: ["file:///repo/*", "file:///docs/**"], prompts: [], methods: [completion/complete]}}]`, inspecting)
	newest := compiled(t, `allow: [{host: a.test, mcp: {tools: [search], versions: ["2026-07-28"]}}]`, inspecting)
	call := func(tool string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{"q":"delete"}}}`
	}
	plain := func(method string) string { return `{"jsonrpc":"2.0","id":"a","method":"` + method + `"}` }
	const latest = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"name":"search"}}`
	encoded := "Mcp-Name: =?base64?" + base64.StdEncoding.EncodeToString([]byte("search")) + "?="
	for _, row := range []struct {
		says, body    string
		fields        []string
		allow, newest bool // by the rule for any version, by the one for the newest
	}{
		{"a listed tool", call("search"), nil, true, false},
		{"a tool by a star", call("read_file"), nil, true, false},
		{"a tool by two stars", call("github.a/b.c"), nil, true, false},
		{"another tool", call("delete"), nil, false, false},
		{"a star over a dot", call("read_a.b"), nil, false, false},
		{"a star over a slash", call("read_a/b"), nil, false, false},
		{"another case", call("Search"), nil, false, false},
		{"escapes", call(`\u0073earch`), nil, true, false},
		{"no name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, nil, false, false},
		{"a name that is a number", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}`, nil, false, false},
		{"params first", `{"params":{"name":"search"},"method":"tools/call","id":1,"jsonrpc":"2.0"}`, nil, true, false},
		{"initialize", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"delete"}}}`, nil, true, false},
		{"tools/list", plain("tools/list"), nil, true, false},
		{"a notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, true, false},
		{"a response", `{"jsonrpc":"2.0","id":7,"result":{}}`, nil, true, false},
		{"an error", `{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}`, nil, true, false},
		{"a response that is a call", `{"jsonrpc":"2.0","id":7,"result":{},"method":"tools/call","params":{"name":"search"}}`, nil, false, false},
		{"a method that is listed", plain("completion/complete"), nil, true, false},
		{"a method that is not", plain("logging/setLevel"), nil, false, false},
		{"a resource", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///repo/README"}}`, nil, true, false},
		{"a resource deeper", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///repo/a/b"}}`, nil, false, false},
		{"a resource below", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///docs/a/b.md?x=a//b"}}`, nil, true, false},
		{"a resource behind dots", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///docs/../etc/passwd"}}`, nil, false, false},
		{"a resource behind escaped dots", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///docs/%2e%2E/etc/passwd"}}`, nil, false, false},
		{"a resource behind dots that are escaped twice", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///docs/%252e%252e/etc/passwd"}}`, nil, false, false},
		{"a resource behind an escaped slash", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///docs/..%2fetc/passwd"}}`, nil, false, false},
		{"a resource behind backslashes", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///docs/..\\..\\etc"}}`, nil, false, false},
		{"a resource by name", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"name":"file:///repo/a"}}`, nil, false, false},
		{"a resource that is subscribed to", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"file:///etc"}}`, nil, false, false},
		{"a prompt", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"x"}}`, nil, false, false},

		{"a batch", "[" + call("search") + "]", nil, false, false},
		{"a batch with one denied call", "[" + call("search") + "," + call("delete") + "]", nil, false, false},
		{"method twice", strings.Replace(call("search"), `"method"`, `"method":"ping","method"`, 1), nil, false, false},
		{"an escaped twin", strings.Replace(call("search"), `"id"`, `"\u006dethod":"ping","id"`, 1), nil, false, false},
		{"Method beside method", strings.Replace(call("search"), `"id"`, `"Method":"ping","id"`, 1), nil, false, false},
		{"Method alone", strings.Replace(call("search"), `"method"`, `"Method"`, 1), nil, false, false},
		{"Name beside name", strings.Replace(call("search"), `"name"`, `"Name":"delete","name"`, 1), nil, false, false},
		{"Params beside params", strings.Replace(call("search"), `"id"`, `"PARAMS":{"name":"delete"},"id"`, 1), nil, false, false},
		{"params as a list", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["search"]}`, nil, false, false},
		{"two values", call("search") + call("delete"), nil, false, false},
		{"another JSON-RPC", strings.Replace(call("search"), "2.0", "1.0", 1), nil, false, false},
		{"an object in the id", strings.Replace(call("search"), `"id":1`, `"id":{}`, 1), nil, false, false},
		{"text", `hello`, nil, false, false},
		{"nothing", ``, nil, false, false},

		{"fields that agree", call("search"), []string{"Mcp-Method: tools/call", "Mcp-Name: search"}, true, false},
		{"another name in the field", call("delete"), []string{"Mcp-Method: tools/call", "Mcp-Name: search"}, false, false},
		{"another name in the field of a listed call", call("search"), []string{"Mcp-Name: delete"}, false, false},
		{"another method in the field", call("search"), []string{"Mcp-Method: ping"}, false, false},
		{"a name for what has none", plain("ping"), []string{"Mcp-Name: search"}, false, false},
		{"a field twice", call("search"), []string{"Mcp-Name: search", "Mcp-Name: search"}, false, false},
		{"a name in base64", call("search"), []string{encoded}, true, false},
		{"a name in bad base64", call("search"), []string{"Mcp-Name: =?base64?c2Vh!?="}, false, false},

		{"the newest", latest, []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: search"}, true, true},
		{"the newest, without a name", latest, []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call"}, false, false},
		{"the newest, without a method", latest, []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Name: search"}, false, false},
		{"the newest, in the body alone", latest, nil, false, false},
		{"the newest, in the field alone", call("search"), []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: search"}, false, false},
		{"two versions", latest, []string{"MCP-Protocol-Version: 2025-11-25", "Mcp-Method: tools/call", "Mcp-Name: search"}, false, false},
		{"an older one", call("search"), []string{"MCP-Protocol-Version: 2025-11-25"}, true, false},
	} {
		r := posting(t, "POST https://a.test/mcp", "application/json", row.body)
		for _, field := range row.fields {
			name, value, _ := strings.Cut(field, ": ")
			name = strings.ToLower(name)
			r.HTTP.Header[name] = append(r.HTTP.Header[name], value)
		}
		for says, rule := range map[string]struct {
			p    *policy.Policy
			want bool
		}{"any version": {p, row.allow}, "the newest version": {newest, row.newest}} {
			want := policy.MCPDenied
			if rule.want {
				want = ""
			}
			if d := rule.p.Decide(context.Background(), r); d.Class != want {
				t.Errorf("%s, with a rule for %s: %s", row.says, says, saying(d))
			}
		}
	}
	for _, row := range []struct {
		ask           string
		header        map[string][]string
		size          int64
		allow, newest policy.Verdict
	}{
		{"GET https://a.test/mcp", nil, 0, policy.Allow, policy.Deny},
		{"DELETE https://a.test/mcp", map[string][]string{"mcp-protocol-version": {"2025-06-18"}}, 0, policy.Allow, policy.Deny},
		{"GET https://a.test/mcp", map[string][]string{"mcp-protocol-version": {"2026-07-28"}}, 0, policy.Allow, policy.Allow},
		{"GET https://a.test/mcp", nil, 5, policy.Deny, policy.Deny},
		{"PUT https://a.test/mcp", nil, 5, policy.Deny, policy.Deny},
		{"POST https://a.test/mcp", nil, -1, policy.Inspect, policy.Inspect},
		{"POST https://a.test/mcp", nil, 0, policy.Deny, policy.Deny},
		{"POST https://a.test/other", nil, -1, policy.Deny, policy.Inspect},
	} {
		r := asking(t, row.ask)
		r.HTTP.Header, r.HTTP.BodySize = row.header, row.size
		if d := p.Decide(context.Background(), r); d.Verdict != row.allow {
			t.Errorf("%s of %d bytes: %s", row.ask, row.size, saying(d))
		}
		if d := newest.Decide(context.Background(), r); d.Verdict != row.newest {
			t.Errorf("%s of %d bytes, with a rule for the newest version: %s", row.ask, row.size, saying(d))
		}
	}
}

func TestBadMCP(t *testing.T) {
	for rule, want := range map[string]string{
		`mcp: [search]`:                      "allow[0].mcp is a list; write a mapping",
		`mcp: {tool: [x]}`:                   `allow[0].mcp has no key "tool"; did you mean "tools"?`,
		`mcp: {methods: [tools/call]}`:       "tools/call is let pass by the names of what it calls; write them under tools",
		`mcp: {methods: [ping]}`:             "ping passes by itself",
		`mcp: {methods: ["a b"]}`:            "is not a method of MCP",
		`mcp: {tools: [x]}, tls: any`:        "allow[0] has mcp, which needs requests that can be seen",
		`id: x}], deny: [{host: b, mcp: {}}`: "stands in allow alone",
	} {
		text := "version: 1\nallow: [{host: a.test, " + rule + "}]"
		if strings.Contains(rule, "deny") {
			text = "version: 1\ndeny: [{host: a.test, mcp: {}}]"
		}
		_, err := Parse("f", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
