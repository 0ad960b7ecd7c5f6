package containers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// TestInitDocker runs the scripts that egressd init docker writes, twice, and takes it all away.
func TestInitDocker(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	dir := t.TempDir()
	w.init(t, dir, "docker", "--subnet", composePool, "--policy", "policy", "--allow", "a.allowed.test")
	policy := filepath.Join(dir, "policy", "egressd.yaml")
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(policy, append(text, fmt.Sprintf("upstream: {dns: [%q]}\n", world.Resolver)...), 0o644); err != nil {
		t.Fatal(err)
	}
	script := func(args ...string) string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also in a Cleanup
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", args...)
		cmd.Dir, cmd.Env = filepath.Join(dir, "policy"), append(os.Environ(), w.Environment()...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() {
		script("up.sh", "down")
		if left := w.docker(t, "network", "ls", "-q", "--filter", "name=egressd-local"); left != "" {
			t.Errorf("networks are left: %s", left)
		}
		w.docker(t, "volume", "rm", "egressd-local-state")
	})
	for range 2 {
		if said := script("up.sh"); !strings.Contains(said, "egressd listens") {
			t.Fatalf("up.sh says %q", said)
		}
	}
	w.watchFarHosts(t)
	said := script("run-agent.sh", "--rm", engine.Shell, engine.ProbePath, "get http://a.allowed.test/", "get http://evil.test/", "direct http://"+world.EvilIPv4+"/")
	for _, want := range []string{"get http://a.allowed.test/: 200 OK origin ", `"class":"default-deny"`, "direct http://" + world.EvilIPv4 + "/: error: "} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	w.nothingLeft(t)
}
