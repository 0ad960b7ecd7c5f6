package file

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/google/go-cmp/cmp"
)

func readSample(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/egressd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheSampleFile(t *testing.T) {
	f, err := Parse("egressd.yaml", readSample(t))
	if err != nil {
		t.Fatal(err)
	}
	silent := voice{Verdict: policy.Abstain}
	env := Environment{Evaluators: []policy.Evaluator{silent}, Layers: Layers{Narrowing: map[string][]policy.Narrowing{"web": {{Evaluator: silent}}}}}
	if _, err := f.Compile(env); err != nil {
		t.Fatal(err)
	}
	want := Limits{
		Connections: 100, FlowsPerSandbox: 10, HeadBytes: 32768, HeaderFields: 50, ResponseHeadBytes: 131072, ResponseFields: 500, HeadTimeout: 5 * time.Second,
		BodyBytes: 1 << 20, HelloBytes: 16384, HelloTimeout: 5 * time.Second, DialTimeout: 3 * time.Second, IdleTimeout: time.Minute,
		TunnelLifetime: 2 * time.Hour, AskWait: 90 * time.Second, DNSQueriesPerSecond: 50, DNSNameBytes: 1024,
	}
	if diff := cmp.Diff(want, f.Limits); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Audit{Dir: "${HOME}/log", Durability: "process", SegmentBytes: 1 << 20}, f.Audit); diff != "" {
		t.Error(diff)
	}
	wantTLS := TLS{CADir: "${HOME}/ca", Never: mustPatterns(t, "pinned.example.com", "*.bank.example.com:443"), ECH: "refuse", ExtraRoots: []string{"corp.pem"}}
	if diff := cmp.Diff(wantTLS, f.TLS, cmp.Comparer(func(a, b policy.Pattern) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"SRV", "TXT"}, f.Upstream.DNSTypes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"system", "9.9.9.9", "9.9.9.9:53"}, f.Upstream.DNS); diff != "" {
		t.Error(diff)
	}
	var ids []string
	for _, rule := range f.Allow {
		ids = append(ids, rule.ID+" "+rule.Pattern.String())
	}
	wantIDs := []string{
		"allow[0] api.anthropic.com", "allow[1] *.github.com", "allow[2] example.com:8443", "allow[3] 93.184.216.0/24:443",
		"allow[4] 10.0.0.5:8443", "gh-read api.github.com", "allow[6] docs.example.com", "allow[7] git.example.com", "allow[8] store.example.com", "allow[9] db.example.com:443", "live chat.example.com", "key api.example.com",
	}
	if diff := cmp.Diff(wantIDs, ids); diff != "" {
		t.Error(diff)
	}
	if web := f.Sandboxes[1]; web.Name != "web" || !web.Narrowed || len(web.Allow) != 1 || len(web.Deny) != 1 || f.Sandboxes[0].Narrowed {
		t.Errorf("the sandboxes are %+v", f.Sandboxes)
	}
}

