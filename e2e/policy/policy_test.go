package policy

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// withRego is a policy that is Rego, beside a line that allows more than it should.
const withRego = "version: 1\nallow: [allowed.test, \"*.allowed.test\"]\nrego: [policy]\n"

// refuses asks for a destination through every way in: nothing may reach anybody,
// and reply and record have to say why.
func refuses(t *testing.T, d *world.Daemon, id, to string, class policy.Class) {
	t.Helper()
	v := &world.Vector{ID: id, Says: "refused", Expect: world.Expectation{Deny: []policy.Class{class}}}
	for _, way := range world.WaysFor(v, to) {
		d.Try(t, v, way, to)
	}
}

// passes asks for a destination through every way in, and has the address answer.
func passes(t *testing.T, d *world.Daemon, id, to, address string) {
	t.Helper()
	v := &world.Vector{ID: id, Says: "passes", Expect: world.Expectation{Allow: []string{address}}}
	for _, way := range world.WaysFor(v, to) {
		d.Try(t, v, way, to)
	}
}

func TestEmptyPoliciesDeny(t *testing.T) {
	world.Covers(t, "PO-01")
	for name, text := range map[string]string{
		"an empty list":    "version: 1\nallow: []\n",
		"no list":          "version: 1\n",
		"a shadow alone":   "version: 1\nrego: [{path: policy, mode: shadow}]\n",
		"tests and denies": "version: 1\ndeny: [evil.test]\ntests: [deny allowed.test]\n",
	} {
		t.Run(name, func(t *testing.T) {
			d := world.StartRego(t, text, "package egress\nallow contains {\"rule\": \"all\"}\n")
			if !strings.Contains(d.Output.String(), "no allow rules: everything is denied") {
				t.Errorf("it does not say so: %s", d.Output.String())
			}
			refuses(t, d, "PO-01", "allowed.test:443", policy.DefaultDeny)
			refuses(t, d, "PO-01", "93.184.216.34:80", policy.DefaultDeny)
		})
	}
	t.Run("Rego that never holds", func(t *testing.T) {
		d := world.StartRego(t, "version: 1\nrego: [policy]\n", "package egress\nallow contains {\"rule\": \"none\"} if input.destination.port == 1\n")
		refuses(t, d, "PO-01", "allowed.test:443", policy.DefaultDeny)
	})
	for name, module := range map[string]string{
		"an allow that is no set": "package egress\nallow := []\n", "an empty file": "", "an empty package": "package egress\n",
	} {
		t.Run(name, func(t *testing.T) {
			d := world.NewDaemon(t, withRego)
			d.PutFile(t, "policy/egress.rego", module)
			if code, said := d.Fails(t); code == 0 || !strings.Contains(said, "egressd: error: ") {
				t.Errorf("exit %d, said %q", code, said)
			}
		})
	}
	for name, text := range map[string]string{"an empty folder": "version: 1\nrego: [policy]\n", "an empty list of Rego": "version: 1\nrego: []\n"} {
		t.Run(name, func(t *testing.T) {
			d := world.NewDaemon(t, text)
			if err := os.Mkdir(filepath.Join(d.Dir, "policy"), 0o700); err != nil {
				t.Fatal(err)
			}
			if code, said := d.Fails(t); code == 0 || !strings.Contains(said, "rego") {
				t.Errorf("exit %d, said %q", code, said)
			}
		})
	}
}

func TestUndefinedDenies(t *testing.T) {
	world.Covers(t, "PO-02")
	t.Run("what no request has", func(t *testing.T) {
		d := world.StartRego(t, "version: 1\nrego: [policy]\n", `package egress

allow contains {"rule": "never-known"} if input.dns.name == input.destination.host

allow contains {"rule": "no-such-label"} if input.sandbox.labels.team == "a"

allow contains {"rule": "partial"} if listed[input.destination.host]

listed["other.test"] := true
`)
		refuses(t, d, "PO-02", "allowed.test:443", policy.DefaultDeny)
	})
	t.Run("a field that does not exist", func(t *testing.T) {
		d := world.NewDaemon(t, withRego)
		d.PutFile(t, "policy/egress.rego", "package egress\n\nallow contains {\"rule\": \"r\"} if input.nope == 1\n")
		if code, said := d.Fails(t); code == 0 || !strings.Contains(said, "policy/egress.rego:3:") || !strings.Contains(said, "input.nope") {
			t.Errorf("exit %d, said %q", code, said)
		}
	})
}

