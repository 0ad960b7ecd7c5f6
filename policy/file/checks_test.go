package file

import (
	"strings"
	"testing"
)

func TestParseCheck(t *testing.T) {
	rows := []struct{ text, want string }{
		{"a.test", "connect a.test:443"},
		{"a.test:22", "connect a.test:22"},
		{"93.184.216.34", "connect 93.184.216.34:443"},
		{"2606:2800::1", "connect [2606:2800::1]:443"},
		{"[2606:2800::1]", "connect [2606:2800::1]:443"},
		{"[2606:2800::1]:80", "connect [2606:2800::1]:80"},
		{"https://a.test", "connect a.test:443 GET /"},
		{"https://a.test:8443/x", "connect a.test:8443 GET /x"},
		{"https://a.test?q=1", "connect a.test:443 GET / q=1"},
		{"http://a.test/x?y?z", "http a.test:80 GET /x y?z"},
		{"POST https://[2606:2800::1]/x", "connect [2606:2800::1]:443 POST /x"},
		{"https://A.test./", "connect a.test:443 GET /"},
	}
	for _, row := range rows {
		r, err := ParseCheck(row.text)
		if err != nil {
			t.Errorf("%s: %v", row.text, err)
			continue
		}
		got := string(r.Via) + " " + r.Destination.String()
		if r.HTTP != nil {
			got += strings.TrimRight(" "+r.HTTP.Method+" "+r.HTTP.Path+" "+r.HTTP.Query, " ")
		}
		if got != row.want {
			t.Errorf("%s is %q, want %q", row.text, got, row.want)
		}
	}
}

func TestParseCheckRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "GET a.test", "ftp://a.test/", "HTTPS://a.test/", "https:///x", "https://u@a.test/", "https://a.test/#x",
		"https://a.test/a b", "https://a.test/ä", "https://a.test//x", "http://a.test/%zz", "https://a.test/%4", "CONNECT https://a.test/", "https://a.test:0/", "a.test:", "a.test:x", "a_b c", "G@T https://a.test/", "127.1", "[a.test]",
	} {
		if r, err := ParseCheck(text); err == nil {
			t.Errorf("%q became %v", text, r.Destination)
		}
	}
}

func TestAURLIsJudgedAsServeComesToIt(t *testing.T) {
	p := compiled(t, `
allow: [whole.test, {host: reads.test, methods: [GET], id: reads}, {host: keyed.test, inject: {header: X-Key, env: KEY}, id: keyed}, {host: 93.184.216.34, methods: [GET], id: addr}]
presets: [npm]
deny: [{host: "*.pinned.test", methods: [POST]}]
tls: {never: [whole.test, registry.npmjs.org]}`, inspecting)
	rows := []struct{ ask, want string }{
		{"GET https://whole.test/x", "allow by allow[0], the tunnel"},
		{"GET https://reads.test/x", "allow by reads, the request"},
		{"POST https://reads.test/x", "deny method-denied by reads, the request"},
		{"reads.test", "inspect by reads, the tunnel"},
		{"POST http://reads.test/x", "deny method-denied by reads, the request"},
		{"GET https://keyed.test/x", "allow by keyed, the request"},
		{"GET https://93.184.216.34/x", "allow by addr, the request"},
		{"GET https://evil.test/x", "deny default-deny by default, the tunnel"},
		{"GET https://x.pinned.test/", "deny default-deny by default, the tunnel"},
		{"PUT https://registry.npmjs.org/x", "allow by preset:npm, the tunnel"},
	}
	for _, row := range rows {
		r, err := ParseCheck(row.ask)
		if err != nil {
			t.Fatal(err)
		}
		d, judged := p.Judge(t.Context(), r)
		got := saying(d) + ", the tunnel"
		if judged.HTTP != nil {
			got = saying(d) + ", the request"
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.ask, got, row.want)
		}
	}
}

func TestARedTestRefusesTheFile(t *testing.T) {
	f, err := Parse("egressd.yaml", []byte(`version: 1
allow:
  - {host: a.test, methods: [GET], id: read}
tests:
  - allow GET https://a.test/
  - allow POST https://a.test/
  - deny a.test
  - deny https://evil.test/
  - ask a.test
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(Environment{})
	if p != nil || err == nil {
		t.Fatal("it compiled")
	}
	want := `egressd.yaml:6:5: the test "allow POST https://a.test/" failed: expected allow, got deny from rule read, layer user (rule read does not allow POST at a.test:443; it allows: method is GET or HEAD); correct the test or that rule
egressd.yaml:7:5: the test "deny a.test" failed: expected deny, got allow from rule read, layer user (rule read allows some requests); correct the test or that rule
egressd.yaml:9:5: the test "ask a.test" failed: expected ask, got allow from rule read, layer user (rule read allows some requests); correct the test or that rule`
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
