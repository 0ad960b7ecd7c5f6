package peers

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// written is a conversion as golden files have it.
func written(c *Conversion) []byte {
	var b strings.Builder
	b.WriteString(c.Text)
	for _, list := range []struct {
		title string
		lines []string
	}{{"stricter", c.Stricter}, {"wider", c.Wider}, {"left out", c.Left}} {
		b.WriteString("\n# " + list.title + "\n")
		for _, line := range list.lines {
			b.WriteString("# - " + line + "\n")
		}
	}
	return []byte(b.String())
}

func holdsGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is now\n%s", path, got)
	}
}

// TestThePeersOwnForms reads one policy of each peer, and of each form that it has, as its users write it: what becomes of it, and
// the lists. With widen in the name of the golden file, it may widen.
func TestThePeersOwnForms(t *testing.T) {
	paths, err := filepath.Glob("testdata/import/*.*")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasSuffix(name, ".golden") {
			continue
		}
		kind, _, _ := strings.Cut(name, ".")
		seen[kind] = true
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for suffix, widen := range map[string]bool{".golden": false, ".widen.golden": true} {
				c, err := Import(kind, text, Options{Widen: widen})
				if err != nil {
					t.Fatal(err)
				}
				compiled(t, c.Text)
				if widen == (len(c.Wider) > 0) {
					holdsGolden(t, path+suffix, written(c))
				} else if !widen {
					t.Errorf("it is wider: %q", c.Wider)
				}
			}
		})
	}
	for _, k := range kinds {
		if !seen[k.Name] {
			t.Errorf("there is no example of %s", k.Name)
		}
	}
}

func TestWhatIsNotKnownIsNotImported(t *testing.T) {
	for text, want := range map[string]string{
		`{"network": {"somethingNew": []}}`:                     "srt network.somethingNew is not known",
		`{"network": {"deniedDomains": "x.test"}}`:              "srt deniedDomains: ",
		`{"network": {"deniedDomains": ["x.test:0"]}}`:          `srt "x.test:0" is no host`,
		`{"network": {"deniedDomains": ["::1"]}}`:               `srt "::1" is no host`,
		`{"network": {"deniedDomains": ["https://x.test"]}}`:    `srt "https://x.test" is no host`,
		`{"network": {"allowedDomains": ["10.0.0.0/8"]}}`:       `srt "10.0.0.0/8" is no host`,
		`{"network": {"deniedResolvedAddresses": ["x.test"]}}`:  `srt "x.test" is no address`,
		`{"denyOut": ["x.test"]}`:                               `e2b denyOut: "x.test" is no address`,
		`{"denyOut": ["::/0"]}`:                                 `e2b denyOut: "::/0" is no address`,
		`{"allowOut": ["x.test:443"]}`:                          `e2b allowOut: "x.test:443" is neither`,
		`{"allowOut": [], "allow_out": []}`:                     "e2b allowOut and allow_out are the same",
		`{"network": {}}`:                                       "e2b network is not known",
		`[]`:                                                    "claude it is no JSON object",
		`null`:                                                  "claude it is no JSON object",
		`{`:                                                     "claude it is not JSON",
		`{"permissions": {"deny": "x"}}`:                        "claude permissions.deny: ",
		`{"sandbox": []}`:                                       "claude sandbox: ",
		`{"a": 1}`:                                              `nobody "nobody" is none of claude, codex`,
		`{"rules": [{"decision": "permit"}]}`:                   `docker rules[0]: decision "permit" is neither`,
		`{"rules": [{"decision": "deny", "status": "maybe"}]}`:  `docker rules[0]: status "maybe"`,
		`{"rules": [{"decision": "deny", "new": 1}]}`:           "docker rules[0]: new is not known",
		`{"mode": "deny"}`:                                      `docker policy "" is neither`,
		`{"policy": "deny", "network": {"allowHosts": []}}`:     "docker network.allowHosts is not known",
		`network_policies: {p: {endpoints: [{host: "a b"}]}}`:   "openshell p, endpoint 1: ",
		`network_policies: {p: {new: 1}}`:                       "openshell p.new is not known",
		`services: [{name: a, action: open}, {name: b}]`:        "smokescreen it has the services a, b; choose one",
		`services: [{name: a, action: wave}]`:                   `smokescreen action "wave" of a`,
		`services: [{name: a, new: 1}]`:                         "smokescreen services: ",
		"[permissions.a]\n[permissions.b]":                      "codex it has the profiles a, b; choose one",
		"[permissions.a.network]\nmode = \"half\"":              `codex mode "half" is neither`,
		"[permissions.a.network.domains]\n\"x.test\" = \"yes\"": `codex domains: "yes" of "x.test"`,
		"model = 1":                         "codex it has no permissions",
		`{"allow": ["x.test"], "deny": []}`: "vercel deny is not known",
		`{"allow": {"x.test": [{"match": {}, "answer": {}}]}}`:     "vercel allow.x.test: answer is not known",
		`{"allow": ["10.0.0.0/8"]}`:                                `vercel "10.0.0.0/8" is not a destination`,
		`{"networkAllowList": "x.test"}`:                           `daytona networkAllowList: "x.test" is no address`,
		`create(outbound_cidr_allowlist=ranges())`:                 "modal outbound_cidr_allowlist is computed",
		`create(outbound_cidr_allowlist=["1.1.1.1"] + more)`:       "modal outbound_cidr_allowlist is computed",
		`create(outbound_cidr_allowlist=[] if x else ["1.1.1.1"])`: "modal outbound_cidr_allowlist is computed",
		`create(block_network=True); create(block_network=False)`:  "modal block_network is set twice",
		`create("sleep")`: "modal it sets none of",
		`{"rules": [{"domain": "x.test", "action": "ask"}]}`: `sprites rules[0]: action "ask"`,
		`egress-policy: report`:                              `harden-runner egress-policy "report"`,
		`jobs: {}`:                                           "harden-runner it has 0 steps",
		`{"a": ` + strings.Repeat(`[ "]", // ]
 {"\"}": /*]*/ `, 1<<15): "srt it is not JSON: values in it are nested more than 1000 deep",
		strings.Repeat("[", 1<<20): "claude it is not JSON: values in it are nested",
	} {
		from, want, _ := strings.Cut(want, " ")
		if c, err := Import(from, []byte(text), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s: %v %v, want %s", text, c, err, want)
		}
	}
}

// TestADeniedRangeHoldsAgainstNames asks for a name that leads to a denied range, where a line before that opens the range, or only
// some requests are denied. Random policies are rarely like that.
func TestADeniedRangeHoldsAgainstNames(t *testing.T) {
	for kind, text := range map[string]string{
		"docker": `{"rules": [{"decision": "allow", "resources": ["x.test"]}, {"decision": "deny", "resources": ["93.184.0.0/16"], "methods": ["POST"]}]}`,
	} {
		c, err := Import(kind, []byte(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		q := question{host: "x.test", port: 443, method: "POST", path: "/", resolved: []netip.Addr{netip.MustParseAddr("93.184.216.34")}}
		if lets(compiled(t, c.Text), q) != policy.Deny {
			t.Errorf("%s: %v is allowed by\n%s", kind, q, c.Text)
		}
	}
	c, err := Export("srt", rulesIn(t, "version: 1\nallow: ['x.test:*']\ndeny: [{host: 93.184.0.0/16, methods: [POST]}]\n"), Options{})
	if err != nil || !strings.Contains(c.Text, `"93.184.0.0/16"`) {
		t.Errorf("srt: %+v, %v", c, err)
	}
}