// TestAPolicyThatFailsDenies has a policy fail for some hosts, which a line allows and no sample has.
func TestAPolicyThatFailsDenies(t *testing.T) {
	world.Covers(t, "PO-03")
	d := world.StartRego(t, withRego, `package egress

named(label) if regex.match(concat("", ["^", label, "[.]allowed[.]test$"]), input.destination.host)

limit := true if input.destination.port > 0

limit := false if named("conflict")

deny contains {"rule": "conflict"} if {
	named("conflict")
	limit == false
}

deny contains {"rule": "divide"} if {
	named("divide")
	1 / (input.destination.port - input.destination.port) > 1
}

deny contains {"rule": "not-divide"} if {
	named("not-divide")
	not 1 / (input.destination.port - input.destination.port) > 1
}

deny contains {"rule": regex.replace(input.destination.host, "^shape[.].*", "")} if named("shape")

allow contains {"rule": regex.replace(input.destination.host, "^name[.].*", "a b")} if named("name")
`)
	for _, host := range []string{"conflict", "divide", "not-divide", "shape", "name"} {
		refuses(t, d, "PO-03", host+".allowed.test:443", policy.PolicyError)
	}
	passes(t, d, "PO-03", "plain.allowed.test:443", world.AllowedIPv4)
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Decision != nil && r.Decision.Class == string(policy.PolicyError) && !strings.Contains(r.Decision.Reason, "egress.rego:") && !strings.Contains(r.Decision.Reason, "a member") && !strings.Contains(r.Decision.Reason, `"rule"`) {
			t.Errorf("the record has no cause: %+v", r.Decision)
		}
	}
}

// TestAPolicyThatAlwaysFailsDoesNotLoad has policies of which every request, or the one of a rule, would fail.
func TestAPolicyThatAlwaysFailsDoesNotLoad(t *testing.T) {
	world.Covers(t, "PO-03")
	for _, rule := range []string{
		`deny contains "no object" if input.destination.host == "shape.allowed.test"`,
		`allow contains {"rule": input.destination.port} if input.http.method == "BREW"`,
		`allow contains {"rule": "r"} if host.any(input.destination.host, ["a.test:443"])`,
	} {
		d := world.NewDaemon(t, withRego)
		d.PutFile(t, "policy/egress.rego", "package egress\n\n"+rule+"\n")
		loadsNothing(t, d, "policy/egress.rego:3:")
	}
}

// TestBuiltinsThatReachOutsideDoNotExist has policies call them, and reads where that is
// said to be.
func TestBuiltinsThatReachOutsideDoNotExist(t *testing.T) {
	world.Covers(t, "PO-05", "PO-07")
	for _, call := range []string{
		`http.send({"method": "GET", "url": "http://` + world.EvilIPv4 + `/"}).status_code == 200`,
		`count(net.lookup_ip_addr("evil.test")) > 0`, `opa.runtime().env.HOME != ""`, `rand.intn("x", 2) == 1`,
		`uuid.rfc4122("x") != ""`, `trace("x")`, `count(rego.parse_module("x", "package x")) > 0`,
	} {
		name, _, _ := strings.Cut(call, "(")
		t.Run(name, func(t *testing.T) {
			d := world.NewDaemon(t, withRego)
			d.PutFile(t, "policy/egress.rego", "package egress\n\ndeny contains {\"rule\": \"r\"} if {\n\t"+call+"\n}\n")
			loadsNothing(t, d, "policy/egress.rego:4:")
		})
	}
	t.Run("the environment in a reason", func(t *testing.T) {
		d := world.NewDaemon(t, withRego)
		d.PutFile(t, "policy/egress.rego", "package egress\n\ndeny contains {\"rule\": \"r\", \"reason\": opa.runtime().env.HOME}\n")
		loadsNothing(t, d, "policy/egress.rego:3:")
	})
}

// loadsNothing starts egressd with a policy that may not be loaded: it names the
// place, and nothing goes out.
func loadsNothing(t *testing.T, d *world.Daemon, place string) {
	t.Helper()
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	code, said := d.Fails(t)
	if code == 0 || !strings.Contains(said, place) || !strings.Contains(said, "egressd: hint: ") {
		t.Errorf("exit %d, said %q", code, said)
	}
	if packets, err := d.World.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("it sent %v (%v)", packets, err)
	}
}

const goodModule = "package egress\n\nallow contains {\"rule\": \"good\"} if input.destination.host == \"allowed.test\"\n"

