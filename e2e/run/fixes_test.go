package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// fixPolicy has a rule of each kind that denies, beside what no rule mentions.
const fixPolicy = `version: 1
allow:
  - {host: narrow.test, methods: [GET], paths: ["/v1/**"], id: read-narrow}
deny:
  - {host: shut.test, id: shut, reason: nobody needs it}
ask:
  - {host: asked.test, id: ask-first}
rego: [policy]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
limits: {ask_wait: 1s, dial_timeout: 2s}
`

const fixRego = `package egress

allow contains {"rule": "read-rego"} if {
	input.destination.host == "rego.test"
	input.http.method == "GET"
	startswith(input.http.path, "/r/")
}
`

// fixData is a label that looks like data.
const fixData = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab"

// fixPrelude has the requests of [fixCase]. Each prints its name, whether it passed, and the reply.
const fixPrelude = `
said() { name=$1; shift; out=$("$@" 2>/dev/null | tr '\n' ' '); case $out in *origin*) echo "$name passes";; *) echo "$name denied $out";; esac; }
http() { curl -sSk -m9 $VIA -X "$1" "$2"; }
socks() { curl -sS -m9 --socks5-hostname "$SOCKS" "$1"; }
raw() { bash -c "exec 3<>/dev/tcp/$1/$2 && echo hello >&3 && head -c 6 <&3"; }
name() { dig @"${NAMES%:*}" -p "${NAMES#*:}" +time=3 +tries=1 +noall +answer "$1" | sed 's/.*IN.*A.*/origin/'; }
`

// A fixCase is a request that is denied, and neighbours of it that have to stay as they are.
type fixCase struct {
	name, request string
	neighbours    []string
	place         string // of the record: host and port, or the name of a question
	never         string // instead of a command: what why says of who can help
	modes         string // all if empty
}

var fixCases = []fixCase{
	{"http", "http GET http://plain.test/a", []string{"http POST http://plain.test/a", "http GET http://plain.test/b", "http GET http://plain.test:8080/a", "http GET http://sub.plain.test/a"}, "plain.test:80", "", ""},
	{"https", "http GET https://tls.test/a", []string{"http GET https://tls.test:8443/a", "http GET https://sub.tls.test/a", "http GET http://tls.test/a"}, "tls.test:443", "", ""},
	{"https at a port", "http GET https://port.test:8443/a", []string{"http GET https://port.test/a", "http GET https://sub.port.test:8443/a"}, "port.test:8443", "", ""},
	{"raw", "raw raw.test 7000", []string{"raw raw.test 7001", "raw sub.raw.test 7000"}, "raw.test:7000", "", "alone beside enter"},
	{"socks", "socks http://socks.test:7000/a", []string{"socks http://socks.test:7001/a", "socks http://sub.socks.test:7000/a"}, "socks.test:7000", "", "serve"},
	{"name", "name named.test", []string{"name sub.named.test", "name other.test"}, "named.test", "", "serve"},
	{"narrow method", "http POST http://narrow.test/v1/a", []string{"http GET http://narrow.test/v1/a"}, "narrow.test:80", "change       rule read-narrow", ""},
	{"narrow path inside TLS", "http GET https://narrow.test/v2", []string{"http GET https://narrow.test/v1/a"}, "narrow.test:443", "change       rule read-narrow", ""},
	{"rego method inside TLS", "http POST https://rego.test/r/a", []string{"http GET https://rego.test/r/a"}, "rego.test:443", "change       rule read-rego", ""},
	{"rule deny", "http GET http://shut.test/a", []string{"http GET http://sub.shut.test/a"}, "shut.test:80", "change       rule shut", ""},
	{"data", "http GET http://" + fixData + ".test/a", nil, fixData + ".test:80", "it may carry data", ""},
	{"private address", "http GET http://10.0.0.5/a", nil, "10.0.0.5:80", "under allow", ""},
	{"ambiguous path", "http GET http://plain.test/a//b", nil, "plain.test:80", "none can name this request", ""},
	{"ask", "http GET http://asked.test/a", nil, "asked.test:80", "", "serve"},
}

// A fixPlace is where requests are made, and where their fixes are typed.
type fixPlace struct {
	name string
	d    *world.Daemon
	do   func(t *testing.T, script string) (out, talk string, records []record.Record)
}

// TestEachPrintedFixOpensWhatWasDenied types every command that egressd prints for a denial, where it was printed:
// the request works then, and its neighbours are as they were.
func TestEachPrintedFixOpensWhatWasDenied(t *testing.T) {
	for _, p := range fixPlaces(t) {
		t.Run(p.name, func(t *testing.T) {
			for i := range fixCases {
				if c := &fixCases[i]; c.modes == "" || slices.Contains(strings.Fields(c.modes), p.name) {
					t.Run(c.name, func(t *testing.T) { p.try(t, c) })
				}
			}
		})
	}
}

