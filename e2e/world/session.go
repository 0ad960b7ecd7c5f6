package world

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// Observed begins the policy of a daemon that observes.
const Observed = "mode: observe\nuntil: 2999-12-31T00:00:00Z\n"

// agent is a coding agent of a few lines: it asks a model what to type, types it, and tells the model what came of it.
const agent = `node -e '
const {execSync} = require("child_process");
(async () => {
  let said = "begin";
  for (;;) {
    const body = execSync("curl -sS -m20 --cacert $LAB_CA -H content-type:application/json -d @- https://model.allowed.test/v1/messages", {input: JSON.stringify({said})});
    const {type, done} = JSON.parse(body);
    if (done) { console.log(done); return; }
    said = execSync(type).toString();
  }
})().catch(e => { console.log(e.message); process.exit(1) })'`

// serveModel answers the agent: it has it fetch two pages, and then ends.
func (o *Origin) serveModel() {
	o.Sites.Store("model.allowed.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Said string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		next := map[string]string{"type": "curl -sS -m9 http://docs.allowed.test/guide/one"}
		switch {
		case strings.Contains(q.Said, "/guide/one"):
			next = map[string]string{"type": "curl -sS -m9 http://docs.allowed.test/guide/two"}
		case strings.Contains(q.Said, "/guide/two"):
			next = map[string]string{"done": "the agent has read both"}
		case q.Said != "begin":
			next = map[string]string{"done": "the agent was told " + q.Said}
		}
		_ = json.NewEncoder(w).Encode(next)
	}))
}

// session lists the commands of the clients, which run while egressd observes, and again under the rules that it suggests. pip prefers the variables that
// egressd run sets to --cert; the authority of the lab is in no bundle.
var session = []struct{ name, command, wants string }{
	{"npm", `npm view demonstration version --registry https://npm.allowed.test/registry/`, "3.2.1"},
	{"pip", `rm -rf w; env -u REQUESTS_CA_BUNDLE -u CURL_CA_BUNDLE pip download -q --no-deps --retries 0 --timeout 9 -d w --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls w`, "demonstration-3.2.1"},
	{"git", `rm -rf c; GIT_SSL_CAINFO=$LAB_CA git clone -q https://git.allowed.test/repository.git c && cat c/file`, "from the lab"},
	{"go", `rm -rf m; HOME=$PWD/m GOENV=off GOTOOLCHAIN=local GOFLAGS=-modcacherw GOSUMDB=off GOPROXY=https://go.allowed.test SSL_CERT_FILE=$LAB_CA go mod download -json allowed.test/demonstration@v3.2.1`, `"Sum": "h1:`},
	{"curl", `curl -sS -m9 http://apt.allowed.test/pool/a.deb http://apt.allowed.test/pool/b.deb http://apt.allowed.test/pool/c.deb http://apt.allowed.test/pool/d.deb`, "GET /pool/d.deb"},
	{"agent", agent, "the agent has read both"},
}

// notDone are ten things that the session does not do. Each is denied afterwards, by a record about the host.
var notDone = []struct{ name, host, command string }{
	{"another host", "evil.test", `curl -sS -m9 --cacert $LAB_CA https://evil.test/x`},
	{"another host below the same domain", "b.allowed.test", `curl -sS -m9 --cacert $LAB_CA https://b.allowed.test/x`},
	{"another port of a host", "npm.allowed.test", `curl -sS -m9 http://npm.allowed.test/x`},
	{"a path beside those of a host", "apt.allowed.test", `curl -sS -m9 http://apt.allowed.test/private`},
	{"another page of the agent", "docs.allowed.test", `curl -sS -m9 http://docs.allowed.test/guide/three`},
	{"another method at a path that was seen", "apt.allowed.test", `curl -sS -m9 -d data http://apt.allowed.test/pool/a.deb`},
	{"another registry", "npm.evil.test", `npm view demonstration version --registry https://npm.evil.test/registry/`},
	{"another index", "pypi.evil.test", `pip download -q --no-deps --retries 0 --timeout 9 -d v --cert $LAB_CA --index-url https://pypi.evil.test/simple demonstration`},
	{"another git host", "git.evil.test", `GIT_SSL_CAINFO=$LAB_CA git ls-remote https://git.evil.test/repository.git`},
	{"a private address", "10.0.0.5", `curl -sS -m9 http://10.0.0.5/x`},
}

// proposed is how many lines explain the session: a host for each client, and a line for each page of the agent.
const proposed = 8

// ClientVariables have clients trust the lab, and be without settings of the machine. Clients keep their files below dir.
func ClientVariables(dir, ca string) map[string]string {
	return map[string]string{
		"LAB_CA": ca, "NODE_EXTRA_CA_CERTS": ca, "npm_config_update_notifier": "false", "npm_config_cache": filepath.Join(dir, "npm"),
		"npm_config_fetch_retries": "0", "npm_config_userconfig": "/dev/null", "npm_config_globalconfig": filepath.Join(dir, "none"),
		"PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1",
		"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
	}
}