// TestAnInvalidPolicyOnReloadKeepsTheOldOne replaces a module by what is none.
func TestAnInvalidPolicyOnReloadKeepsTheOldOne(t *testing.T) {
	world.Covers(t, "PO-09")
	d := world.StartRego(t, "version: 1\nrego: [policy]\n", goodModule)
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	before := d.Digest(t)
	for name, module := range map[string]string{
		"a syntax error":    "package egress\n\nallow contains {\n",
		"half of a file":    goodModule[:len(goodModule)/2],
		"a type error":      "package egress\n\nallow contains {\"rule\": \"r\"} if input.destination.port == \"443\"\n",
		"another package":   "package egres\n\nallow contains {\"rule\": \"r\"}\n",
		"no package":        "allow contains {\"rule\": \"r\"}\n",
		"nothing":           "",
		"another dialect":   "package egress\n\nallow[r] { r := {\"rule\": \"r\"} }\n",
		"an endless helper": "package egress\n\nallow contains {\"rule\": \"r\"} if f(1)\n\nf(x) if f(x)\n",
	} {
		rejects(t, d, before, name, func() { d.PutFile(t, "policy/egress.rego", module) })
	}
	rejects(t, d, before, "a file of 100 MB", func() {
		path := filepath.Join(d.Dir, "policy", "egress.rego")
		if err := os.Truncate(path, 100<<20); err != nil { // takes no room on disk
			t.Fatal(err)
		}
	})
	rejects(t, d, before, "a folder that is gone", func() {
		if err := os.Rename(filepath.Join(d.Dir, "policy"), filepath.Join(d.Dir, "elsewhere")); err != nil {
			t.Fatal(err)
		}
	})
	if tunnel.EndsWithin(0) {
		t.Error("the open tunnel was cut")
	}
	if kib := d.Memory(t); kib > 512<<10 {
		t.Errorf("egressd held %d KiB", kib)
	}
	d.PutFile(t, "policy/egress.rego", strings.ReplaceAll(goodModule, "allowed.test", "other.allowed.test"))
	d.Cmd.Process.Signal(syscall.SIGHUP)
	d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("after a good edit, allowed.test is answered %d", status)
	}
}

// rejects makes a change that may not be taken: a record says so, and everything is
// decided as before.
func rejects(t *testing.T, d *world.Daemon, before, name string, change func()) {
	t.Helper()
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	change()
	d.Cmd.Process.Signal(syscall.SIGHUP)
	rejected := func() bool {
		records, _ := d.Log.Since(mark)
		return slices.ContainsFunc(records, func(r record.Record) bool {
			return r.Kind == record.KindPolicy && strings.HasPrefix(r.Note, "rejected ") && r.Decision.Policy == before
		})
	}
	if !world.Eventually(2*world.Settling, rejected) {
		t.Errorf("%s: no record says that it was rejected", name)
	}
	for to, want := range map[string]int{"allowed.test:443": http.StatusOK, "evil.test:443": http.StatusForbidden} {
		if status := d.ConnectStatus(t, to); status != want {
			t.Errorf("%s: then %s is answered %d", name, to, status)
		}
	}
	if now := d.Digest(t); now != before {
		t.Errorf("%s: the policy in force is %s", name, now)
	}
}

// TestInputIsCanonical has a policy say what it sees.
func TestInputIsCanonical(t *testing.T) {
	world.Covers(t, "PO-13")
	for _, row := range []struct {
		name, sees string
		cases      map[string]string
	}{
		{"destinations", `[input.destination.host, input.destination.port, is_number(input.destination.port)]`, map[string]string{
			"ALLOWED.Test.:443":                    `["allowed.test",443,true]`,
			"xn--bcher-kva.allowed.test:8443":      `["xn--bcher-kva.allowed.test",8443,true]`,
			"93.184.216.34:80":                     `["93.184.216.34",80,true]`,
			"[::ffff:93.184.216.34]:443":           `["93.184.216.34",443,true]`,
			"[2606:2800:0220:0001:0:0:0:0001]:443": `["2606:2800:220:1::1",443,true]`,
			"b\u00fccher.allowed.test:443":         "", // malformed, and never seen by a policy
		}},
		{"requests", `[input.destination.host, input.destination.port, input.http.method, input.http.path, input.http.query]`, map[string]string{
			"http://Allowed.TEST./a/b?q=x":      `["allowed.test",80,"GET","/a/b","q=x"]`,
			"http://allowed.test:8080/a//b/%41": "", // a path that servers read in different ways is refused before
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := world.StartRego(t, withRego, "package egress\n\ndeny contains {\"rule\": \"seen\", \"reason\": json.marshal(seen)}\n\nseen := "+row.sees+"\n")
			for to, want := range row.cases {
				if got := reasonFor(t, d, to); got != want {
					t.Errorf("%s: the policy saw %s", to, got)
				}
			}
		})
	}
}

