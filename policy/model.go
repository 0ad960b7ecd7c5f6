package policy

import (
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/egressd/egressd/internal/strictjson"
)

// A ModelRule is met by requests to the API of a model provider that have the provider do nothing else than answer: no tool
// that runs on the provider's side and reaches the network from there, no URL that it fetches, no file that it has stored.
// The lists are of the official SDKs of Anthropic, OpenAI and Google, as of [ModelListDate].
type ModelRule struct {
	DenyHostedTools bool
	DenyURLs        bool
	DenyFiles       bool
}

// ModelListDate is when the lists of this file were compared with anthropic-sdk-go v1.84.0, openai-go v3.99.0 and genai
// v1.77.0.
const ModelListDate = "2026-11-28"

// HostedTools are the types of tools that a provider runs itself. An object of such a type is refused wherever it stands:
// Codex has its tools two levels down in a list of messages.
var HostedTools = []string{
	"web_search", "web_search_20*", "web_search_preview*", "web_fetch_20*", "code_execution_20*", "mcp_toolset", "browser_toolset_20*", "advisor_20*", "tool_search_tool_*",
	"file_search", "code_interpreter", "mcp", "image_generation", "computer_use_preview", "computer", "container_upload",
}

// LocalTools are the types of tools that the client runs. Where tools are declared, all others are refused.
var LocalTools = []string{
	"custom", "bash_20*", "text_editor_20*", "computer_20*", "memory_20*", "function", "local_shell", "apply_patch", "namespace",
}

// localToolKeys are the members of a declared tool without a type that the client runs, in plain form.
var localToolKeys = []string{
	"name", "description", "inputschema", "inputexamples", "cachecontrol", "strict", "deferloading", "allowedcallers", "eagerinputstreaming", "parameters", "functiondeclarations",
}

// modelState lists the members of a request by which a provider adds tools or earlier messages that egressd has not seen. The last
// three are of xAI, OpenRouter and Azure.
var modelState = []string{
	"mcpservers", "websearchoptions", "container", "prompt", "previousresponseid", "conversation", "cachedcontent", "background",
	"searchparameters", "plugins", "datasources",
}

// hostedModels search the web without being given a tool.
var hostedModels = []string{"*search-preview*", "*search-api*", "*deep-research*", "*:online"}

// modelPaths are those of requests that only have a model answer. A rule that names paths itself has its own.
var modelPaths = map[string][]string{
	"GET":  {"/v1/models", "/v1/models/*", "/v1beta/models", "/v1beta/models/*"},
	"POST": {"/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses", "/v1beta/models/*:generateContent", "/v1beta/models/*:streamGenerateContent", "/v1beta/models/*:countTokens"},
}

func (m *ModelRule) words() string {
	var parts []string
	for _, part := range []struct {
		set  bool
		text string
	}{{m.DenyHostedTools, "hosted tools"}, {m.DenyURLs, "URLs"}, {m.DenyFiles, "files"}} {
		if part.set {
			parts = append(parts, part.text)
		}
	}
	if len(parts) == 0 {
		return "it asks a model"
	}
	return "it asks a model without " + strings.Join(parts, ", ")
}

// requirement is met by a request that asks for nothing that the rule denies. anyPath says that the rule names paths itself.
func (m *ModelRule) requirement(anyPath bool) *requirement {
	r := ofBody(m.words(), m.judge)
	r.needs |= NeedsMethod | NeedsPath | NeedsHeaders
	r.class, r.what = ModelDenied, "this request to a model"
	ofContent, problem := r.match, r.problem
	r.match = func(h *HTTPRequest) fit {
		switch {
		case h.Upgrade || !anyPath && !isModelPath(h.Method, h.Path):
			return no
		case h.Method == "POST":
			return ofContent(h)
		case h.Method == "GET" && !h.Unread() && h.Body == nil:
			return yes
		}
		return no
	}
	r.problem = func(h *HTTPRequest) string {
		switch {
		case h.Upgrade:
			return "it becomes a WebSocket, in which no request is seen"
		case !anyPath && !isModelPath(h.Method, h.Path):
			return "its path is none of those that only have a model answer"
		}
		return problem(h)
	}
	return r
}

func isModelPath(method, path string) bool {
	return slices.ContainsFunc(modelPaths[method], func(pattern string) bool {
		return strings.Count(pattern, "/") == strings.Count(path, "/") && matchSegment(pattern, path)
	})
}

// judge looks at each member of the body.
func (m *ModelRule) judge(h *HTTPRequest) bodyAnswer {
	content, problem := h.JSONContent()
	if problem != "" {
		return bodyAnswer{fit: unclear, problem: problem}
	}
	found := modelRequest{rule: m}
	if err := strictjson.Walk(content, found.read); err != nil {
		return bodyAnswer{fit: unclear, problem: err.Error()}
	}
	a := bodyAnswer{fit: yes, says: found.says}
	if a.problem = found.problem; a.problem != "" {
		a.fit = no
	}
	return a
}

// A modelRequest collects what a body asks of a provider.
type modelRequest struct {
	rule    *ModelRule
	problem string // the first one
	says    []string
}

