package policy

import (
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/strictjson"
)

// A bodyAnswer is what a requirement says of a whole body.
type bodyAnswer struct {
	fit     fit
	problem string   // why the fit is no or unclear: constant text, with plain names at most
	says    []string // what the body asks for, for the record
	ids     []nodeID // of GraphQL, of which the server has to say more
}

// ofBody returns a requirement of the content of a request's body. Its answer about one body is kept. A request without a
// body does not meet it.
func ofBody(words string, read func(*HTTPRequest) bodyAnswer) *requirement {
	m := &requirement{words: words, needs: NeedsBody}
	answer := func(h *HTTPRequest) bodyAnswer {
		switch {
		case h.Unread():
			return bodyAnswer{fit: unread}
		case h.Body == nil || len(h.Body.Bytes) == 0:
			return bodyAnswer{fit: no}
		}
		h.Body.mu.Lock()
		defer h.Body.mu.Unlock()
		a, known := h.Body.answers[m]
		if !known {
			a = read(h)
			if h.Body.answers == nil {
				h.Body.answers = map[*requirement]bodyAnswer{}
			}
			h.Body.answers[m] = a
			for _, text := range a.says {
				addOnce(&h.Body.says, text)
			}
			for _, id := range a.ids {
				addOnce(&h.Body.nodes, id.text)
			}
		}
		return a
	}
	m.answer = answer
	m.match = func(h *HTTPRequest) fit { return answer(h).fit }
	m.problem = func(h *HTTPRequest) string { return answer(h).problem }
	return m
}

func addOnce(all *[]string, text string) {
	if !slices.Contains(*all, text) {
		*all = append(*all, text)
	}
}

// say adds what was found out about the body later.
func (b *Body) say(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	addOnce(&b.says, text)
}

// Says returns what the rules that read the body found that it asks for, such as "mcp tools/call search". The text is the
// sandbox's.
func (b *Body) Says() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.says)
}

// JSONContent returns what the body of a request says, if the request claims that it is JSON and all servers believe that.
// Otherwise problem says why not. The content may still be no JSON.
func (h *HTTPRequest) JSONContent() (content []byte, problem string) {
	switch {
	case h.Body == nil || !h.Body.Ended:
		return nil, "its body was not read"
	case h.Body.Problem != "":
		return nil, h.Body.Problem
	case h.hasParameter("$ct", "$httpHeaders"): // of Google's services
		return nil, "its query replaces its Content-Type"
	}
	kinds := h.Header["content-type"]
	if len(kinds) != 1 {
		return nil, "it has no Content-Type, or several"
	}
	kind, parameters, err := mime.ParseMediaType(kinds[0])
	charset, named := parameters["charset"]
	switch {
	case err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return nil, "its Content-Type is not application/json"
	case named && !strings.EqualFold(charset, "utf-8"):
		return nil, "its charset is not utf-8"
	}
	return h.Body.Content, ""
}

// A JSONRule is a condition on one value in a body of JSON.
type JSONRule struct {
	Pointer string      // a JSON Pointer (RFC 6901), which is not empty
	Values  []JSONValue // of which one has to match
}

// A JSONValue is a value that a rule compares.
type JSONValue struct {
	Text    string // of a string, in which "*" stands for any run of bytes; "*" alone is any value, also an object or a list
	Literal bool   // Text is that of a number, a boolean or null
}

func (v JSONValue) String() string {
	if _, err := strconv.Atoi(v.Text); !v.Literal && (err == nil || slices.Contains([]string{"true", "false", "null"}, v.Text)) {
		return strconv.Quote(v.Text)
	}
	return v.Text
}