func TestAFileThatSaysNothingHasTheDefaults(t *testing.T) {
	f, err := Parse("egressd.yaml", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	l := f.Limits
	if l.HeadBytes != 64<<10 || l.BodyBytes != 32<<20 || l.HelloBytes != 64<<10 || l.HelloTimeout != 10*time.Second || l.HeadTimeout != 10*time.Second ||
		l.DialTimeout != 15*time.Second || l.IdleTimeout != 10*time.Minute || l.TunnelLifetime != 24*time.Hour || l.AskWait != 30*time.Second || l.Connections != 20000 || l.FlowsPerSandbox != 4096 {
		t.Errorf("the limits are %+v", l)
	}
	if f.Default != policy.Deny || f.Audit.Durability != "process" || f.TLS.ECH != "refuse" || f.Listen.Proxy[0] != "127.0.0.1:3128" || f.Upstream.DNS[0] != "system" {
		t.Errorf("the defaults are %+v", f)
	}
}

var badFiles = []struct {
	name string
	text string
	want string // each line is a part of a line of the error
}{
	{"an empty file", "", `f:1:1: the file is empty; begin it with "version: 1"`},
	{"a file of comments", "# nothing\n", `f:1:1: the file is empty`},
	{"no version", "allow: [a.test]", `f:1:1: the file has no version; begin it with "version: 1"`},
	{"another version", "version: 2", `f:1:10: this egressd does not know version 2; write version: 1,`},
	{"a version in words", `version: "1.0"`, `f:1:10: version cannot be 1.0`},
	{"a version of one in quotes", `version: "1"`, "f:1:10: version is text; write version: 1, without quotes"},
	{"a list at the top", "- version: 1", `f:1:1: the file is a list; write a mapping`},
	{"a word at the top", "version", `f:1:1: the file is text`},
	{"an unknown key", "version: 1\nalow: []", `f:2:1: the file has no key "alow"; did you mean "allow"?`},
	{"an unknown key like no other", "version: 1\nzzzzzzzz: []", `f:2:1: the file has no key "zzzzzzzz"; write one of allow, allow_file, approve_within, ask, audit,`},
	{"a message of two lines", "version: 1\ndeny_message: \"a\\nb\"", `f:2:15: deny_message is not one line of up to 240 bytes`},
	{"a message that moves the cursor", "version: 1\ndeny_message: \"\\e[2J\"", `f:2:15: deny_message is not one line`},
	{"a message that reads backwards", "version: 1\ndeny_message: \"a\\u202eb\"", `f:2:15: deny_message is not one line`},
	{"a message for the runner of a CI job", "version: 1\ndeny_message: \"##[error]a\"", `f:2:15: deny_message is not one line`},
	{"a long message", "version: 1\ndeny_message: " + strings.Repeat("a", 241), `f:2:15: deny_message is not one line`},
	{"an empty message", "version: 1\ndeny_message: \"\"", `f:2:15: deny_message is empty`},
	{"a receiver without a URL", "version: 1\nnotify: {to: [{name: a, type: slack}]}", `f:2:15: notify.to[0] needs a name, a type and a url_file`},
	{"a receiver of another kind", "version: 1\nnotify: {to: [{name: a, type: slak, url_file: u}]}", `f:2:31: notify.to[0].type cannot be "slak"; did you mean "slack"?`},
	{"two receivers of a name", "version: 1\nnotify: {to: [{name: a, type: slack, url_file: u}, {name: a, type: ntfy, url_file: v}]}", `f:2:52: notify.to has "a" already`},
	{"a name that is a path", "version: 1\nnotify: {to: [{name: \"a/b\", type: slack, url_file: u}]}", `notify.to[0].name cannot be "a/b"`},
	{"answers for the whole network", "version: 1\nnotify: {answers: \"0.0.0.0:3190\", to: [{name: a, type: slack, url_file: u}]}", `f:2:19: notify.answers: "0.0.0.0:3190" is not one address`},
	{"answers in clear beyond loopback", "version: 1\nnotify: {answers: \"10.0.0.5:3190\", to: [{name: a, type: slack, url_file: u}]}", `f:2:9: notify.answers 10.0.0.5:3190 can be reached from other machines`},
	{"answers that nobody is told of", "version: 1\nnotify: {answers: \"127.0.0.1:3190\"}", `f:2:9: notify tells nobody`},
	{"answers at the operator's port", "version: 1\nlisten: {admin: \"127.0.0.1:3190\"}\nnotify: {answers: \"127.0.0.1:3190\", to: [{name: a, type: slack, url_file: u}]}", `notify.answers is 127.0.0.1:3190, and so is listen.admin`},
	{"answers that nothing takes back", "version: 1\nlisten: {admin: none}\nnotify: {to: [{name: a, type: slack, url_file: u}]}", `f:2:17: listen.admin is none`},
	{"a key without its certificate", "version: 1\nnotify: {answers: \"127.0.0.1:3190\", key_file: k, to: [{name: a, type: slack, url_file: u}]}", `f:2:9: notify needs both cert_file and key_file`},
	{"a URL with a password", "version: 1\nnotify: {answers: \"127.0.0.1:3190\", url: \"https://a:b@c\", to: [{name: a, type: slack, url_file: u}]}", `notify.url is not a URL`},
	{"a URL that ends a link", "version: 1\nnotify: {answers: \"127.0.0.1:3190\", url: \"https://c/|x\", to: [{name: a, type: slack, url_file: u}]}", `notify.url is not a URL`},
	{"an unknown key below", "version: 1\nlimits: {head_byte: 1}", `f:2:10: limits has no key "head_byte"; did you mean "head_bytes"?`},
	{"a sink without a name", "version: 1\naudit: {sinks: [{type: file, path: /a}]}", `f:2:17: audit.sinks[0] has no name`},
	{"a key that was removed", "version: 1\nlisten: {forwarded: [\"127.0.0.1:3180\"]}", `f:2:10: listen.forwarded was removed; let the platform's network policy`},
	{"a key of a sandbox that was removed", "version: 1\nsandboxes: [{name: a, token_file: t}, {name: b, token_file: u, oidc: {issuer: \"https://issuer.test\"}}]", `sandboxes[1].oidc was removed; give the sandbox a token_file`},
	{"a key of rego that was removed", "version: 1\nrego: [{path: authz, input: envoy}]", `rego[0].input was removed; leave the key out`},
	{"a key of a sandbox's rego that was removed", "version: 1\nsandboxes: [{name: a, token_file: t, rego: [{path: p, input: envoy}]}]", `sandboxes[0].rego[0].input was removed`},
	{"a sink with a misspelt key", "version: 1\naudit: {sinks: [{name: a, typ: file}]}", `audit.sinks[0] has no key "typ"; did you mean "type"?`},
	{"a sink of no type", "version: 1\naudit: {sinks: [{name: a, type: otel, url: \"http://a/\"}]}", `audit.sinks[0].type cannot be "otel"; did you mean "otlp"?`},
	{"a sink without what its type needs", "version: 1\naudit: {sinks: [{name: a, type: syslog, path: /a}]}", `audit.sinks[0] has no address, which a sink of type syslog needs`},
	{"a sink with too much", "version: 1\naudit: {sinks: [{name: a, type: file, path: /a, url: \"http://a/\"}]}", `audit.sinks[0] has more than a path`},
	{"a password in the URL of a sink", "version: 1\naudit: {sinks: [{name: a, type: otlp, url: \"http://u:p@a/\"}]}", `audit.sinks[0].url holds a user or a password; write them into headers_file`},
	{"an address of a sink", "version: 1\naudit: {sinks: [{name: a, type: syslog, address: \"localhost:514\"}]}", `audit.sinks[0].address is not an address; write udp:HOST:PORT`},
	{"a format of a sink", "version: 1\naudit: {sinks: [{name: a, type: file, path: /a, format: ocfs}]}", `audit.sinks[0].format cannot be "ocfs"; did you mean "ocsf"?`},
	{"a format that went", "version: 1\naudit: {sinks: [{name: a, type: file, path: /a, format: cef}]}", `audit.sinks[0].format cannot be "cef": egressd does not write cef; take json`},
	{"a key that went", "version: 1\naudit: {witnesses: [{url: \"https://a.test\"}]}", `f:2:9: audit.witnesses was removed; send checkpoints to audit.anchors`},
	{"headers for a file", "version: 1\naudit: {sinks: [{name: a, type: file, path: /a, headers_file: h}]}", `audit.sinks[0].headers_file is for sinks of type otlp`},
	{"retention that waits and never removes", "version: 1\naudit: {retain: {sinks: {age: 24h}}}", `f:2:17: audit.retain.sinks says how long removal waits, and nothing is removed; add bytes, age or segments to audit.retain`},
	{"retention that waits for too few bytes", "version: 1\naudit: {retain: {bytes: 2000000, sinks: {bytes: 2000000}}}", `write more than the 2000000 of audit.retain.bytes`},
	{"retention that waits for too short a time", "version: 1\naudit: {retain: {age: 48h, sinks: {age: 24h}}}", `write more than the 48h0m0s of audit.retain.age`},
	{"a bound for sinks that is none", "version: 1\naudit: {retain: {segments: 2, sinks: {byte: 2000000}}}", `did you mean "bytes"?`},
	{"retention by a word that is none", "version: 1\naudit: {retain: everything}", `f:2:17: `},
	{"an anchor of no kind", "version: 1\naudit: {anchors: [\"flie:/a\"]}", `f:2:19: audit.anchors[0] cannot begin with "flie"; did you mean "file"?`},
	{"an anchor without a kind", "version: 1\naudit: {anchors: [/var/a]}", `audit.anchors[0] is not a place for checkpoints; write file:/PATH`},
	{"an anchor in a relative file", "version: 1\naudit: {anchors: [\"file:a\"]}", `audit.anchors[0] is not a place for checkpoints; write file:/PATH`},
	{"an anchor without a port", "version: 1\naudit: {anchors: [\"tcp:collector\"]}", `audit.anchors[0] is not a place for checkpoints; write tcp:HOST:PORT`},
	{"an anchor with another transport of syslog", "version: 1\naudit: {anchors: [\"syslog:upd:a:514\"]}", `audit.anchors[0] cannot begin with "syslog:upd"; did you mean "syslog:udp"?`},
	{"an anchor twice", "version: 1\naudit: {anchors: [\"file:/a\", \"tcp:a:1\", \"file:/a\"]}", `audit.anchors[2] stands above already; leave it out`},
	{"two sinks of one name", "version: 1\naudit: {sinks: [{name: a, type: file, path: /a}, {name: a, type: file, path: /b}]}", `a sink "a" stands above already`},
	{"a name of a sink that is a path", "version: 1\naudit: {sinks: [{name: ../a, type: file, path: /a}]}", `audit.sinks[0].name cannot be "../a"`},
	{"the same key twice", "version: 1\nallow: [a.test]\nallow: []", `f:3:1: "allow" stands a second time (first in line 2); keep one`},
	{"the same key twice below", "version: 1\nallow: [{host: a.test, host: b.test}]", `f:2:24: "host" stands a second time`},
	{"a second document", "version: 1\n---\nallow: [a.test]\n", `f:2:1: a second document begins; keep one document in one file`},
	{"an anchor", "version: 1\nallow: &a [a.test]", `f:2:8: &a is an anchor; write the value out`},
	{"an alias", "version: 1\nallow: &a [a.test]\ndeny: *a", `f:3:7: *a is an alias`},
	{"a merge", "version: 1\n<<: {allow: []}", `f:2:1: << merges mappings; write the keys out`},
	{"a tag", "version: 1\ndefault: !!str deny", `f:2:10: !!str is a tag; leave it out`},
	{"a pattern without quotes", "version: 1\nallow:\n  - a.test\n  - *.b.test\n", "f:4:5:\nput a pattern that begins with * in quotes"},
	{"a pattern without quotes in brackets", "version: 1\nallow: [a.test, *.b.test]\n", "f:2:17:\nput a pattern that begins with * in quotes"},
	{"broken YAML", "version: 1\nallow: [a.test\n", "f:2:8: [ is not closed; write ] where it ends"},
	{"a tab", "version: 1\nallow:\n\t- a.test", `f:3:1: a tab; indent with spaces`},
	{"a tab in the middle", "version:\t1", `f:1:9: a tab`},
	{"a byte that is not UTF-8", "version: 1 # \xff", `f:1:14: a byte that is not UTF-8`},
	{"text that runs backwards", "version: 1 # \u202e", `f:1:14: the invisible character U+202E; remove it`},
	{"a line that ends in secret", "version: 1 # x\u2028allow: ['*']", `f:1:15: the invisible character U+2028`},
	{"a carriage return alone", "version: 1 # x\rallow: ['*']", `f:1:15: the invisible character U+000D`},
	{"too deep", "version: 1\nallow: [[[[[[[[[[a]]]]]]]]]]", `nested more than 8 deep`},
	{"a list where a word belongs", "version: 1\ndefault: [deny]", `f:2:10: default is a list; write text`},
	{"another default", "version: 1\ndefault: denny", `f:2:10: default cannot be "denny"; did you mean "deny"?`},
	{"a number where text belongs", "version: 1\nallow: [1.1]", `f:2:9: allow[0] is a number; put "1.1" in quotes`},
	{"a truth value where text belongs", "version: 1\naudit: {dir: yes}\nallow: [true]", `f:3:9: allow[0] is a truth value`},
	{"nothing where a list belongs", "version: 1\nallow:", `f:2:7: allow has no value; write [] for an empty list`},
	{"nothing where text belongs", "version: 1\naudit: {dir: }", `f:2:14: audit.dir has no value`},
	{"text where a list belongs", "version: 1\nallow: a.test", `f:2:8: allow is text; write a list`},
	{"a leading zero", "version: 1\nlimits: {connections: 0100}", `f:2:23: limits.connections cannot be 0100; write a plain decimal number`},
	{"a hexadecimal number", "version: 1\nlimits: {connections: 0x10}", `limits.connections cannot be 0x10`},
	{"a number with underscores", "version: 1\nlimits: {connections: 1_000}", `limits.connections cannot be 1_000`},
	{"a negative number", "version: 1\nlimits: {connections: -1}", `limits.connections cannot be -1`},
	{"a number out of range", "version: 1\nlimits: {hello_bytes: 1000000}", `limits.hello_bytes cannot be 1000000; write a plain decimal number from 1024 to 65536`},
	{"a duration without a unit", "version: 1\nlimits: {dial_timeout: 15}", `limits.dial_timeout cannot be "15"; write a duration like 10s`},
	{"a duration of nothing", "version: 1\nlimits: {dial_timeout: 0s}", `limits.dial_timeout cannot be "0s"`},
	{"a tunnel without an end", "version: 1\nlimits: {tunnel_lifetime: 0}", `limits.tunnel_lifetime cannot be "0"; write a duration from 5s to 720h`},
	{"a lifetime of moments", "version: 1\nlimits: {tunnel_lifetime: 4s}", `limits.tunnel_lifetime cannot be "4s"`},
	{"a lifetime of months", "version: 1\nlimits: {tunnel_lifetime: 721h}", `limits.tunnel_lifetime cannot be "721h"`},
	{"a person who is waited for too long", "version: 1\nlimits: {ask_wait: 11m}", `limits.ask_wait cannot be "11m"; write 0, or a duration from 1s to 10m`},
	{"less than a moment for a person", "version: 1\nlimits: {ask_wait: 900ms}", `limits.ask_wait cannot be "900ms"`},
	{"a list where a wait belongs", "version: 1\nlimits: {ask_wait: []}", `limits.ask_wait is a list`},
	{"a wait of another name", "version: 1\nlimits: {ask_waits: 1s}", `ask_wait`},
	{"a list where a lifetime belongs", "version: 1\nlimits: {tunnel_lifetime: [1h]}", `limits.tunnel_lifetime is a list; write a duration from 5s to 720h`},
	{"a bad pattern", "version: 1\nallow: ['https://a.test/']", `f:2:9: allow[0]: "https://a.test/" is not a pattern`},
	{"a rule without a host", "version: 1\nallow: [{methods: [GET]}]", `f:2:9: allow[0] has no host; add "host: example.com"`},
	{"a pattern and a port with a space", "version: 1\nallow:\n  - a.test: 443", `f:3:5: allow[0] is a mapping; write the port without a space before it: "a.test:443"`},
	{"a method in lower case", "version: 1\nallow: [{host: a.test, methods: [get]}]", `allow[0].methods: "get" is not a method; write it as requests do, like GET`},
	{"CONNECT as a method", "version: 1\nallow: [{host: a.test, methods: [CONNECT]}]", `CONNECT opens a tunnel`},
	{"no methods", "version: 1\nallow: [{host: a.test, methods: []}]", `allow[0].methods is empty; name some`},
	{"a path without a slash", "version: 1\nallow: [{host: a.test, paths: [a]}]", `path "a" does not begin with /; write "/a"`},
	{"a path that no request has", "version: 1\nallow: [{host: a.test, paths: [/a/../b]}]", `path "/a/../b" has a dot segment, so no request can match it`},
	{"a path with a query", "version: 1\nallow: [{host: a.test, paths: ['/a?b']}]", `path "/a?b" has a query or a fragment; write the path alone`},
	{"an option of an allow on a deny", "version: 1\ndeny: [{host: a.test, tls: any}]", `deny[0].tls loosens an allow and means nothing here`},
	{"another option", "version: 1\nallow: [{host: a.test, tls: none}]", `allow[0].tls cannot be "none"; write "any"`},
	{"an option with a condition", "version: 1\nallow: [{host: a.test, tls: any, methods: [GET]}]", `remove one`},
	{"an id twice", "version: 1\nallow: [{host: a.test, id: x}]\ndeny: [{host: b.test, id: x}]", `f:3:27: deny[0].id: a rule in line 2 has the id "x" too`},
	{"an id that egressd uses", "version: 1\nallow: [{host: a.test, id: default}]", `allow[0].id cannot be "default"`},
	{"an id like a position", "version: 1\nallow: [{host: a.test, id: 'allow[1]'}]", `allow[0].id cannot be "allow[1]"`},
	{"a long reason", "version: 1\nallow: [{host: a.test, reason: " + strings.Repeat("x", 201) + "}]", `allow[0].reason is longer than 200 bytes`},
	{"a version of a release", "version: 1.0", "f:1:10: version cannot be 1.0; write version: 1"},
	{"a port as a key", "version: 1\nallow:\n  - {host: a.test, port: 443}", `f:3:20: allow[0] has no key "port"; a port stands behind the host, one in each rule: host: "a.test:443"`},
	{"ports as a key", "version: 1\nallow:\n  - {ports: [8080, 443], host: '2606:2800::1'}", `f:3:6: allow[0] has no key "ports"; a port stands behind the host, one in each rule: host: "[2606:2800::1]:8080"`},
	{"a host by another name", "version: 1\nallow:\n  - {domain: a.test, methods: [GET]}", `f:3:6: allow[0] has no key "domain"; write host: a.test`},
	{"two ports of one host", "version: 1\nallow: [a.test:80,443]", `f:2:19: allow[1] is a number; for a further port write the host again: "a.test:443"`},
	{"two ports of one host in quotes", "version: 1\ndeny: ['a.test:80, 443']", "f:2:8: deny[0]: \"a.test:80, 443\" is not a pattern: it has several ports; write a pattern for each: a.test:80, a.test:443"},
	{"a list that is not closed", "version: 1\nallow: [a.test,\n  b.test\ndeny: [c.test]", "f:2:8: [ is not closed; write ] where it ends"},
	{"a mapping in a list that is not closed", "version: 1\nallow: [{host: a.test\ndeny: [c.test]", "f:2:9: { is not closed; write } where it ends"},
	{"a list that is not closed at the end", "version: 1\nallow:\n  - {host: a.test, methods: [GET}", "f:3:29: [ is not closed; write ] where it ends"},
	{"a mapping that is not closed", "version: 1\nallow: # don't [\n  - {host: 'it''s {', id: x", "f:3:5: { is not closed; write } where it ends"},
	{"a quote that is not closed", "version: 1\nallow:\n  - \"a.test", "f:3:5: \" is not closed; write \" where it ends"},
	{"a quote in a list that is not closed", "version: 1\nallow: ['a.test, b.test]\n", "f:2:9: ' is not closed; write ' where it ends"},
	{"an item that is indented deeper", "version: 1\nallow:\n - a.test\n  - b.test", `two items of a list were read as one; indent both alike: - "a.test" and - "b.test"`},
	{"a Cyrillic letter", "version: 1\nallow: ['\u0435xample.com']", `f:2:9: allow[0]: "\u0435xample.com" is not a pattern: it looks like example.com, and is another name; type its letters anew, or write xn--xample-2of.com if that name is meant`},
	{"an unknown preset", "version: 1\npresets: [nmp]", `f:2:11: there is no preset "nmp"; did you mean "npm"?`},
	{"a preset that is like none", "version: 1\npresets: [xxxxxxxxxxxxxxxxxx]", `f:2:11: there is no preset "xxxxxxxxxxxxxxxxxx"; write one of ` + strings.Join(Presets(), ", ")},
	{"a preset twice", "version: 1\npresets: [npm, npm]", `the preset "npm" stands twice`},
	{"loopback under allow", "version: 1\nallow: ['127.0.0.1:8080']", `f:2:9: allow[0]: 127.0.0.1:8080 is loopback; no allow rule opens that. If a sandbox must reach it, write it under unsafe_allow`},
	{"metadata under allow", "version: 1\nallow: [169.254.169.254]", `is metadata; no allow rule opens that`},
	{"a link-local prefix under allow", "version: 1\nallow: ['[fe80::/10]:80']", `is link-local; no allow rule opens that`},
	{"a loopback name under allow", "version: 1\nallow: [localhost]", `localhost is loopback`},
	{"a public name under unsafe_allow", "version: 1\nunsafe_allow: [a.test]", `a.test is a public name; write it under allow`},
	{"a test without a verdict", "version: 1\ntests: [GET https://a.test/]", `tests[0]: "GET https://a.test/" does not begin with allow, deny or ask`},
	{"a test without a request", "version: 1\ntests: [deny]", `tests[0]: there is no host`},
	{"a listener without a port", "version: 1\nlisten: {proxy: [127.0.0.1]}", `listen.proxy[0]: "127.0.0.1" is not an address and a port`},
	{"a listener with a name", "version: 1\nlisten: {proxy: ['localhost:3128']}", `listen.proxy[0]: "localhost:3128" is not an address and a port`},
	{"a socket with a relative path", "version: 1\nlisten: {proxy: ['unix:x.sock']}", `"x.sock" is not an absolute path`},
	{"the admin for everyone", "version: 1\nlisten: {admin: '0.0.0.0:9000'}", `listen.admin: 0.0.0.0:9000 can be reached from other machines`},
	{"the admin at any port", "version: 1\nlisten: {admin: '127.0.0.1:0'}", `listen.admin: 127.0.0.1:0 has no port`},
	{"two listeners at one place", "version: 1\nlisten: {proxy: ['127.0.0.1:1'], admin: '127.0.0.1:1'}", `listen.admin is 127.0.0.1:1, and so is listen.proxy[0]`},
	{"a sandbox without a name", "version: 1\nsandboxes: [{token_file: t}]", `f:2:13: sandboxes[0] has no name`},
	{"a sandbox that nothing tells apart", "version: 1\nsandboxes: [{name: a}]", `nothing tells sandboxes[0] from the others; add token_file, listen, enter, uid, source, docker or certificate`},
	{"a sandbox twice", "version: 1\nsandboxes: [{name: a, token_file: t}, {name: a, token_file: u}]", `a sandbox "a" stands above already`},
	{"a sandbox with a bad name", "version: 1\nsandboxes: [{name: 'a b', token_file: t}]", `sandboxes[0].name cannot be "a b"`},
	{"a sandbox with an unclear allow", "version: 1\nsandboxes: [{name: a, token_file: t, allow: }]", `sandboxes[0].allow has no value; write []`},
	{"a resolver by name", "version: 1\nupstream: {dns: [dns.google]}", `upstream.dns[0]: "dns.google" is not a resolver; write system`},

	{"rego that is no list", "version: 1\nrego: policy/", `f:2:7: rego is text; write a list`},
	{"rego without a file", "version: 1\nrego: []", `f:2:7: rego lists no file, so nothing would be decided by it; name a file or a folder`},
	{"rego without a value", "version: 1\nrego:", `rego has no value`},
	{"an empty path of rego", "version: 1\nrego: ['']", `f:2:8: rego[0] is empty`},
	{"rego for one sandbox without a file", "version: 1\nsandboxes: [{name: a, token_file: t, rego: []}]", `sandboxes[0].rego lists no file`},
	{"a bundle for one sandbox", "version: 1\nsandboxes: [{name: a, token_file: t, rego: [x, {bundle: b.tar.gz}]}]", `f:2:48: sandboxes[0].rego[1]: only files and folders that decide can stand here; write bundles`},
	{"a shadow for one sandbox", "version: 1\nsandboxes: [{name: a, token_file: t, rego: [{path: x, mode: shadow}]}]", `sandboxes[0].rego[0]: only files and folders`},
	{"a ceiling that is no list", "version: 1\nceiling: a.test", `f:2:10: ceiling is text; write a list`},
	{"a ceiling with a credential", "version: 1\nceiling: [{host: a.test, inject: {header: X-Key, env: K}}]", `ceiling[0].inject: a ceiling says where to, and gives nothing`},
	{"a ceiling with ech", "version: 1\nceiling: [{host: a.test, ech: allow}]", `ceiling[0].ech: a ceiling says where to, and gives nothing`},
	{"a ceiling with tls", "version: 1\nceiling: [{host: a.test, tls: any}]", `ceiling[0].tls: a ceiling`},
	{"a ceiling with upgrade", "version: 1\nceiling: [{host: a.test, paths: [/x], upgrade: websocket}]", `ceiling[0].upgrade: a ceiling`},
	{"a ceiling that needs what is never inspected", "version: 1\ntls: {never: [a.test]}\nceiling: [{host: a.test, methods: [GET]}]", `ceiling[0]: methods of a.test needs a look into tunnels`},
	{"a rule named ceiling", "version: 1\nallow: [{host: a.test, id: ceiling}]", `allow[0].id cannot be "ceiling", which egressd itself uses`},
	{"a transparent listener on a socket", "version: 1\nlisten: {transparent: ['unix:/run/t']}", `f:2:24: listen.transparent[0]: "unix:/run/t" is not an address and a port; write 10.99.0.2:3129`},
	{"a transparent listener of another kind", "version: 1\nlisten: {transparent: ['redirect:127.0.0.1:3129']}", `listen.transparent[0]: "redirect:127.0.0.1:3129" is not`},
	{"a transparent listener at any port", "version: 1\nlisten: {transparent: ['tproxy:127.0.0.1:0']}", `listen.transparent[0]: "tproxy:127.0.0.1:0" is not`},
	{"a transparent listener in a mapped address", "version: 1\nlisten: {transparent: ['[::ffff:127.0.0.1]:3129']}", `listen.transparent[0]: "[::ffff:127.0.0.1]:3129" is not`},
	{"a transparent listener where the proxy is", "version: 1\nlisten: {transparent: ['127.0.0.1:3128']}", `listen.transparent[0] is 127.0.0.1:3128, and so is listen.proxy[0]`},
	{"two kinds of transparent listeners at one place", "version: 1\nlisten: {transparent: ['127.0.0.1:3129', 'tproxy:127.0.0.1:3129']}", `listen.transparent[1] is 127.0.0.1:3129, and so is listen.transparent[0]`},
	{"a DNS listener on a socket", "version: 1\nlisten: {dns: ['unix:/run/dns']}", `listen.dns[0]: "unix:/run/dns" is not an address and a port; write 127.0.0.1:53 or [::1]:53`},
	{"a DNS listener over TLS", "version: 1\nlisten: {dns: ['tls:127.0.0.1:853']}", `listen.dns[0]: "tls:127.0.0.1:853" is not`},
	{"a DNS listener by name", "version: 1\nlisten: {dns: ['localhost:53']}", `listen.dns[0]: "localhost:53" is not`},
	{"a DNS listener without a port", "version: 1\nlisten: {dns: ['127.0.0.1']}", `listen.dns[0]: "127.0.0.1" is not`},
	{"a DNS listener in a mapped address", "version: 1\nlisten: {dns: ['[::ffff:127.0.0.1]:53']}", `listen.dns[0]: "[::ffff:127.0.0.1]:53" is not`},
	{"a DNS listener where the proxy is", "version: 1\nlisten: {dns: ['127.0.0.1:3128']}", `listen.dns[0] is 127.0.0.1:3128, and so is listen.proxy[0]`},
	{"no questions at all", "version: 1\nlimits: {dns_queries_per_second: 0}", `limits.dns_queries_per_second`},
	{"a type that is not answered", "version: 1\nupstream: {dns_types: [MX]}", `upstream.dns_types[0]`},
	{"names that tell nothing", "version: 1\nlimits: {dns_name_bytes: 63}", `limits.dns_name_bytes`},
	{"an upstream proxy of another kind", "version: 1\nupstream: {proxy: 'socks4://p.test:3128'}", `upstream.proxy has the scheme "socks4"; write http, https, socks5 or socks5+tls`},
	{"an upstream proxy with a password in its URL", "version: 1\nupstream: {proxy: 'http://me:geheim@p.test:3128'}", `upstream.proxy has a user or a password in its URL, where logs could show it; write user and password_file beside url`},
	{"an upstream proxy without a port", "version: 1\nupstream: {proxy: 'http://p.test'}", `upstream.proxy has no port; write it like`},
	{"an upstream proxy with a path", "version: 1\nupstream: {proxy: 'http://p.test:3128/x'}", `upstream.proxy is not the URL of a proxy; write it like`},
	{"an upstream proxy that is no host", "version: 1\nupstream: {proxy: 'http://127.1:3128'}", `upstream.proxy: "127.1:3128" is not a destination`},
	{"an upstream proxy without its URL", "version: 1\nupstream: {proxy: {by_name: true}}", `upstream.proxy has no url; add`},
	{"a user without a password", "version: 1\nupstream: {proxy: {url: 'http://p.test:3128', user: me}}", `upstream.proxy has a user without a password; add password_file or password_command`},
	{"a password without a user", "version: 1\nupstream: {proxy: {url: 'http://p.test:3128', password_file: p}}", `upstream.proxy has a password without a user; add user`},
	{"two passwords", "version: 1\nupstream: {proxy: {url: 'http://p.test:3128', user: me, password_file: p, password_command: [c]}}", `upstream.proxy has password_file and password_command; keep one`},
	{"a user with a colon", "version: 1\nupstream: {proxy: {url: 'http://p.test:3128', user: 'a:b', password_file: p}}", `without a colon`},

	{"a bad pattern that is never inspected", "version: 1\ntls: {never: ['https://a.test/']}", `f:2:15: tls.never[0]: "https://a.test/" is not a pattern`},
	{"text where the hosts that are never inspected belong", "version: 1\ntls: {never: a.test}", `f:2:14: tls.never is text; write a list`},
	{"another upgrade", "version: 1\nallow: [{host: a.test, paths: [/x], upgrade: h2c}]", `f:2:46: allow[0].upgrade cannot be "h2c"; write "websocket"`},
	{"an upgrade on a deny", "version: 1\ndeny: [{host: a.test, upgrade: websocket}]", `f:2:32: deny[0].upgrade stands only in rules of the file's own list allow; write it there, and leave it out here`},
	{"an upgrade on an ask", "version: 1\nask: [{host: a.test, upgrade: websocket}]", `ask[0].upgrade stands only in`},
	{"an upgrade under unsafe_allow", "version: 1\nunsafe_allow: [{host: 127.0.0.1, upgrade: websocket}]", `unsafe_allow[0].upgrade stands only in`},
	{"an upgrade for one sandbox", "version: 1\nsandboxes: [{name: a, token_file: t, allow: [{host: a.test, upgrade: websocket}]}]", `sandboxes[0].allow[0].upgrade stands only in`},
}

func TestBadFiles(t *testing.T) {
	for _, row := range badFiles {
		t.Run(row.name, func(t *testing.T) {
			f, err := Parse("f", []byte(row.text))
			if err == nil {
				t.Fatal("it was accepted")
			}
			if f != nil {
				t.Error("there is a value beside the error")
			}
			for part := range strings.SplitSeq(row.want, "\n") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error is\n%v\nand does not hold\n%s", err, part)
				}
			}
		})
	}
}

