package log

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/witness"
)

// litewitnessVariable names a litewitness (filippo.io/torchwood) to be the witness, in
// place of the tests' own. To build one:
//
//	go build -C e2e/log/litewitness -o ../../../build/litewitness filippo.io/torchwood/cmd/litewitness
const litewitnessVariable = "EGRESSD_E2E_LITEWITNESS"

// An outsideWitness is a witness that runs in the gateway.
type outsideWitness struct {
	url, key string
	trust    func(key string)
	size     func() int64
}

func theWitness(t *testing.T) *outsideWitness {
	t.Helper()
	if path := os.Getenv(litewitnessVariable); path != "" {
		return startLitewitness(t, path)
	}
	l, err := world.Open(t).Gateway.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := witness.New()
	server := &http.Server{Handler: w}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return &outsideWitness{"http://" + l.Addr().String(), w.Public(), w.Trust, w.Size}
}

// startLitewitness starts one with a key of its own and an empty database.
func startLitewitness(t *testing.T, path string) *outsideWitness {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	tool(t, dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at("key"))
	background(t, exec.Command("ssh-agent", "-D", "-a", at("agent")))
	world.WaitFor(t, "the agent", func() bool { _, err := os.Stat(at("agent")); return err == nil })
	tool(t, dir, "env", "SSH_AUTH_SOCK="+at("agent"), "ssh-add", "-q", at("key"))
	print := strings.Fields(tool(t, dir, "ssh-keygen", "-l", "-E", "sha256", "-f", at("key.pub")))[1]

	cmd := exec.Command(path, "-name", "lite.test/w", "-db", at("db"), "-ssh-agent", at("agent"), "-key", print, "-listen", "127.0.0.1:7380")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	background(t, cmd)
	lines, key := bufio.NewScanner(said), ""
	for key == "" && lines.Scan() {
		_, key, _ = strings.Cut(lines.Text(), "vkey=")
	}
	go func() {
		for lines.Scan() {
			fmt.Fprintln(os.Stderr, "litewitness:", lines.Text())
		}
	}()
	const sql = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], timeout=10); print(*[r[0] for r in db.execute(sys.argv[2], sys.argv[3:])]); db.commit()"
	return &outsideWitness{"http://127.0.0.1:7380", strings.Trim(key, `"`), func(key string) {
		origin, _, _ := strings.Cut(key, "+")
		tool(t, dir, "python3", "-c", sql, at("db"), "INSERT INTO log VALUES (?, 0, '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=')", origin)
		tool(t, dir, "python3", "-c", sql, at("db"), "INSERT INTO key VALUES (?, ?)", origin, key)
	}, func() int64 {
		n, _ := strconv.ParseInt(strings.TrimSpace(tool(t, dir, "python3", "-c", sql, at("db"), "SELECT tree_size FROM log")), 10, 64)
		return n
	}}
}

func background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := world.Open(t).Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

func tool(t *testing.T, dir, name string, arguments ...string) string {
	t.Helper()
	cmd := exec.Command(name, arguments...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v %s", name, arguments, err, out)
	}
	return string(out)
}

// TestLogIsCosigned has a witness cosign the log of a daemon, which it does not know
// at first. What was cosigned shows that the log was cut, and that it is missing.
func TestLogIsCosigned(t *testing.T) {
	w := theWitness(t)
	d := world.NewDaemon(t, "version: 1\nallow: [\"203.0.0.0/16:443\"]\n")
	d.SetAudit(t, `durability: process, witnesses: [{url: "`+w.url+`", key: "`+w.key+`", every: 1s}]`)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	world.WaitFor(t, "the log's key", func() bool { // which is made while serve listens
		return d.RunCommand(t, nil, "log", "key", "--witness", "--config", d.Config).Code == 0
	})
	identity := strings.TrimSpace(d.ExpectExit(t, 0, "log", "key", "--witness", "--config", d.Config))
	world.WaitFor(t, "word that the witness does not know the key", func() bool { return strings.Contains(d.Output.String(), identity) })
	w.trust(identity)
	for range 2 {
		before := w.size()
		ask(d, "denied.test")
		world.WaitFor(t, "a cosignature", func() bool { return w.size() > before })
	}
	world.WaitFor(t, "word of the doctor", func() bool { // which reads what is up to some seconds old
		found := d.Findings(t, 0, "witnesses")
		return slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Fix == "" && strings.Contains(f.Says, w.url) })
	})
	ask(d, "denied.test")
	d.Stop(t)

	dir := filepath.Join(d.Dir, "audit")
	key := strings.TrimSpace(d.ExpectExit(t, 0, "log", "key", "--config", d.Config))
	if r := bothJudge(t, d, 0, dir, key, w.key); len(r.Witnesses) != 1 || r.Witnesses[0].Size != r.Records || r.Unvouched != 0 {
		t.Errorf("of a log that is cosigned to its end it says %+v", r)
	}
	cutBack(t, dir)
	bothJudge(t, d, 2, dir, key, w.key)
	if err := os.RemoveAll(filepath.Join(dir, "witnesses")); err != nil {
		t.Fatal(err)
	}
	bothJudge(t, d, 4, dir, key, w.key)
	world.BothVerify(t, d, 0, dir, key, "") // which is why somebody asks the witness
}

// bothJudge runs both verifiers with a witness; both have to end with the code.
func bothJudge(t *testing.T, d *world.Daemon, code int, dir, key, witness string) verify.Report {
	t.Helper()
	r := d.VerifyLog(t, code, "log", "verify", "--json", dir, "--key", key, "--witness", witness, "--cosigned-within", "1h")
	out, err := exec.Command("python3", world.Source("docs", "verify", "verify.py"), "--key", key, "--witness", witness, "--within", "3600", dir).CombinedOutput()
	if got := world.ExitCode(err); got != code {
		t.Errorf("verify.py ended with %d, not %d: %s", got, code, out)
	}
	return r
}

// TestIndexOfRunsIsCosigned: the witnesses of a run are asked for the index of runs.
func TestIndexOfRunsIsCosigned(t *testing.T) {
	w := theWitness(t)
	d := &world.Daemon{Dir: t.TempDir()}
	config := filepath.Join(d.Dir, "egressd.yaml")
	text := "version: 1\nallow: []\naudit: {witnesses: [{url: \"" + w.url + "\", key: \"" + w.key + "\"}]}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func() {
		cmd := exec.Command(world.Egressd.Path(), "run", "--config", config, "--", "true")
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.Dir, "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
		if err := world.Open(t).Gateway.Run(cmd); err != nil {
			t.Fatal(err)
		}
	}
	run() // which makes the key
	w.trust(strings.TrimSpace(d.ExpectExit(t, 0, "log", "key", "--run", "last", "--witness", "--config", config)))
	verify := []string{"log", "verify", "--run", "last", "--config", config, "--witness", w.key, "--cosigned-within", "1h"}
	d.ExpectExit(t, 4, verify...)
	run()
	d.ExpectExit(t, 0, verify...)
	if n := w.size(); n != 4 {
		t.Errorf("the witness has cosigned %d records of two runs", n)
	}
	cutBack(t, filepath.Join(d.Dir, "egressd", "runs-index"))
	d.ExpectExit(t, 2, verify...)
}
