package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestARefusedRequestToAModelIsAnsweredAsItsSDKExpects, with bodies that the official TypeScript SDKs have sent. They show
// error.message (OpenAI) or the whole (Anthropic, Google).
func TestARefusedRequestToAModelIsAnsweredAsItsSDKExpects(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow:\n  - {host: \"allowed.test:*\", model: {hosted_tools: deny}, id: answers}\n", nil)
		up := make(chan string, 8)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			up <- string(body)
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		const plain = `{"model":"claude","max_tokens":9,"messages":[{"role":"user","content":"hi web_search"}],"tools":[{"name":"x","description":"d","input_schema":{"type":"object","properties":{}}}]}`
		if r := ask(t, rt, "POST", o.url("allowed.test", "/v1/messages"), strings.NewReader(plain), "Content-Type: application/json"); r.StatusCode != 200 || <-up != plain {
			t.Fatalf("an answer of the model: %d %s", r.StatusCode, r.body)
		}
		r := ask(t, rt, "POST", o.url("allowed.test", "/v1/responses"), strings.NewReader(`{"model":"gpt","input":"hi","tools":[{"type":"mcp","server_label":"e","server_url":"https://e.test"}]}`), "Content-Type: application/json")
		var answer struct {
			Type, Class, ID, Rule string
			Error                 struct{ Type, Code, Message string }
		}
		if err := json.Unmarshal([]byte(r.body), &answer); err != nil || r.StatusCode != 403 || r.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%v in %d %v %s", err, r.StatusCode, r.Header, r.body)
		}
		if answer.Type != "error" || answer.Error.Code != "model-denied" || answer.Class != "model-denied" || answer.Rule != "answers" || answer.ID != r.Header.Get("X-Egressd-Id") || !strings.Contains(answer.Error.Message, "the tool mcp") {
			t.Errorf("answered %+v", answer)
		}
		if len(up) > 0 {
			t.Errorf("went up: %s", <-up)
		}
		denied := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest && r.Decision.Action == "deny" })
		if denied.Body == nil || len(denied.Body.Says) == 0 || denied.Body.Says[0] != "run the tool mcp" {
			t.Errorf("recorded %+v", denied.Body)
		}
	})
}