func fixPlaces(t *testing.T) []fixPlace {
	alone := world.NewDaemon(t, fixPolicy)
	alone.PutFile(t, "policy/egress.rego", fixRego)
	all := []fixPlace{{"alone", alone, func(t *testing.T, script string) (string, string, []record.Record) {
		r := runAs(t, alone, "root", script)
		return r.out, r.talk, r.records
	}}}
	d := world.NewDaemon(t, fixPolicy+`listen: {open_to_network: true, proxy: ["`+lab.GatewayIPv4+`:3128", "[`+lab.GatewayIPv6+`]:3128"], dns: ["`+lab.GatewayIPv4+`:5353"], enter: ["unix:${XDG_RUNTIME_DIR}/run/enter.sock"]}`+"\n")
	d.PutFile(t, "policy/egress.rego", fixRego)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return append(all,
		fixPlace{"beside", d, func(t *testing.T, script string) (string, string, []record.Record) {
			e := runBeside(t, d, nil, script)
			return e.Out, e.Talk, e.Records
		}},
		fixPlace{"enter", d, func(t *testing.T, script string) (string, string, []record.Record) {
			e := enter(t, d, waysIn[0], "run", script)
			return e.Out, e.Talk, e.Records
		}},
		fixPlace{"serve", d, func(t *testing.T, script string) (string, string, []record.Record) {
			mark, _ := d.Log.Mark()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "VIA='-x http://"+d.Address()+"'; SOCKS="+d.Address()+"; NAMES="+lab.GatewayIPv4+":5353\n"+script)
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := d.World.Sandbox.Run(cmd); err != nil {
				t.Fatal(err)
			}
			records, err := d.Log.Since(mark)
			if err != nil {
				t.Fatal(err)
			}
			return out.String(), "", records
		}})
}

// try has a request denied, and types each fix that is printed for it.
func (p *fixPlace) try(t *testing.T, c *fixCase) {
	before, reply, talk, records := p.ask(t, c)
	if before[0] != "denied" {
		t.Fatalf("the request passes before the fix: %q %q", reply, talk)
	}
	flow := deniedFlow(records, c.place)
	if flow == "" {
		t.Fatalf("no record denies %s: %+v", c.place, records)
	}
	why, _ := p.typed(t, "egressd why "+flow+" --config "+p.d.Config)
	fixes := p.fixes(t, flow, reply, talk, why)
	if asked := strings.Fields(c.request); p.name == "alone" && asked[0] == "http" { // elsewhere a daemon has to notice the new file first
		explained, _ := p.typed(t, "egressd policy explain --config "+p.d.Config+" -X "+asked[1]+" "+asked[2])
		if fix := fixLine.FindString(explained); fix != "" {
			fixes = append(fixes, fix)
		} else if c.never == "" {
			t.Errorf("policy explain has no fix:\n%s", explained)
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
	policy, err := os.ReadFile(p.d.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, fix := range fixes {
		if said, err := p.typed(t, fix); err != nil {
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
func (p *fixPlace) ask(t *testing.T, c *fixCase) (passes []string, reply, talk string, records []record.Record) {
	t.Helper()
	script := fixPrelude
	for i, r := range append([]string{c.request}, c.neighbours...) {
		script += fmt.Sprintf("said %d %s\n", i, r)
	}
	out, talk, records := p.do(t, script)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		number, rest, _ := strings.Cut(line, " ")
		word, more, _ := strings.Cut(rest, " ")
		if number != fmt.Sprint(i) {
			t.Fatalf("printed %q", out)
		}
		passes = append(passes, word)
		if i == 0 {
			reply = more
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

var fixLine = regexp.MustCompile(`egressd (?:allow|approve) [^\n]*`)

// fixes returns the commands that are printed for a denial: in its reply, at the end of the run, by why and by log.
func (p *fixPlace) fixes(t *testing.T, flow, reply, talk, why string) (all []string) {
	add := func(text string) {
		if fix := strings.TrimSpace(fixLine.FindString(text)); fix != "" && !slices.Contains(all, fix) {
			all = append(all, fix)
		}
	}
	var body struct{ Fix string }
	if json.Unmarshal([]byte(strings.TrimSpace(reply)), &body) == nil {
		add(body.Fix)
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
	rows, _ := p.typed(t, "egressd log flow:"+flow+" --config "+p.d.Config)
	for line := range strings.Lines(rows) {
		if strings.Contains(line, flow) {
			add(line)
		}
	}
	return all
}

// typed runs a command of egressd as a person does, in another folder than that of the policy.
func (p *fixPlace) typed(t *testing.T, line string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(world.Egressd.Path())+":"+os.Getenv("PATH"), "HOME="+p.d.Dir, "XDG_STATE_HOME="+p.d.Dir, "XDG_RUNTIME_DIR="+p.d.Dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = p.d.World.Gateway.Run(cmd)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), err
}

// takeBack undoes a fix.
func (p *fixPlace) takeBack(t *testing.T, policy []byte) {
	t.Helper()
	if now, _ := os.ReadFile(p.d.Config); !bytes.Equal(now, policy) {
		p.d.PutFile(t, "egressd.yaml", string(policy))
	}
	if p.name == "alone" {
		return
	}
	list, _ := p.typed(t, "egressd grants --json --config "+p.d.Config)
	for _, m := range regexp.MustCompile(`"id":"(G[^"]*)"`).FindAllStringSubmatch(list, -1) {
		if said, err := p.typed(t, "egressd grants revoke "+m[1]+" --config "+p.d.Config); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
}