// InFolder is a command for a shell that sets the variables of clients first, and has a folder as its home.
func InFolder(dir, ca, command string) string {
	set := "cd " + dir + "; export HOME=" + dir
	variables := ClientVariables(dir, ca)
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		set += fmt.Sprintf(" %s='%s'", name, variables[name])
	}
	return set + "\n" + command
}

// A Session is where real clients are watched, and then confined to what they did.
type Session struct {
	Daemon  *Daemon                                                    // its policy observes, or its runs learn
	Logs    []string                                                   // words of policy suggest that name the logs, but for that of the daemon
	Do      func(command string) (out string, records []record.Record) // in the sandbox, with the records of that command
	Typed   func(words ...string) (said string, code int)              // a command of egressd
	Enforce func()                                                     // nil for a daemon: its policy file is written without [Observed]
}

// During has a command done, and returns what it printed and the records that the daemon wrote meanwhile.
func (d *Daemon) During(t *testing.T, do func() string) (out string, records []record.Record) {
	t.Helper()
	mark := d.LogMark(t)
	out = do()
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	return out, records
}

// WatchedThenEnforced does the session, applies what is suggested, enforces that, and does the session again, which passes without a
// denial, and ten things that it did not do, which are denied.
func (s *Session) WatchedThenEnforced(t *testing.T) {
	t.Helper()
	d, seen := s.Daemon, 0
	d.World.Origin.Publish(t, t.TempDir())
	d.World.Origin.serveModel()
	for _, c := range session {
		out, records := s.Do(c.command)
		if !strings.Contains(out, c.wants) {
			t.Fatalf("watched, %s: %s", c.name, out)
		}
		seen += len(records)
	}
	before, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(d.Dir, "before.yaml")
	if err := os.WriteFile(old, []byte(strings.Replace(string(before), Observed, "", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	digest := d.Digest(t)
	out, code := s.Typed(append([]string{"policy", "suggest", "--config", d.Config, "--apply"}, s.Logs...)...)
	if code != 0 || !strings.Contains(out, "egressd: that opens ") || !strings.Contains(out, "{host: apt.allowed.test:80, methods: [GET], paths: [/pool/**]}") {
		t.Fatalf("suggest: %d %s", code, out)
	}
	t.Logf("%d records watched: %s", seen, out)
	if s.Enforce != nil {
		s.Enforce()
	} else {
		d.endObserving(t, digest)
	}
	if out, code := s.Typed("policy", "diff", "--json", old, d.Config); code != 1 || strings.Count(out, `"change":"opens"`) != proposed || strings.Count(out, `"change":`) != proposed {
		t.Errorf("diff: %d %s", code, out)
	}
	if out, code := s.Typed("check", "--config", d.Config); code != 0 {
		t.Fatalf("the rules with their tests: %d %s", code, out)
	}
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range session {
		out, records := s.Do(c.command)
		if !strings.Contains(out, c.wants) {
			t.Errorf("enforced, %s: %s", c.name, out)
		}
		for _, r := range records {
			if r.DNS != nil && strings.HasPrefix(r.DNS.Name+".", machine+".") { // git looks up the name of the machine, and connects nowhere
				continue
			}
			if r.Decision != nil && r.Decision.Action == "deny" {
				t.Errorf("enforced, %s: %s denies %+v %+v", c.name, r.Decision.Rule, r.Dst, r.DNS)
			}
		}
	}
	for _, c := range notDone {
		out, records := s.Do(c.command)
		denied := slices.ContainsFunc(records, func(r record.Record) bool {
			about := r.Dst != nil && r.Dst.Host == c.host || r.DNS != nil && r.DNS.Name == c.host
			return about && r.Decision != nil && r.Decision.Action == "deny"
		})
		if !denied {
			t.Errorf("%s is not denied: %s %+v", c.name, out, records)
		}
	}
}

// endObserving waits for a policy with another digest, and then has the daemon enforce it.
func (d *Daemon) endObserving(t *testing.T, digest string) {
	t.Helper()
	another := func() {
		t.Helper()
		if !Eventually(Patience, func() bool { return d.Digest(t) != digest }) {
			t.Fatal("the policy was not reloaded")
		}
		digest = d.Digest(t)
	}
	another()
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	enforced := strings.Replace(string(text), Observed, "", 1)
	if enforced == string(text) {
		t.Fatalf("the policy does not observe:\n%s", text)
	}
	if err := os.WriteFile(d.Config, []byte(enforced), 0o600); err != nil {
		t.Fatal(err)
	}
	another()
}