func TestAllProblemsAreSaidTogether(t *testing.T) {
	_, err := Parse("f", []byte("version: 1\nallow: [127.0.0.1]\nalow: []\ndeny: [a.test, ':']\n")) // the first is found last
	var problems policy.FileError
	if !errors.As(err, &problems) || len(problems) != 3 {
		t.Fatalf("got %v", err)
	}
	for i, line := range []int{2, 3, 4} {
		if problems[i].Line != line {
			t.Errorf("problem %d is in line %d, want %d", i, problems[i].Line, line)
		}
	}
}

func TestNoMoreThanTwentyProblemsAreSaid(t *testing.T) {
	_, err := Parse("f", []byte("version: 1\nallow:\n"+strings.Repeat("- ':'\n", 50)))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 21 || lines[20] != "f: and 30 more; correct these first" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
}

func TestATooLongFileIsNotRead(t *testing.T) {
	text := append([]byte("version: 1\n#"), make([]byte, maxFileBytes)...)
	if _, err := Parse("f", text); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}

// TestPlacesAreReadFromAFileWithAnError has errors that no other command would forgive.
func TestPlacesAreReadFromAFileWithAnError(t *testing.T) {
	const good = "version: 1\nlisten:\n  proxy: [\"127.0.0.1:1\"]\n\n# a comment\n  admin: \"unix:/a/b.sock\"\n"
	for says, text := range map[string]string{
		"an unknown key":   good + "audit: {dir: /log}\nalow: [a.test]\n",
		"a bad host":       good + "audit: {dir: /log}\nallow: [\"a b\"]\n",
		"no YAML":          good + "audit: {dir: /log}\nallow: [\n",
		"no YAML before":   "allow: [a.test\n" + good + "audit:\n  dir: /log\n",
		"a tab in a rule":  good + "audit: {dir: /log}\nallow:\n\t- a.test\n",
		"nothing is wrong": good + "audit: {dir: /log}\n",
	} {
		f, err := ParsePlaces("f", []byte(text))
		if err != nil || f.Listen.Admin != "unix:/a/b.sock" || f.Audit.Dir != "/log" || len(f.Allow) > 0 {
			t.Errorf("%s: %+v, %v", says, f, err)
		}
	}
	f, err := ParsePlaces("f", []byte("version: 1\nlisten: {admni: \"unix:/a\"}\naudit: {dir: /log}\n"))
	if err != nil || f.Listen.Admin != "" || f.Audit.Dir != "/log" {
		t.Errorf("a wrong section listen: %+v, %v", f, err)
	}
	if f, err := ParsePlaces("f", []byte("version: 1\naudit: {dri: /log}\n")); err == nil {
		t.Errorf("a wrong section audit, and another log would be read: %+v", f)
	}
}

