package run

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

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
func serveModel(o *world.Origin) {
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

// session is what the clients do while they are watched, and again under the rules that come of it. pip prefers the variables that
// egressd run sets to --cert; the authority of the lab is in no bundle.
var session = []struct{ name, command, wants string }{
	{"npm", `npm view demonstration version --registry https://npm.allowed.test/registry/`, "3.2.1"},
	{"pip", `rm -rf w; env -u REQUESTS_CA_BUNDLE -u CURL_CA_BUNDLE pip download -q --no-deps --retries 0 --timeout 9 -d w --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls w`, "demonstration-3.2.1"},
	{"git", `rm -rf c; GIT_SSL_CAINFO=$LAB_CA git clone -q https://git.allowed.test/repository.git c && cat c/file`, "from the lab"},
	{"go", `SSL_CERT_FILE=$LAB_CA "$LAB_GO" ` + goClientArgument + ` https://go.allowed.test/x`, "GET /x"},
	{"curl", `curl -sS -m9 http://apt.allowed.test/pool/a.deb http://apt.allowed.test/pool/b.deb http://apt.allowed.test/pool/c.deb http://apt.allowed.test/pool/d.deb`, "GET /pool/d.deb"},
	{"agent", agent, "the agent has read both"},
}

// notDone are ten things that the session does not do. Each is denied afterwards.
var notDone = []struct{ name, command string }{
	{"another host", `curl -sS -m9 --cacert $LAB_CA https://evil.test/x`},
	{"another host below the same domain", `curl -sS -m9 --cacert $LAB_CA https://b.allowed.test/x`},
	{"another port of a host", `curl -sS -m9 http://npm.allowed.test/x`},
	{"a path beside those of a host", `curl -sS -m9 http://apt.allowed.test/private`},
	{"another page of the agent", `curl -sS -m9 http://docs.allowed.test/guide/three`},
	{"another method at a path that was seen", `curl -sS -m9 -d data http://apt.allowed.test/pool/a.deb`},
	{"another registry", `npm view demonstration version --registry https://npm.evil.test/registry/`},
	{"another index", `pip download -q --no-deps --retries 0 --timeout 9 -d v --cert $LAB_CA --index-url https://pypi.evil.test/simple demonstration`},
	{"another git host", `GIT_SSL_CAINFO=$LAB_CA git ls-remote https://git.evil.test/repository.git`},
	{"a private address", `curl -sS -m9 http://10.0.0.5/x`},
}

// TestASessionIsWatchedAndThenEnforced watches real clients, has suggest write the rules, and enforces them: the same session
// passes without a denial, and ten things that it did not do are denied.
func TestASessionIsWatchedAndThenEnforced(t *testing.T) {
	const enforced = "version: 1\ndeny: [\"*.denied.test\"]\n"
	t.Run("serve, between two networks", func(t *testing.T) {
		d := world.Start(t, strings.Replace(enforced, "version: 1\n", "version: 1\nmode: observe\nuntil: 2999-12-31T00:00:00Z\n", 1))
		d.World.Origin.Publish(t, d.Dir)
		serveModel(d.World.Origin)
		ca, dir := d.World.Origin.Ca.File(t), t.TempDir()
		do := func(command string) string {
			out, _ := d.Shell(dir, ca, "export LAB_GO="+os.Args[0]+"; "+command)
			return out
		}
		watchedThenEnforced(t, d, nil, do, func() (denied []record.Record) {
			records, err := d.Log.Since(0)
			if err != nil {
				t.Fatal(err)
			}
			return records
		}, func() {
			text, err := os.ReadFile(d.Config)
			if err != nil {
				t.Fatal(err)
			}
			before := d.LogMark(t)
			if err := os.WriteFile(d.Config, []byte(withoutMode(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				records, err := d.Log.Since(before)
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("the policy was not reloaded: %v", err)
				}
				for _, r := range records {
					if r.Kind == record.KindPolicy && strings.HasPrefix(r.Note, "reloaded ") {
						return
					}
				}
			}
		})
	})
	t.Run("run", func(t *testing.T) {
		d := world.NewDaemon(t, enforced)
		d.World.Origin.Publish(t, d.Dir)
		serveModel(d.World.Origin)
		for name, value := range clientVariables(d, d.World.Origin.Ca.File(t)) {
			t.Setenv(name, value)
		}
		for name := range proxyNames {
			t.Setenv(name, "")
		}
		flags := []string{"--learn"}
		var last *ran
		do := func(command string) string {
			last = runAs(t, d, "user", command, flags...)
			return last.out + last.talk
		}
		watchedThenEnforced(t, d, []string{"--run", "all"}, do, func() []record.Record { return last.records }, func() { flags = nil })
	})
}

func withoutMode(text string) string {
	text = strings.Replace(text, "mode: observe\n", "", 1)
	return strings.Replace(text, "until: 2999-12-31T00:00:00Z\n", "", 1)
}

// watchedThenEnforced does the session, applies what is suggested, enforces that, and does the session and all else again.
// which names the logs. records returns those of the daemon, or of the last run.
func watchedThenEnforced(t *testing.T, d *world.Daemon, which []string, do func(string) string, records func() []record.Record, enforce func()) {
	t.Helper()
	for _, c := range session {
		if out := do(c.command); !strings.Contains(out, c.wants) {
			t.Fatalf("watched, %s: %s", c.name, out)
		}
	}
	out, code := typed(t, d, append([]string{"policy", "suggest", "--config", d.Config, "--apply"}, which...)...)
	if code != 0 || !strings.Contains(out, "egressd: that opens ") || !strings.Contains(out, "- {host: apt.allowed.test:80, methods: [GET], paths: [/pool/**]}") {
		t.Fatalf("suggest: %d %s", code, out)
	}
	enforce()
	if out, code := typed(t, d, "check", "--config", d.Config); code != 0 {
		t.Fatalf("the rules with their tests: %d %s", code, out)
	}
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	seen := len(records())
	for _, c := range session {
		out := do(c.command)
		if !strings.Contains(out, c.wants) {
			t.Errorf("enforced, %s: %s", c.name, out)
		}
		all := records()
		if len(which) > 0 {
			seen = 0 // each run has a log of its own
		}
		for _, r := range all[seen:] {
			if r.DNS != nil && strings.HasPrefix(r.DNS.Name, machine+".") { // git looks up the name of the machine, and connects nowhere
				continue
			}
			if r.Decision != nil && r.Decision.Action == "deny" {
				t.Errorf("enforced, %s: %s denies %+v %+v", c.name, r.Decision.Rule, r.Dst, r.DNS)
			}
		}
		seen = len(all)
	}
	for _, c := range notDone {
		seen = len(records())
		if len(which) > 0 {
			seen = 0
		}
		out := do(c.command)
		denied := false
		for _, r := range records()[seen:] {
			denied = denied || r.Decision != nil && r.Decision.Action == "deny"
		}
		if !denied {
			t.Errorf("%s is not denied: %s", c.name, out)
		}
	}
}
