package answer

import (
	"encoding/json"
	"html"
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// TestTheFixOfASummedDenialNamesNoRecord, since that record is about another destination.
func TestTheFixOfASummedDenialNamesNoRecord(t *testing.T) {
	dst, err := policy.ParseDestination("a.test:443")
	if err != nil {
		t.Fatal(err)
	}
	r := &egress.Refusal{ID: 1, Destination: dst, Decision: policy.Decision{Class: policy.DefaultDeny}}
	if got, want := commandFor(r), "egressd allow a.test --from "+r.ID.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.Summed = true
	if got, want := commandFor(r), "egressd allow a.test:443"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTheOperatorsWordsAreInEveryProtocol, as they are written, or escaped as the form asks for it.
func TestTheOperatorsWordsAreInEveryProtocol(t *testing.T) {
	const words = `Ask "Ada" <https://wiki.test/a?b=1&c>`
	inJSON, err := json.Marshal(words)
	if err != nil {
		t.Fatal(err)
	}
	of := func(class policy.Class) *egress.Refusal {
		return &egress.Refusal{ID: 1, Destination: policy.Destination{Host: "a.test", Port: 443}, Decision: policy.Decision{Class: class, Reason: "no rule"}, Message: words}
	}
	plain, mcp := of(policy.DefaultDeny), of(policy.MCPDenied)
	mcp.MCPID = "7"
	graph := of(policy.GraphQLDenied)
	graph.Method = "POST"
	quoted := strings.Trim(string(inJSON), `"`)
	for _, row := range []struct {
		client string
		reply  []byte
		want   string
	}{
		{"curl", HTTP(plain, Recipient{}), `"deny_message":` + string(inJSON)},
		{"a browser", HTTP(plain, Recipient{Accept: "text/html"}), html.EscapeString(words)},
		{"git", HTTP(plain, Recipient{Agent: "git/2.39"}), words},
		{"git-lfs", HTTP(plain, Recipient{Accept: lfsType}), `The operator says: ` + quoted + `"`},
		{"gh", HTTP(plain, Recipient{Agent: "GitHub CLI 2.23"}), `The operator says: ` + quoted + `"`},
		{"a client of MCP", HTTP(mcp, Recipient{}), quoted},
		{"an SDK of a model", HTTP(of(policy.ModelDenied), Recipient{}), quoted},
		{"a client of GraphQL", HTTP(graph, Recipient{}), quoted},
		{"ssh", Goodbye(plain, []byte("SSH-2.0-x\r\n"), 22), words},
		{"redis", Goodbye(plain, []byte("*1\r\n$4\r\nPING\r\n"), 6379), words},
		{"PostgreSQL", Goodbye(plain, []byte("\x00\x00\x00\x09\x00\x03\x00\x00\x00"), 5432), words},
		{"mail", Goodbye(plain, nil, 25), words},
	} {
		if !strings.Contains(string(row.reply), row.want) {
			t.Errorf("%s: no %q in\n%s", row.client, row.want, row.reply)
		}
		if head, _, _ := strings.Cut(string(row.reply), "\r\n\r\n"); strings.HasPrefix(head, "HTTP/") && strings.Contains(head, "wiki.test") {
			t.Errorf("%s: the words are in the head:\n%s", row.client, head)
		}
	}
}
