package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestAWebSocketNeedsARuleThatLetsIt(t *testing.T) {
	const refused = "deny upgrade-denied by allow[0]"
	rows := []struct{ name, lines, ask, want string }{
		{"a rule without conditions", "allow: [a.test]", "https://a.test/", "allow by allow[0]"},
		{"a rule with a method", "allow: [{host: a.test, methods: [GET]}]", "https://a.test/", refused},
		{"a rule with a path", "allow: [{host: a.test, paths: [/ws]}]", "https://a.test/ws", refused},
		{"a rule that says so", "allow: [{host: a.test, paths: [/ws], upgrade: websocket}]", "https://a.test/ws", "allow by allow[0]"},
		{"a rule that says so, over plain http", "allow: [{host: a.test, paths: [/ws], upgrade: websocket}]", "http://a.test/ws", "allow by allow[0]"},
		{"a rule that says so, at another path", "allow: [{host: a.test, paths: [/ws], upgrade: websocket}]", "https://a.test/x", "deny path-denied by allow[0]"},
		{"a rule that says so beside one that reads", "allow: [{host: a.test, methods: [GET]}, {host: a.test, paths: [/ws], upgrade: websocket}]", "https://a.test/ws", "allow by allow[1]"},
		{"the same in the other order", "allow: [{host: a.test, paths: [/ws], upgrade: websocket}, {host: a.test, methods: [GET]}]", "https://a.test/ws", "allow by allow[0]"},
		{"a rule that reads beside one that says so elsewhere", "allow: [{host: a.test, methods: [GET]}, {host: a.test, paths: [/ws], upgrade: websocket}]", "https://a.test/x", refused},
		{"what a condition misses goes on to a wildcard", "allow: [{host: b.a.test, methods: [GET]}, '*.a.test']", "https://b.a.test/", "allow by allow[1]"},
		{"but not past a deny", "allow: [{host: b.a.test, methods: [GET]}, '*.test']\ndeny: ['*.a.test']", "https://b.a.test/", refused},
		{"and not past an ask", "allow: [{host: b.a.test, methods: [GET]}, '*.test']\nask: ['*.a.test']", "https://b.a.test/", refused},
		{"a denied path", "allow: [a.test]\ndeny: [{host: a.test, paths: [/ws]}]", "https://a.test/ws", "deny rule-deny by deny[0]"},
		{"default allow", "default: allow\ndeny: [{host: a.test, methods: [POST]}]", "https://a.test/", "allow by default"},
		{"an allow that changes nothing under default allow", "default: allow\nallow: [{host: a.test, methods: [GET]}]", "https://a.test/", "allow by allow[0]"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r := asking(t, row.ask)
			r.HTTP.Upgrade = true
			if got := saying(compiled(t, row.lines, inspecting).Decide(context.Background(), r)); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

func TestASandboxThatIsNarrowedToSomeRequestsHasNoWebSocket(t *testing.T) {
	p := compiled(t, `
allow: [a.test, {host: b.test, paths: [/ws], upgrade: websocket}]
sandboxes:
  - {name: all, token_file: t}
  - {name: whole, token_file: t, allow: [a.test, b.test]}
  - {name: reads, token_file: t, allow: [{host: a.test, methods: [GET]}]}
  - {name: less, token_file: t, deny: [{host: a.test, methods: [POST]}]}
`, inspecting)
	rows := []struct{ sandbox, ask, want string }{
		{"all", "https://a.test/", "allow by allow[0]"},
		{"whole", "https://a.test/", "allow by allow[0]"},
		{"whole", "https://b.test/ws", "allow by allow[1]"},
		{"reads", "https://a.test/", "deny upgrade-denied by sandboxes[2].allow[0]"},
		{"less", "https://a.test/", "allow by allow[0]"},
	}
	for _, row := range rows {
		r := asking(t, row.ask)
		r.Sandbox.Name = row.sandbox
		if d := p.Decide(context.Background(), r); d.Verdict != policy.Allow && row.sandbox != "reads" {
			t.Errorf("%s without a WebSocket: %s", row.sandbox, saying(d))
		}
		r.HTTP.Upgrade = true
		if got := saying(p.Decide(context.Background(), r)); got != row.want {
			t.Errorf("%s asks %s: %q, want %q", row.sandbox, row.ask, got, row.want)
		}
	}
}

// TestAnotherProtocolPassesWhereNobodyJudgesRequests and nowhere else: behind it there may be requests of any kind.
func TestAnotherProtocolPassesWhereNobodyJudgesRequests(t *testing.T) {
	const refused = "deny upgrade-denied by baseline"
	rows := []struct{ name, lines, want string }{
		{"a rule without conditions", "allow: [a.test]", "allow by allow[0]"},
		{"a rule with a method", "allow: [{host: a.test, methods: [GET]}]", "deny upgrade-denied by allow[0]"},
		{"a rule for a WebSocket", "allow: [{host: a.test, paths: [/x], upgrade: websocket}]", refused},
		{"a denied method", "allow: [a.test]\ndeny: [{host: a.test, methods: [POST]}]", refused},
		{"a denied path of another host", "allow: [a.test]\ndeny: [{host: b.test, paths: [/y]}]", "allow by allow[0]"},
		{"default allow", "default: allow", "allow by default"},
		{"default allow with a denied method", "default: allow\ndeny: [{host: a.test, methods: [POST]}]", refused},
		{"a layer that reads", "allow: [a.test]\nsandboxes: [{name: s, token_file: t, deny: [{host: a.test, methods: [POST]}]}]", refused},
	}
	for _, row := range rows {
		for _, ask := range []string{"https://a.test/x", "http://a.test/x"} {
			r := asking(t, ask)
			r.Sandbox.Name = "s"
			if !strings.Contains(row.lines, "sandboxes") {
				r.Sandbox.Name = "default"
			}
			r.HTTP.Upgrade, r.HTTP.OtherProtocol = true, true
			if got := saying(compiled(t, row.lines, inspecting).Decide(context.Background(), r)); got != row.want {
				t.Errorf("%s, %s: %q, want %q", row.name, ask, got, row.want)
			}
		}
	}
}