// read takes one value of the body.
func (q *modelRequest) read(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
	switch {
	case len(at) == 0:
		q.deny(kind != '{', true, "it is no object", "")
		return
	case isArgument(at):
		return
	}
	name := plainName(at[len(at)-1].Name)
	text := ""
	if kind == '"' {
		text = strictjson.Text(raw)
	}
	declared := at[len(at)-1].Index < 0 && declaresTool(at[:len(at)-1])
	switch {
	case name == "type" && matchesAny(HostedTools, text):
		q.deny(true, q.rule.DenyHostedTools, "it has the provider run the tool", text)
	case name == "type" && declared && !matchesAny(LocalTools, text):
		q.deny(true, q.rule.DenyHostedTools, "it declares a tool of an unknown type", text)
	case declared && name != "type":
		q.undeclared(at, name)
	case len(at) == 1 && name == "model":
		q.deny(matchesAny(hostedModels, text), q.rule.DenyHostedTools, "it asks a model that searches by itself,", text)
	case len(at) == 1 && slices.Contains(modelState, name):
		empty := kind == 'n' || kind == 'f' || kind == '"' && text == ""
		q.deny(!empty, q.rule.DenyHostedTools, "it has the member", at[0].Name)
	}
	q.readSource(at, name, kind, text)
}

// readSource looks for what a provider would fetch or has stored.
func (q *modelRequest) readSource(at []strictjson.PathStep, name string, kind strictjson.ValueKind, text string) {
	around := ""
	if len(at) > 1 {
		around = plainName(at[len(at)-2].Name)
	}
	switch {
	case name == "type" && text == "url" && around == "source",
		slices.Contains([]string{"imageurl", "fileurl", "videourl", "audiourl"}, name) && kind == '"', name == "url" && kind == '"' && slices.Contains(partsWithURL, around):
		q.deny(!strings.HasPrefix(text, "data:"), q.rule.DenyURLs, "it has the provider fetch a URL", "")
	case name == "fileuri" && kind == '"':
		q.deny(true, q.rule.DenyURLs || q.rule.DenyFiles, "it has the provider read a file or URL", "")
	case name == "fileid" && kind == '"', name == "fileids" && kind == '[', name == "vectorstoreids" && kind == '[':
		q.deny(true, q.rule.DenyFiles, "it names a file that the provider has stored", "")
	}
}

// partsWithURL are the members of a message, in plain form, in which providers and servers with their interface take a URL.
var partsWithURL = []string{
	"source", "imageurl", "fileurl", "videourl", "audiourl", "inputimage", "inputfile", "inputvideo", "inputaudio", "image", "file", "video", "audio", "document",
}

// undeclared looks at a member of a declared tool. A tool without a type is the client's if it has only known members.
func (q *modelRequest) undeclared(at []strictjson.PathStep, name string) {
	if !slices.Contains(localToolKeys, name) && !slices.Contains(typedToolKeys, name) {
		q.deny(true, q.rule.DenyHostedTools, "it declares a tool with the unknown member", at[len(at)-1].Name)
	}
}

// typedToolKeys are further members of tools that have a type of LocalTools, in plain form.
var typedToolKeys = []string{"function", "format", "tools", "displaywidthpx", "displayheightpx", "displaynumber", "enablezoom", "maxcharacters", "outputschema", "title", "annotations"}

// deny notes something that a request asks for. what is short, and is recorded and said if it is plain.
func (q *modelRequest) deny(found, denied bool, problem, what string) {
	if !found {
		return
	}
	note := strings.TrimPrefix(strings.TrimPrefix(problem, "it "), "has the provider ") + sayable(what)
	if !slices.Contains(q.says, note) && len(q.says) < 8 {
		q.says = append(q.says, note)
	}
	if denied && q.problem == "" {
		q.problem = problem + sayable(what)
	}
}

// declaresTool reports whether a path leads to the declaration of a tool: /tools/0, in a message, and in another tool.
func declaresTool(at []strictjson.PathStep) bool {
	for _, around := range [][]string{{"messages", "#", "content", "#"}, {"input", "#"}} {
		if rest, ok := behind(at, around...); ok {
			at = rest
			break
		}
	}
	for n := 0; ; n++ {
		if len(at) == 0 {
			return n > 0
		}
		rest, ok := behind(at, "tools", "#")
		if !ok {
			return false
		}
		at = rest
	}
}

// isArgument reports whether a path lies in what a model has passed to a tool, or a tool to the model: any JSON.
func isArgument(at []strictjson.PathStep) bool {
	return slices.ContainsFunc([][]string{
		{"messages", "#", "content", "#", "input"}, {"contents", "#", "parts", "#", "functioncall", "args"}, {"contents", "#", "parts", "#", "functionresponse", "response"},
	}, func(names []string) bool { _, ok := behind(at, names...); return ok })
}

// behind returns the rest of a path that starts with these names in plain form. "#" is an element of a list. It may be missing:
// Google's services take one element for a list of it.
func behind(at []strictjson.PathStep, names ...string) (rest []strictjson.PathStep, ok bool) {
	for _, name := range names {
		switch {
		case name == "#" && (len(at) == 0 || at[0].Index < 0):
			continue
		case len(at) == 0, name != "#" && (at[0].Index >= 0 || plainName(at[0].Name) != name):
			return nil, false
		}
		at = at[1:]
	}
	return at, true
}

// plainName returns one name for all spellings that a server may take for it: google_search, googleSearch, GoogleSearch.
func plainName(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && name[i] != '_' && (name[i] >= 'a' && name[i] <= 'z' || name[i] >= '0' && name[i] <= '9')
	}
	if plain {
		return name
	}
	return strings.ReplaceAll(strings.ToLower(norm.NFKC.String(name)), "_", "")
}

func matchesAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matchSegment(pattern, strings.ToLower(text)) })
}
