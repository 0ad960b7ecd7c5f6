package world

import (
	"encoding/json"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// FixRules are the rules of a policy that has one of each kind that denies. FixRego is its file below the folder policy.
const FixRules = `allow:
  - {host: narrow.test, methods: [GET], paths: ["/v1/**"], id: read-narrow}
  - filed.test
deny:
  - {host: shut.test, id: shut, reason: nobody needs it}
ask:
  - {host: asked.test, id: ask-first}
rego: [policy]
limits: {ask_wait: 1s, dial_timeout: 2s}
`

const FixRego = `package egress

allow contains {"rule": "read-rego"} if {
	input.destination.host == "rego.test"
	input.http.method == "GET"
	startswith(input.http.path, "/r/")
}
`

// fixData is a label that looks like data.
const fixData = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab"

// said prints the number of a request, whether it passed, and the reply with carriage returns for its line ends.
const said = `
said() { name=$1; shift; out=$("$@" 2>/dev/null | tr '\n' '\r'); case $out in *origin*) echo "$name passes";; *) echo "$name denied $out";; esac; }
`

// FixTools has the requests of [FixCases] as functions of a shell, for places with the programs of this machine.
const FixTools = `
http() { curl -sSk -m9 $VIA -X "$1" "$2"; }
mcp() { curl -sSk -m9 $VIA -w '\n%{http_code}' -H 'Accept: application/json, text/event-stream' "$@"; }
git() { curl -sSk -m9 $VIA -A git/2.47 "$1"; }
page() { curl -sSk -m9 $VIA -H 'Accept: text/html' "$1"; }
socks() { curl -sS -m9 --socks5-hostname "$SOCKS" "$1"; }
raw() { bash -c "exec 3<>/dev/tcp/$1/$2 && echo hello >&3 && head -c 6 <&3"; }
shell() { timeout 9 sh -c 'ssh -v -p "$1" -o StrictHostKeyChecking=no -o BatchMode=yes "u@$0" true 2>&1 | { sed "/remote software version lab/{s/.*/origin/;q}"; kill 0; }' "$1" "$2"; }
name() { dig @"${NAMES%:*}" -p "${NAMES#*:}" +time=3 +tries=1 +noall +answer "$1" | sed 's/.*IN.*A.*/origin/'; }
`

// CapturedFixTools are as FixTools, for places where a packet filter hands all connections to egressd. A name that is denied has no
// address there, so connections go to that of another host.
const CapturedFixTools = `
http() { case $2 in http://10.*) to=::;; *) to="::` + EvilIPv4 + `:";; esac; curl -sSk -m9 --connect-to "$to" -X "$1" "$2"; }
mcp() { curl -sSk -m9 --connect-to "::` + EvilIPv4 + `:" -w '\n%{http_code}' -H 'Accept: application/json, text/event-stream' "$@"; }
name() { dig @8.8.8.8 +time=3 +tries=1 +noall +answer "$1" | sed 's/.*IN.*A.*/origin/'; }
`

// A FixCase is a denied request. A fix changes nothing about its neighbours.
type FixCase struct {
	Name, request string
	neighbours    []string
	place         string // of the record: host and port, or the name of a question
	never         string // instead of a command: what why says of who can help
	kinds         string // of places, see [FixCases]
}

var fixCases = []FixCase{
	{"http", "http GET http://plain.test/a", []string{"http POST http://plain.test/a", "http GET http://plain.test/b", "http GET http://plain.test:8080/a", "http GET http://sub.plain.test/a"}, "plain.test:80", "", "any container brief"},
	{"https", "http GET https://tls.test/a", []string{"http GET https://tls.test:8443/a", "http GET https://sub.tls.test/a", "http GET http://tls.test/a"}, "tls.test:443", "", "any container"},
	{"https at a port", "http GET https://port.test:8443/a", []string{"http GET https://port.test/a", "http GET https://sub.port.test:8443/a"}, "port.test:8443", "", "any"},
	{"text of git", "git http://git.test/a", []string{"git http://git.test/b", "git http://sub.git.test/a"}, "git.test:80", "", "machine"},
	{"page", "page http://page.test/a", []string{"page http://page.test/b", "page http://sub.page.test/a"}, "page.test:80", "", "machine"},
	{"raw", "raw raw.test 7000", []string{"raw raw.test 7001", "raw sub.raw.test 7000"}, "raw.test:7000", "", "captured"},
	{"text of ssh", "shell ssh.test 22", []string{"shell ssh.test 23", "shell sub.ssh.test 22"}, "ssh.test:22", "", "captured"},
	{"socks", "socks http://socks.test:7000/a", []string{"socks http://socks.test:7001/a", "socks http://sub.socks.test:7000/a"}, "socks.test:7000", "", "serve"},
	{"name", "name named.test", []string{"name sub.named.test", "name other.test"}, "named.test", "", "names"},
	{"narrow method", "http POST http://narrow.test/v1/a", []string{"http GET http://narrow.test/v1/a"}, "narrow.test:80", "change       rule read-narrow", "any container"},
	{"narrow path inside TLS", "http GET https://narrow.test/v2", []string{"http GET https://narrow.test/v1/a"}, "narrow.test:443", "change       rule read-narrow", "any container"},
	{"rego method inside TLS", "http POST https://rego.test/r/a", []string{"http GET https://rego.test/r/a"}, "rego.test:443", "change       rule read-rego", "any"},
	{"rule deny", "http GET http://shut.test/a", []string{"http GET http://sub.shut.test/a"}, "shut.test:80", "change       rule shut", "any container brief"},
	{"data", "http GET http://" + fixData + ".test/a", nil, fixData + ".test:80", "it may carry data", "any"},
	{"private address", "http GET http://10.0.0.5/a", nil, "10.0.0.5:80", "under allow", "any container"},
	{"ambiguous path", "http GET http://plain.test/a//b", nil, "plain.test:80", "none can name this request", "any"},
	{"ask", "http GET http://asked.test/a", nil, "asked.test:80", "", "serve sidecar"},
	{"neither list", "http GET http://plain.test/a", []string{"http POST http://plain.test/a", "http GET http://plain.test/b", "http GET http://sub.plain.test/a"}, "plain.test:80", "", "listed"},
	{"the list of the file alone", "http GET http://filed.test/a", []string{"http POST http://filed.test/a", "http GET http://filed.test/b", "http GET http://sub.filed.test/a"}, "filed.test:80", "", "listed"},
	{"the sandbox's own list alone", "http GET http://own.test/a", []string{"http POST http://own.test/a", "http GET http://own.test/b", "http GET http://sub.own.test/a"}, "own.test:80", "", "listed"},
	{"https, neither list", "http GET https://tls.test/a", []string{"http GET https://tls.test:8443/a", "http GET https://sub.tls.test/a"}, "tls.test:443", "", "listed"},
	{"narrow method, in both lists", "http POST http://narrow.test/v1/a", []string{"http GET http://narrow.test/v1/a"}, "narrow.test:80", "change       rule read-narrow", "listed"},
	{"rule deny, in the list", "http GET http://shut.test/a", []string{"http GET http://sub.shut.test/a"}, "shut.test:80", "change       rule shut", "listed"},
	{"rule of the organisation", "http GET http://barred.test/a", []string{"http GET http://sub.barred.test/a"}, "barred.test:80", "by whoever writes the policy of its layer: organisation", "organisation"},
	{"above the ceiling", "http GET http://above.test/a", []string{"http GET http://sub.above.test/a"}, "above.test:80", "by whoever writes the policy of its layer: organisation", "organisation"},
	{"above the ceiling, allowed below", "http GET http://filed.test/a", []string{"http GET http://sub.filed.test/a"}, "filed.test:80", "by whoever writes the policy of its layer: organisation", "organisation"},
	{"under the ceiling", "http GET http://plain.test/a", []string{"http POST http://plain.test/a", "http GET http://sub.plain.test/a"}, "plain.test:80", "", "organisation"},
}

// FixCases returns the cases for a place of one of the kinds. A place is of the kind any, unless its policy has an organisation's
// file above it (organisation) or its sandbox has a list of its own (listed). It may have the programs of this machine, or capture
// all connections, or serve proxies or names. The kinds container and brief have few of the cases, for places that take their time.
func FixCases(kinds ...string) (all []FixCase) {
	for _, c := range fixCases {
		if slices.ContainsFunc(strings.Fields(c.kinds), func(kind string) bool { return slices.Contains(kinds, kind) }) {
			all = append(all, c)
		}
	}
	return all
}

// A FixPlace is where requests are made, and where their fixes are typed.
type FixPlace struct {
	Tools   string                                                                        // as FixTools
	Do      func(t *testing.T, script string) (out, talk string, records []record.Record) // in the sandbox
	Typed   func(t *testing.T, line string) (said string, err error)                      // as a person types it
	Command func(words string) string                                                     // the line that is that command of egressd
	Policy  string                                                                        // path of the policy file
	Served  bool                                                                          // by a daemon, which has grants
	Other   *FixPlace                                                                     // another sandbox of the same policy, if one is tried
	Explain string                                                                        // the words of check -v, where a saved line counts at once
}

// Try has a request denied, and types each fix that is printed for it, where it was printed. The request works then, and
// its neighbours are as they were.
func (p *FixPlace) Try(t *testing.T, c *FixCase) {
	before, reply, talk, records := p.ask(t, c)
	if before[0] != "denied" {
		t.Fatalf("the request passes before the fix: %q %q", reply, talk)
	}
	flow := deniedFlow(records, c.place)
	if flow == "" {
		t.Fatalf("no record denies %s: %+v", c.place, records)
	}
	why, _ := p.Typed(t, p.Command("why "+flow))
	fixes := p.fixes(t, flow, reply, talk, why)
	if asked := strings.Fields(c.request); p.Explain != "" && asked[0] == "http" {
		explained, _ := p.Typed(t, p.Command(p.Explain)+" -X "+asked[1]+" "+asked[2])
		if fix := fixLine.FindString(explained); fix != "" {
			fixes = append(fixes, fix)
		} else if c.never == "" {
			t.Errorf("check -v has no fix:\n%s", explained)
		}
	}
	if c.never != "" {
		if len(fixes) > 0 || !strings.Contains(why, c.never) {
			t.Errorf("no command may open that, and %s can: %q in\n%s", c.never, fixes, why)
		}
		return
	}
	if len(fixes) == 0 {
		t.Errorf("no fix is printed: %q\n%s\n%s", reply, talk, why)
	}
	policy, err := os.ReadFile(p.Policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, fix := range fixes {
		if said, err := p.Typed(t, fix); err != nil {
			t.Errorf("%s: %v\n%s", fix, err, said)
			continue
		}
		after, reply, talk, _ := p.ask(t, c)
		if after[0] != "passes" || !slices.Equal(after[1:], before[1:]) {
			t.Errorf("%s: the request and its neighbours were %q, and are %q: %q\n%s", fix, before, after, reply, talk)
		}
		p.takeBack(t, policy)
	}
}

// ask makes the request and its neighbours, and returns for each whether it passes or is denied.
func (p *FixPlace) ask(t *testing.T, c *FixCase) (passes []string, reply, talk string, records []record.Record) {
	t.Helper()
	script := said + p.Tools
	for i, r := range append([]string{c.request}, c.neighbours...) {
		script += fmt.Sprintf("said %d %s\n", i, r)
	}
	out, talk, records := p.Do(t, script)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		number, rest, _ := strings.Cut(line, " ")
		word, more, _ := strings.Cut(rest, " ")
		if number != fmt.Sprint(i) {
			t.Fatalf("printed %q and %s", out, talk)
		}
		passes = append(passes, word)
		if i == 0 {
			reply = strings.ReplaceAll(more, "\r", "\n")
		}
	}
	return passes, reply, talk, records
}

// deniedFlow returns the id of the flow or question that was denied at a place.
func deniedFlow(records []record.Record, place string) (flow string) {
	for _, r := range records {
		at := ""
		switch {
		case r.Decision == nil || r.Decision.Action == "allow":
		case r.Dst != nil:
			at = fmt.Sprintf("%s:%d", r.Dst.Host, r.Dst.Port)
		case r.DNS != nil:
			at = r.DNS.Name
		}
		if at == place {
			return r.Flow
		}
	}
	return ""
}

var fixLine = regexp.MustCompile(`\S*egressd (?:allow|answer) [^\n<,]*`)

// fixes returns the commands that are printed for a denial: in its reply, at the end of the run, by why and by log.
func (p *FixPlace) fixes(t *testing.T, flow, reply, talk, why string) (all []string) {
	add := func(text string) {
		if fix := strings.TrimSpace(fixLine.FindString(text)); fix != "" && !slices.Contains(all, fix) {
			all = append(all, fix)
		}
	}
	for line := range strings.Lines(reply) {
		var body struct{ Fix string }
		if i := strings.IndexByte(line, '{'); i >= 0 && json.Unmarshal([]byte(line[i:]), &body) == nil {
			add(body.Fix)
		} else {
			add(html.UnescapeString(line))
		}
	}
	for line := range strings.Lines(talk) {
		if strings.Contains(line, flow) {
			add(line)
		}
	}
	for line := range strings.Lines(why) {
		if strings.HasPrefix(line, "  fix ") || strings.HasPrefix(line, "  question ") {
			add(line)
		}
	}
	rows, _ := p.Typed(t, p.Command("log flow:"+flow))
	for line := range strings.Lines(rows) {
		if strings.Contains(line, flow) {
			add(line)
		}
	}
	return all
}

// takeBack undoes a fix.
func (p *FixPlace) takeBack(t *testing.T, policy []byte) {
	t.Helper()
	if now, _ := os.ReadFile(p.Policy); string(now) != string(policy) {
		if err := os.WriteFile(p.Policy, policy, 0o644); err != nil {
			t.Fatal(err)
		}
		if said, err := p.Typed(t, p.Command("reload")); p.Served && err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	if !p.Served {
		return
	}
	if said, err := p.Typed(t, p.Command("allow --undo all")); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}
