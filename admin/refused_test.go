package admin

import (
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/sandbox"
)

// TestARefusedContainerIsToldStrictly sends what the scripts of egressd init send, and what they do not.
func TestARefusedContainerIsToldStrictly(t *testing.T) {
	w := newWorld(t)
	var told []sandbox.RefusedContainer
	w.Refused = func(c *sandbox.RefusedContainer, who Operator) (string, error) {
		if !who.Addr.IsValid() {
			t.Errorf("nobody has sent it: %+v", who)
		}
		told = append(told, *c)
		return "CRB9M4AWN8", nil
	}
	w.listen(t)
	asJSON := func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }
	const right = `{"id":"3a707a","name":"web","sandbox":"web","setting":"HostConfig.Privileged","reason":"--privileged: it is no boundary"}`
	for body, want := range map[string]int{
		right:         200,
		`{}`:          400,
		`{"id":"3a"}`: 400,
		right + "{}":  400,
		right[:40]:    400,
		strings.Replace(right, `"sandbox":"web"`, `"sandbox":"a b"`, 1):                     400,
		strings.Replace(right, `"name":"web"`, `"name":"`+strings.Repeat("x", 2000)+`"`, 1): 400,
		strings.Replace(right, `"name":"web"`, `"name":"web","flow":"CRB9M4AWN8"`, 1):       400,
	} {
		if status, text := w.ask(t, "POST", "/v1/refused", body, asJSON); status != want || want == 200 && text != `{"recorded":"CRB9M4AWN8"}`+"\n" {
			t.Errorf("%.120s: %d %s", body, status, text)
		}
	}
	if status, _ := w.ask(t, "POST", "/v1/refused", right, nil); status != 415 {
		t.Errorf("without a type: %d", status)
	}
	if len(told) != 1 || told[0] != (sandbox.RefusedContainer{ID: "3a707a", Name: "web", Sandbox: "web", Setting: "HostConfig.Privileged", Reason: "--privileged: it is no boundary"}) {
		t.Errorf("told of %+v", told)
	}
}
