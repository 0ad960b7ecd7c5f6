package operator

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// plantedLog writes the log of six hours of work of three sandboxes, in which one program sends data out in
// small uploads, and asks for names that carry data. It is not signed.
func plantedLog(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &logScene{random: rand.New(rand.NewPCG(7, 9)), at: time.Now().Add(-6 * time.Hour).Truncate(time.Minute), out: bufio.NewWriter(f)}
	w.write(`"kind":"start","note":"egressd started"`)
	w.write(`"kind":"policy","note":"loaded, 14 rules"`)
	for range 360 {
		w.minute()
	}
	if err := w.out.Flush(); err != nil {
		t.Fatal(err)
	}
}

const scenePolicy = `"policy":"sha256:3f2a6c0ed1b7a5f0b2c4d6e8f00112233445566778899aabbccddeeff0011223"`

type logScene struct {
	random *rand.Rand
	at     time.Time
	seq    int64
	flows  int
	out    *bufio.Writer
}

func (w *logScene) write(rest string, a ...any) {
	fmt.Fprintf(w.out, `{"v":1,"seq":%d,"time":"%s",`+rest+"}\n", append([]any{w.seq, w.at.UTC().Format("2006-01-02T15:04:05.000000Z")}, a...)...)
	w.seq++
	w.at = w.at.Add(time.Duration(w.random.IntN(40)) * time.Millisecond)
}

func (w *logScene) flow() string { w.flows++; return fmt.Sprintf("01KB%06X", 0x40000+w.flows) }

// allowed writes a request or a tunnel and its end.
func (w *logScene) allowed(sandbox, exe, host, rule, method, path string, up, down int) {
	id, kind, http := w.flow(), "open", ""
	if method != "" {
		kind, http = "request", fmt.Sprintf(`,"http":{"method":"%s","path":"%s"}`, method, path)
	}
	head := fmt.Sprintf(`"flow":"%s","sandbox":"%s","via":"connect","src":"10.4.0.2:%d","dst":{"host":"%s","port":443,"addrs":["140.82.121.%d"],"addr":"140.82.121.4"},"tls":{"sni":"%s"}`, id, sandbox, 30000+w.random.IntN(9999), host, 3+w.random.IntN(3), host)
	rest := http + fmt.Sprintf(`,"process":{"pid":%d,"exe":"%s","argv":["%s"]},"decision":{"action":"allow","rule":"%s","layer":"user",`+scenePolicy+`}`, 100+w.random.IntN(50), exe, filepath.Base(exe), rule)
	w.write(`"kind":"` + kind + `",` + head + rest)
	w.write(`"kind":"close",`+head+rest+`,"bytes":{"up":%d,"down":%d},"duration_ms":%d,"outcome":"closed"`, up, down, 20+w.random.IntN(900))
}

func (w *logScene) denied(sandbox, exe, host, class, what string) {
	w.write(`"kind":"open","flow":"%s","sandbox":"%s","via":"connect","src":"10.4.0.2:41000","dst":{"host":"%s","port":443%s},"process":{"pid":61,"exe":"%s","argv":["%s"]},"decision":{"action":"deny","rule":"default","layer":"builtin","reason":"no rule allows %s:443","class":"%s","allowed_if":["a rule allows %s"],`+scenePolicy+`}`,
		w.flow(), sandbox, host, what, exe, filepath.Base(exe), host, class, host)
}

func (w *logScene) minute() {
	start := w.at
	minute := int(w.seq) % 7
	busy := 1 + w.random.IntN(6)
	for range busy {
		w.allowed("fix-login", "/usr/local/bin/node", "registry.npmjs.org", "preset:npm", "", "", 700+w.random.IntN(900), 20000+w.random.IntN(800000))
	}
	w.allowed("fix-login", "/usr/bin/git", "github.com", "gh-read", "GET", "/acme/shop/info/refs", 900, 45000+w.random.IntN(90000))
	w.allowed("docs", "/usr/bin/python3.11", "api.anthropic.com", "model-api", "", "", 9000+w.random.IntN(30000), 3000+w.random.IntN(9000))
	if minute < 3 {
		w.allowed("ci-42", "/usr/bin/python3.11", "files.pythonhosted.org", "preset:pypi", "GET", "/packages/ab/cd/wheel", 500, 600000)
		w.denied("ci-42", "/usr/bin/curl", "telemetry.vendor.example", "default-deny", "")
	}
	if w.random.IntN(9) == 0 {
		w.denied("docs", "/usr/bin/python3.11", "169.254.169.254", "address-denied", `,"class":"link-local"`)
	}
	if w.random.IntN(40) == 0 {
		w.write(`"kind":"open","flow":"%s","sandbox":"docs","via":"connect","dst":{"host":"paste.example.com","port":443},"http":{"method":"POST","path":"/new"},"process":{"pid":9,"exe":"/usr/bin/curl"},"decision":{"action":"ask","rule":"uploads","layer":"user","reason":"uploads need a person","class":"ask-pending",`+scenePolicy+`}`, w.flow())
	}
	gone := time.Until(w.at) * -1
	if gone < 60*time.Minute && gone > 35*time.Minute { // the exfiltration
		for range 3 {
			w.allowed("ci-42", "/tmp/.cache/updater", "objects.cdn-sync.example", "cdn", "", "", 180_000+w.random.IntN(60_000), 400)
		}
		w.denied("ci-42", "/tmp/.cache/updater", fmt.Sprintf("%016x%016x.x.cdn-sync.example", w.random.Uint64(), w.random.Uint64()), "default-deny", "")
	}
	if gone < 90*time.Minute && gone > 89*time.Minute {
		w.denied("ci-42", `/tmp/\u00e2\u0080\u00aehs.elif`, "xn--80ak6aa92e.example", "default-deny", "")
		w.write(`"kind":"admin","src":"127.0.0.1:40000","note":"allow cdn-sync.example for 1h, asked by uid 1000, pid 812"`)
	}
	w.at = start.Add(time.Minute)
}