func TestTheDigestFollowsTheText(t *testing.T) {
	same := compiled(t, "presets: [npm]", Environment{}).Digest()
	if again := compiled(t, "presets: [npm]", inspecting).Digest(); again != same {
		t.Errorf("%s became %s", same, again)
	}
	if other := compiled(t, "presets: [npm] ", Environment{}).Digest(); other == same {
		t.Error("another text has the same digest")
	}
	if other := compiled(t, "", Environment{}).Digest(); !strings.HasPrefix(other, "sha256:") || len(other) != 71 {
		t.Errorf("the digest is %q", other)
	}
}

func TestAPolicyWithOtherEvaluatorsIsNotPrompt(t *testing.T) {
	if !compiled(t, "", Environment{}).AnswersAtOnce() {
		t.Error("rules alone do not answer at once")
	}
	if compiled(t, "", Environment{Evaluators: []policy.Evaluator{voice{}}}).AnswersAtOnce() {
		t.Error("another evaluator may be slow")
	}
}

func TestWarnings(t *testing.T) {
	rows := []struct{ lines, want string }{
		{"", "f:1:1: no allow rules: everything is denied"},
		{"allow: []", "no allow rules: everything is denied"},
		{"default: allow", "f:2:10: default is allow"},
		{"allow: ['*']", "f:2:9: allow[0]: * allows every public host"},
		{"allow: ['*.com']", "allows every domain that anyone registers there"},
		{"allow: ['*.co.uk']", "allows every domain that anyone registers there"},
		{"allow: ['*.test']", "allows every domain that anyone registers there"},
		{"allow: ['*.github.io']", "allows hosts that anyone can rent or make"},
		{"allow: ['*.s3.amazonaws.com']", "allows hosts that anyone can rent or make"},
		{"allow: ['*.githubusercontent.com']", "allows hosts that anyone can rent or make"},
		{"allow: ['*.amazonaws.com']", "allows hosts that anyone can rent or make"},
		{"allow: [s3.amazonaws.com]", "holds data of everyone"},
		{"allow: [raw.githubusercontent.com]", "holds data of everyone"},
		{"allow: [0.0.0.0/0]", "allows a large part of the address space"},
		{"unsafe_allow: ['127.0.0.1:8080']", "f:2:16: unsafe_allow[0] opens 127.0.0.1:8080"},
		{"default: allow\nallow: [{host: a.test, methods: [GET]}]", "allow[0] changes nothing"},
		{"allow: [a.test]", ""},
		{"allow: [acme.github.io, '*.a.test', '10.0.0.0/8:8443', '*.github.com']", ""},
		{"allow: [{host: 'a.test:80', methods: [GET]}]", ""},
		{"allow: [{host: a.test, methods: [GET]}]", ""},
		{"allow: [a.test]\ntls: {ca_dir: /ca, never: [a.test], extra_roots: [/r.pem]}", ""},
		{"presets: [npm]", ""},
	}
	for _, row := range rows {
		f, err := Parse("f", []byte("version: 1\n"+row.lines))
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(f.Warnings(), "\n")
		if row.want == "" && said != "" || !strings.Contains(said, row.want) {
			t.Errorf("%s: warned %q, want %q", row.lines, said, row.want)
		}
	}
}