// reasonFor returns the reason of the record of a refusal.
func reasonFor(t *testing.T, d *world.Daemon, to string) string {
	t.Helper()
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(to, "http://") {
		getRaw(t, d, to, "")
	} else {
		d.ConnectStatus(t, to)
	}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Decision != nil && r.Decision.Rule == "seen" {
			return r.Decision.Reason
		}
	}
	return ""
}

// getRaw sends a request for a URL as it stands, with more header fields, and returns
// the answer.
func getRaw(t *testing.T, d *world.Daemon, url, fields string) world.Answer {
	t.Helper()
	c, err := d.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", url, host, fields)
	a, err := world.ReadAnswer(bufio.NewReader(c), http.MethodGet)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestDenyOverridesAllow has lines and Rego speak of one address in either order.
func TestDenyOverridesAllow(t *testing.T) {
	world.Covers(t, "PO-14")
	for name, text := range map[string]string{
		"allow first": "version: 1\nallow: [\"11.0.0.0/8\"]\ndeny: [\"11.0.0.5/32\"]\n",
		"deny first":  "version: 1\ndeny: [\"11.0.0.5/32\"]\nallow: [\"11.0.0.0/8\"]\n",
		"a tie":       "version: 1\nallow: [\"11.0.0.0/8\", 11.0.0.5]\ndeny: [\"11.0.0.5:443\"]\n",
	} {
		t.Run(name, func(t *testing.T) {
			d := world.Start(t, text)
			refuses(t, d, "PO-14", "11.0.0.5:443", policy.RuleDeny)
			passes(t, d, "PO-14", "11.0.0.6:443", "11.0.0.6")
		})
	}
	t.Run("a narrower allow within a deny", func(t *testing.T) {
		d := world.Start(t, "version: 1\nallow: [11.0.0.5]\ndeny: [\"11.0.0.0/8\"]\n")
		passes(t, d, "PO-14", "11.0.0.5:443", "11.0.0.5")
		refuses(t, d, "PO-14", "11.0.0.6:443", policy.RuleDeny)
	})
	t.Run("a deny in Rego is above every line", func(t *testing.T) {
		d := world.StartRego(t, "version: 1\nallow: [11.0.0.5, 11.0.0.6, priv.allowed.test, 10.0.0.5, a.allowed.test]\nrego: [policy]\n", `package egress

deny contains {"rule": "net"} if {
	some address in input.destination.addresses
	net.contains("11.0.0.4/31", address)
}

deny contains {"rule": "resolved"} if {
	some address in input.destination.addresses
	net.reaches("10.0.0.0/8", address)
}

allow contains {"rule": "all"}
`)
		refuses(t, d, "PO-14", "11.0.0.5:443", policy.RuleDeny)
		passes(t, d, "PO-14", "11.0.0.6:443", "11.0.0.6")
		passes(t, d, "PO-14", "a.allowed.test:443", world.AllowedIPv4)
		v := &world.Vector{ID: "PO-14", Says: "an address of an allowed name", Expect: world.Expectation{Deny: []policy.Class{policy.RuleDeny}, Asks: true}}
		for _, way := range world.WaysFor(v, "priv.allowed.test:443") {
			d.Try(t, v, way, "priv.allowed.test:443")
		}
	})
}

// TestHeadersAreNoIdentity has one sandbox say that it is the other.
func TestHeadersAreNoIdentity(t *testing.T) {
	world.Covers(t, "PO-16")
	d := world.StartRego(t, "version: 1\nallow: [allowed.test]\nrego: [policy]\nsandboxes: [{name: ci, token_file: ci.token}, {name: web, token_file: web.token}]\n",
		"package egress\n\ndeny contains {\"rule\": \"web-only\"} if input.sandbox.name != \"web\"\n")
	for token, want := range map[string]int{"ci:open-sesame": http.StatusForbidden, "web:another-secret": http.StatusOK} {
		who, _, _ := strings.Cut(token, ":")
		for _, field := range []string{"", "X-Egress-Identity: web", "X-Egressd-Sandbox: web", "X-Smokescreen-Role: web", "X-Forwarded-User: web", "Forwarded: for=web", "X-Egressd-Id: 01"} {
			if field != "" {
				field += "\r\n"
			}
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			a := getRaw(t, d, "http://allowed.test/", field+"Proxy-Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(token))+"\r\n")
			if a.Status != want {
				t.Errorf("%s with %q is answered %d", who, field, a.Status)
			}
			records, err := d.Log.Since(mark)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if r.Kind == record.KindRequest && r.Sandbox != who {
					t.Errorf("%s with %q is recorded as %q", who, field, r.Sandbox)
				}
			}
		}
	}
}
