package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestARefusedCallOfMCPIsAnsweredAsItsClientExpects, with the messages of @modelcontextprotocol/sdk 1.32.2. It shows the
// error of a response that is 200 to the model, and goes on; a 403 ends its session.
func TestARefusedCallOfMCPIsAnsweredAsItsClientExpects(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow:\n  - {host: \"allowed.test:*\", paths: [/mcp], mcp: {tools: [search]}, id: lab}\n", nil)
		up := make(chan string, 8)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			up <- r.Method + string(body)
			rw.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(rw, "event: message\ndata: {}\n\n")
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		fields := []string{"Content-Type: application/json", "Accept: application/json, text/event-stream", "Mcp-Session-Id: 4cbb", "Mcp-Protocol-Version: 2025-11-25"}
		post := func(body string) reply {
			return ask(t, rt, "POST", o.url("allowed.test", "/mcp"), strings.NewReader(body), fields...)
		}
		for _, body := range []string{
			`{"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"agent","version":"1"}},"jsonrpc":"2.0","id":0}`,
			`{"method":"notifications/initialized","jsonrpc":"2.0"}`,
			`{"method":"tools/list","jsonrpc":"2.0","id":1}`,
			`{"method":"tools/call","params":{"name":"search","arguments":{"q":"x"}},"jsonrpc":"2.0","id":2}`,
		} {
			if r := post(body); r.StatusCode != 200 || <-up != "POST"+body {
				t.Errorf("%s: %d %s", body, r.StatusCode, r.body)
			}
		}
		if r := ask(t, rt, "GET", o.url("allowed.test", "/mcp"), nil, "Accept: text/event-stream", "Mcp-Session-Id: 4cbb"); r.StatusCode != 200 || <-up != "GET" {
			t.Errorf("the stream of events: %d %s", r.StatusCode, r.body)
		}

		r := post(`{"method":"tools/call","params":{"name":"delete_repo","arguments":{"q":"x"}},"jsonrpc":"2.0","id":"three"}`)
		var answer struct {
			JSONRPC, ID string
			Error       struct {
				Code    int
				Message string
				Data    struct{ Class, ID, Rule string }
			}
		}
		if err := json.Unmarshal([]byte(r.body), &answer); err != nil || r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%v in %d %v %s", err, r.StatusCode, r.Header, r.body)
		}
		if e := answer.Error; answer.JSONRPC != "2.0" || answer.ID != "three" || e.Code != 403 || !strings.Contains(e.Message, "delete_repo") || e.Data.Class != "mcp-denied" || e.Data.Rule != "lab" || e.Data.ID != r.Header.Get("X-Egressd-Id") {
			t.Errorf("answered %+v", answer)
		}
		post(`{"method":"tools/call","params":{"name":"delete_repo"},"jsonrpc":"2.0"}`).refused(t, 451, policy.MCPDenied)              // no request
		post(`[{"method":"tools/call","params":{"name":"search"},"jsonrpc":"2.0","id":3}]`).refused(t, 451, policy.MCPDenied)          // a batch has no one id
		post(`{"method":"ping","method":"tools/call","params":{"name":"x"},"jsonrpc":"2.0","id":3}`).refused(t, 451, policy.MCPDenied) // nor has this
		if len(up) > 0 {
			t.Errorf("went up: %s", <-up)
		}
		denied := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest && r.Decision.Action == "deny" })
		if denied.Body == nil || len(denied.Body.Says) != 1 || denied.Body.Says[0] != "mcp tools/call delete_repo" || denied.Decision.Class != "mcp-denied" {
			t.Errorf("recorded %+v %+v", denied.Body, denied.Decision)
		}
	})
}