// FuzzParseFile holds that a text is a file or an error and never both, that a
// file compiles or says why not, and that nothing private is open unless a
// line of the file is about that very address.
func FuzzParseFile(f *testing.F) {
	f.Add(string(readSample(f)))
	for _, row := range badFiles {
		f.Add(row.text)
	}
	for _, row := range ruleRows {
		f.Add("version: 1\n" + row.lines)
	}
	private := []netip.Addr{
		netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254"),
		netip.MustParseAddr("::1"), netip.MustParseAddr("fd12::5"), netip.MustParseAddr("64:ff9b::a00:5"),
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("f", []byte(text))
		if (file == nil) == (err == nil) {
			t.Fatalf("%v and %v", file, err)
		}
		if err != nil {
			return
		}
		p, err := file.Compile(Environment{Inspection: true})
		if (p == nil) == (err == nil) {
			t.Fatalf("%v and %v", p, err)
		}
		for _, addr := range private {
			if p != nil && !named(file, addr) {
				mustRefuse(t, p, addr)
			}
		}
	})
}

// named reports whether a line that allows is about addr or its embedded form
// and could be an exception.
func named(f *File, addr netip.Addr) bool {
	for _, list := range [][]policy.Rule{f.Allow, f.UnsafeAllow} {
		for _, rule := range list {
			p := rule.Pattern
			if p.IsAddress() && (policy.InSpecialSpace(p) || p.OneHost()) && (p.CoversAddr(addr) || p.CoversAddr(policy.EmbeddedIPv4(addr))) {
				return true
			}
		}
	}
	return false
}

func mustRefuse(t *testing.T, p *policy.Policy, addr netip.Addr) {
	asked := policy.Destination{Host: addr.String(), Addr: addr, Port: 443}
	resolved := policy.Destination{Host: "a.test", Port: 443, Addrs: []netip.Addr{netip.MustParseAddr("93.184.216.34"), addr}}
	for _, destination := range []policy.Destination{asked, resolved} {
		if d := p.Decide(context.Background(), &policy.Request{Destination: destination}); d.Verdict != policy.Deny {
			t.Errorf("%s at %s: %s", destination, addr, saying(d))
		}
	}
}

func TestACredentialUnderDefaultAllowChangesSomething(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\ndefault: allow\nallow: [{host: a.test, paths: [/v1], inject: {header: X-Key, env: KEY}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if said := f.Warnings(); len(said) != 1 || !strings.Contains(said[0], "default is allow") {
		t.Errorf("warned %q", said)
	}
}

func TestTheOperatorsListenerIsNothingToWarnOf(t *testing.T) {
	f, err := Parse("t.yaml", []byte("version: 1\nallow: [a.example]\nlisten: {admin: \"unix:/run/a.sock\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if said := f.Warnings(); len(said) != 0 {
		t.Errorf("warned %q", said)
	}
}
