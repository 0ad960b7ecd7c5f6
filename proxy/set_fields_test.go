package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
)

const setText = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/v1/**"], id: pinned, set: {OpenAI-Organization: org-ours, X-Tier: "1"}}
  - {host: "allowed.test:*", paths: ["/other/**"], id: other}
  - {host: "allowed.test:*", paths: ["/theirs/**"], headers: {openai-organization: [org-theirs]}, id: theirs}
  - {host: "other.test:*", methods: [GET]}
deny:
  - {host: "allowed.test:*", paths: ["/v1/secret/**"], headers: {openai-organization: [org-ours]}, id: judged}
unsafe_allow: ["127.0.0.1:*"]
`

// TestSetFieldsGoUpInPlaceOfTheSandboxs is case 24, by both versions of HTTP. A rule about such a field decides by what goes up.
func TestSetFieldsGoUpInPlaceOfTheSandboxs(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, setText, func(i *inspect.Inspection) {
			i.Secrets.Apply = func(_ string, _ policy.Destination, r *credentials.Request) credentials.Answer {
				if !slices.Equal(r.Set, []string{"OpenAI-Organization", "X-Tier"}) {
					t.Errorf("credentials are told that %q were set", r.Set)
				}
				return credentials.Answer{Target: r.Target, Fields: r.Fields}
			}
		})
		var seen headSeen
		o := w.pki.secureOrigin(t, overH2, seen.handle, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for _, row := range []struct {
			says, path string
			sent       []string
			class      policy.Class
		}{
			{"none sent", "/v1/x", nil, ""},
			{"another value", "/v1/x", []string{"OpenAI-Organization: org-theirs"}, ""},
			{"several, in other letters", "/v1/x", []string{"openai-organization: org-theirs", "OPENAI-ORGANIZATION: org-ours"}, ""},
			{"with underscores", "/v1/x", []string{"OpenAI_Organization: org-theirs"}, ""},
			{"at a path of another rule", "/other/x", []string{"OpenAI-Organization: org-theirs"}, ""},
			{"a deny about the value that is set", "/v1/secret/x", []string{"OpenAI-Organization: org-theirs"}, policy.RuleDeny},
			{"an allow about the value that was sent", "/theirs/x", []string{"OpenAI-Organization: org-theirs"}, "denied"},
		} {
			_, before := seen.last()
			r := ask(t, rt, "GET", o.url("allowed.test", row.path), nil, row.sent...)
			got, n := seen.last()
			if row.class != "" {
				if r.StatusCode != 403 || n != before {
					t.Errorf("%s: it passes: %v", row.says, got)
				}
				continue
			}
			if r.StatusCode != 200 || !slices.Equal(got["Openai-Organization"], []string{"org-ours"}) || !slices.Equal(got["X-Tier"], []string{"1"}) || strings.Contains(fmt.Sprint(got), "theirs") {
				t.Errorf("%s: %d, %v went up", row.says, r.StatusCode, got)
			}
		}
	})
}

// TestSetFieldsGoUpInClear has no TLS.
func TestSetFieldsGoUpInClear(t *testing.T) {
	w := newInspectWorld(t, setText, nil)
	var seen headSeen
	o := webOrigin(t, seen.handle)
	resp, body := w.dial(t).send(get("allowed.test", o.port, "/v1/x", "OpenAI-Organization: org-theirs", "Connection: close")).response("GET")
	if got, _ := seen.last(); resp.StatusCode != 200 || !slices.Equal(got["Openai-Organization"], []string{"org-ours"}) {
		t.Errorf("%d %s: %v went up", resp.StatusCode, body, got)
	}
}
