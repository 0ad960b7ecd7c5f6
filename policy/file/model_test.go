package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestRequestsToModels(t *testing.T) {
	strict := compiled(t, "allow: [{host: a.test, model: {hosted_tools: deny, urls: deny, files: deny}}]", inspecting)
	loose := compiled(t, "allow: [{host: a.test, model: {}}]", inspecting)
	user := func(content string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[` + content + `]}]}`
	}
	tool := func(tools string) string { return `{"model":"m","messages":[],"tools":[` + tools + `]}` }
	const anthropic, openai, gemini = "/v1/messages", "/v1/responses", "/v1beta/models/gemini-3-pro:streamGenerateContent"
	for _, row := range []struct {
		says, path, body string
		allowed          bool // by the strict rule
		found            string
	}{
		{"Anthropic, a question", anthropic, user(`{"type":"text","text":"use web_search_20250305 and {\"type\":\"web_fetch_20250910\"}"}`), true, ""},
		{"Anthropic, tools of the client", anthropic, tool(`{"name":"Bash","description":"d","input_schema":{"type":"object","properties":{"type":{"type":"string","enum":["mcp"]},"tools":{"type":"array"}}}},{"type":"custom","name":"x","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"type":"text_editor_20250728","name":"e","max_characters":9}`), true, ""},
		{"Anthropic, history", anthropic, user(`{"type":"server_tool_use","id":"1","name":"web_search","input":{"type":"mcp"}},{"type":"web_search_tool_result","tool_use_id":"1","content":[{"type":"web_search_result","url":"https://x.test/"}]},{"type":"tool_use","id":"2","name":"x","input":{"tools":[{"type":"web_search"}],"image_url":"https://x.test/"}},{"type":"mcp_tool_result"}`), true, ""},
		{"Anthropic, web search", anthropic, tool(`{"type":"web_search_20250305","name":"web_search"}`), false, "run the tool web_search_20250305"},
		{"Anthropic, web fetch, spelt otherwise", anthropic, tool(`{"Type":"WEB_FETCH_20250910","name":"x"}`), false, ""},
		{"Anthropic, code", anthropic, tool(`{"type":"code_execution_20250825","name":"x"}`), false, "run the tool code_execution_20250825"},
		{"Anthropic, a type that nobody knows", anthropic, tool(`{"type":"teleport_20270101","name":"x"}`), false, "declares a tool of an unknown type teleport_20270101"},
		{"Anthropic, servers", anthropic, `{"model":"m","messages":[],"mcp_servers":[{"type":"url","url":"https://evil.test"}]}`, false, "has the member mcp_servers"},
		{"Anthropic, a tool in a message", anthropic, user(`{"type":"tool_addition","tool":{"type":"web_fetch_20250910","name":"x"}}`), false, "run the tool web_fetch_20250910"},
		{"Anthropic, an image by URL", anthropic, user(`{"type":"image","source":{"type":"url","url":"https://evil.test/?q=secret"}}`), false, "fetch a URL"},
		{"Anthropic, an image", anthropic, user(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}`), true, ""},
		{"Anthropic, a stored file", anthropic, user(`{"type":"document","source":{"type":"file","file_id":"f1"}}`), false, "names a file that the provider has stored"},
		{"Anthropic, a container", anthropic, `{"model":"m","messages":[],"container":"c1"}`, false, "has the member container"},

		{"OpenAI, a question", openai, `{"model":"m","input":"web_search","tools":[{"type":"function","name":"x","parameters":{"type":"object"},"strict":true}],"prompt_cache_key":"k","store":false}`, true, ""},
		{"OpenAI, chat", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"x","parameters":{}}}]}`, true, ""},
		{"OpenAI, history", openai, `{"model":"m","input":[{"type":"web_search_call"},{"type":"mcp_call"},{"type":"function_call","arguments":"{\"type\":\"mcp\"}"},{"type":"function_call_output","output":"x"}]}`, true, ""},
		{"OpenAI, web search", openai, tool(`{"type":"web_search_preview"}`), false, "run the tool web_search_preview"},
		{"OpenAI, a model that searches", "/v1/chat/completions", `{"model":"gpt-4o-search-preview-2025-03-11","messages":[]}`, false, "a model that searches by itself, gpt-4o-search-preview-2025-03-11"},
		{"OpenAI, a model that reads for hours", openai, `{"model":"o3-deep-research","input":"x"}`, false, "a model that searches by itself"},
		{"Azure, an index of somebody", "/v1/chat/completions", `{"model":"m","messages":[],"data_sources":[{"type":"azure_search","parameters":{"endpoint":"https://evil.test"}}]}`, false, "has the member data_sources"},
		{"OpenAI, a server", openai, tool(`{"type":"mcp","server_url":"https://evil.test"}`), false, "run the tool mcp"},
		{"OpenAI, a shell of its own", openai, tool(`{"type":"shell","environment":{"type":"container_auto"}}`), false, "declares a tool of an unknown type shell"},
		{"OpenAI, web search in chat", "/v1/chat/completions", `{"model":"m","messages":[],"web_search_options":{}}`, false, "has the member web_search_options"},
		{"Codex, tools two levels down", openai, `{"model":"m","input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"x"},{"type":"web_search"}]}]}]}`, false, "run the tool web_search"},
		{"Codex, a type that nobody knows, two levels down", openai, `{"model":"m","input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[{"type":"teleport"}]}]}]}`, false, "declares a tool of an unknown type teleport"},
		{"Codex, tools of the client", openai, `{"model":"m","input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"x","parameters":{}},{"type":"custom","name":"p","format":{"type":"grammar"}}]}]}]}`, true, ""},
		{"OpenAI, a stored prompt", openai, `{"model":"m","prompt":{"id":"p1"}}`, false, "has the member prompt"},
		{"OpenAI, what was said before", openai, `{"model":"m","input":"x","previous_response_id":"r1"}`, false, "has the member previous_response_id"},
		{"OpenAI, nothing before", openai, `{"model":"m","input":"x","previous_response_id":null,"background":false}`, true, ""},
		{"OpenAI, an image by URL", openai, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"https://evil.test"}]}]}`, false, "fetch a URL"},
		{"OpenAI, an image by URL in chat", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://evil.test"}}]}]}`, false, "fetch a URL"},
		{"OpenAI, an image in the request", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]}`, true, ""},
		{"OpenAI, a file by URL", openai, `{"model":"m","input":[{"content":[{"type":"input_file","file_url":"https://evil.test"}]}]}`, false, "fetch a URL"},

		{"Gemini, a question", gemini, `{"contents":[{"parts":[{"text":"googleSearch"}]}],"tools":[{"functionDeclarations":[{"name":"x","parameters":{"type":"OBJECT"}}]}],"generationConfig":{}}`, true, ""},
		{"Gemini, history", gemini, `{"contents":[{"parts":[{"functionCall":{"name":"x","args":{"type":"mcp","fileUri":"u"}}},{"functionResponse":{"name":"x","response":{"image_url":"https://x.test"}}}]}]}`, true, ""},
		{"Gemini, a search", gemini, tool(`{"googleSearch":{}}`), false, "declares a tool with the unknown member googleSearch"},
		{"Gemini, a search in the other spelling", gemini, tool(`{"google_search":{}}`), false, "declares a tool with the unknown member google_search"},
		{"Gemini, a search that is no list", gemini, `{"contents":{"parts":{"text":"x"}},"tools":{"google_search":{}}}`, false, "declares a tool with the unknown member google_search"},
		{"Gemini, functions that are no list", gemini, `{"contents":{"parts":{"functionCall":{"name":"x","args":{"type":"mcp"}}}},"tools":{"functionDeclarations":{"name":"x"}}}`, true, ""},
		{"Gemini, URLs", gemini, tool(`{"functionDeclarations":[]},{"urlContext":{}}`), false, "declares a tool with the unknown member urlContext"},
		{"Gemini, a file", gemini, `{"contents":[{"parts":[{"fileData":{"fileUri":"https://evil.test"}}]}]}`, false, "read a file or URL"},
		{"Gemini, a file in the other spelling", gemini, `{"contents":[{"parts":[{"file_data":{"file_uri":"gs://x"}}]}]}`, false, "read a file or URL"},
		{"Gemini, stored state", gemini, `{"contents":[],"cachedContent":"cachedContents/1"}`, false, "has the member cachedContent"},
	} {
		r := posting(t, "POST https://a.test"+row.path, "application/json", row.body)
		if d := loose.Decide(context.Background(), r); d.Class != "" {
			t.Errorf("%s: the rule that denies nothing says %s", row.says, saying(d))
		}
		d := strict.Decide(context.Background(), r)
		if (d.Class == "") != row.allowed || !row.allowed && d.Class != policy.ModelDenied {
			t.Errorf("%s: %s", row.says, saying(d))
		}
		if said := strings.Join(r.HTTP.Body.Says(), "; "); !strings.Contains(said, row.found) || row.allowed != (said == "") {
			t.Errorf("%s: recorded %q", row.says, said)
		}
	}
}

// TestOnlyAnswersOfModels: other requests to their hosts are not among those that such a rule lets pass.
func TestOnlyAnswersOfModels(t *testing.T) {
	p := compiled(t, "allow: [{host: a.test, model: {hosted_tools: deny}}, {host: b.test, paths: [/openai/**], model: {hosted_tools: deny}}]", inspecting)
	for _, row := range []struct {
		ask     string
		size    int64
		upgrade bool
		want    policy.Verdict
	}{
		{"POST https://a.test/v1/messages", -1, false, policy.Inspect},
		{"POST https://a.test/v1/messages/count_tokens", -1, false, policy.Inspect},
		{"POST https://a.test/v1/messages/batches", -1, false, policy.Deny},
		{"POST https://a.test/v1/files", -1, false, policy.Deny},
		{"POST https://a.test/v1beta/models/x:generateContent", -1, false, policy.Inspect},
		{"POST https://a.test/v1beta/models/x:batchGenerateContent", -1, false, policy.Deny},
		{"POST https://a.test/upload/v1beta/files", -1, false, policy.Deny},
		{"GET https://a.test/v1/models", 0, false, policy.Allow},
		{"GET https://a.test/v1/models/x", 0, false, policy.Allow},
		{"GET https://a.test/v1/files", 0, false, policy.Deny},
		{"GET https://a.test/v1/responses", 0, true, policy.Deny},
		{"DELETE https://a.test/v1/models/x", 0, false, policy.Deny},
		{"POST https://b.test/openai/deployments/x/chat/completions", -1, false, policy.Inspect},
		{"POST https://b.test/v1/messages", -1, false, policy.Deny},
	} {
		r := asking(t, row.ask)
		r.HTTP.BodySize, r.HTTP.Upgrade = row.size, row.upgrade
		if d := p.Decide(context.Background(), r); d.Verdict != row.want {
			t.Errorf("%s: %s", row.ask, saying(d))
		}
	}
	bad := posting(t, "POST https://a.test/v1/messages", "application/json", `{"tools":[],"tools":[{"type":"web_search"}]}`)
	if d := p.Decide(context.Background(), bad); d.Class != policy.ModelDenied {
		t.Errorf("tools twice: %s", saying(d))
	}
}

func TestBadModelRules(t *testing.T) {
	for rule, want := range map[string]string{
		`allow: [{host: a.test, model: [x]}]`:                         "allow[0].model is a list; write a mapping",
		`allow: [{host: a.test, model: {hosted_tool: deny}}]`:         `allow[0].model has no key "hosted_tool"; did you mean "hosted_tools"?`,
		`allow: [{host: a.test, model: {urls: never}}]`:               `allow[0].model.urls cannot be "never"`,
		`deny: [{host: a.test, model: {urls: deny}}]`:                 "stands in allow alone",
		`allow: [{host: a.test, model: {urls: deny}, ech: allow}]`:    "allow[0] has model, which needs requests that can be seen",
		`allow: [{host: a.test, model: {files: deny, files: allow}}]`: "files",
	} {
		_, err := Parse("f", []byte("version: 1\n"+rule))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