// CheckJSONPointer returns an error for text that is no JSON Pointer to a part of a body.
func CheckJSONPointer(text string) error {
	switch rest := strings.NewReplacer("~0", "", "~1", "").Replace(text); {
	case !strings.HasPrefix(text, "/"), strings.Contains(rest, "~"):
		return fmt.Errorf("%q is not a JSON Pointer; write /model for the member model, /a/b for b in a, /a/0 for the first of a list", text)
	case len(text) > 256 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fmt.Errorf("a JSON Pointer is longer than 256 bytes or has control characters; write the names as they are once they are decoded")
	case strings.Count(text, "/") >= strictjson.MaxDepth:
		return fmt.Errorf("%q goes deeper than the %d levels that egressd reads", text, strictjson.MaxDepth)
	}
	return nil
}

// CheckJSONLiteral returns an error for a number that has other forms. A server may take those for the same number.
func CheckJSONLiteral(text string) error {
	if text == "true" || text == "false" || text == "null" || plainNumber(text) {
		return nil
	}
	return fmt.Errorf("%q is no whole number of at most 15 digits, true, false or null; other numbers have several forms, and no rule compares them", text)
}

// plainNumber reports whether a number is written in the only form that all servers read alike.
func plainNumber(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if len(digits) == 0 || len(digits) > 15 || digits[0] == '0' && text != "0" {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}

// requirement is met by a body of JSON with one of the values at the pointer.
func (f JSONRule) requirement() *requirement {
	texts := make([]string, len(f.Values))
	for i, v := range f.Values {
		texts[i] = v.String()
	}
	steps := f.steps()
	return ofBody("json "+f.Pointer+" is "+strings.Join(texts, " or "), func(h *HTTPRequest) bodyAnswer {
		content, problem := h.JSONContent()
		if problem != "" {
			return bodyAnswer{fit: unclear, problem: problem}
		}
		a := bodyAnswer{fit: no}
		if err := strictjson.Walk(content, func(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
			switch {
			case len(at) == 0 || len(at) > len(steps) || !leads(steps, at[:len(at)-1]):
			case leads(steps, at):
				if len(at) == len(steps) && a.fit == no {
					a.fit = f.compare(kind, raw)
				}
			case at[len(at)-1].Index < 0 && strictjson.Alike(at[len(at)-1].Name, steps[len(at)-1].Name):
				a = bodyAnswer{fit: unclear, problem: "it has a name that servers may take for one of " + f.Pointer}
			}
		}); err != nil {
			return bodyAnswer{fit: unclear, problem: err.Error()}
		}
		return a
	})
}

// steps decodes the pointer. A step may be the name of a member or the number of an element; Index is -1 for a name that is
// no number.
func (f JSONRule) steps() (steps []strictjson.PathStep) {
	for name := range strings.SplitSeq(f.Pointer[1:], "/") {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		index, err := strconv.Atoi(name)
		if err != nil || !plainNumber(name) || index < 0 {
			index = -1
		}
		steps = append(steps, strictjson.PathStep{Name: name, Index: index})
	}
	return steps
}

// leads reports whether a path is the beginning of steps.
func leads(steps, at []strictjson.PathStep) bool {
	for i, s := range at {
		if s.Index >= 0 && s.Index != steps[i].Index || s.Index < 0 && s.Name != steps[i].Name {
			return false
		}
	}
	return true
}

// compare compares the value at the pointer. A server may convert text to a number
// or back, so such a value is unclear.
func (f JSONRule) compare(kind strictjson.ValueKind, raw []byte) fit {
	text := string(raw)
	if kind == '"' {
		text = strictjson.Text(raw)
	}
	result := no
	for _, v := range f.Values {
		switch {
		case !v.Literal && v.Text == "*":
			return yes
		case kind == '{' || kind == '[':
			result = unclear
		case v.Literal == (kind != '"') && (v.Text == text || !v.Literal && matchSegment(v.Text, text)):
			if strings.ContainsRune(text, 0) {
				return unclear
			}
			return yes
		case kind == '0' && v.Literal && !plainNumber(text), v.Text == text, !v.Literal && kind != '"' && matchSegment(v.Text, text):
			result = unclear
		}
	}
	return result
}
