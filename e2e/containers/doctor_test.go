package containers

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// doctor is egressd doctor --container on the engine's host. It returns what is said, by check: the findings with a fix,
// and the others.
func (w *dockerWorld) doctor(t *testing.T, container string) (bad, good map[string]string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(world.Egressd.Path(), "doctor", "--container", container, "--docker", w.Socket)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+t.TempDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	err := w.Gateway.Run(cmd)
	bad, good = map[string]string{}, map[string]string{}
	for line := range strings.Lines(out.String()) {
		mark, rest, _ := strings.Cut(line, " ")
		check, says, _ := strings.Cut(rest, ": ")
		switch mark {
		case "✓":
			good[check] = says
		case "✗":
			bad[check] = says
		}
	}
	if (err == nil) != (len(bad) == 0) {
		t.Errorf("doctor of %s: %v\n%s", container, err, out.String())
	}
	return bad, good
}

// TestDoctorNamesStrangers has containers join the network of another one, or its network namespace.
func TestDoctorNamesStrangers(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.docker(t, "network", "create", "--internal", "closed")
	t.Cleanup(func() { w.docker(t, "network", "rm", "closed") })
	held := []string{"--network", "closed", "--cap-drop", "NET_RAW", engine.Shell}
	web := w.contain(t, held...)
	if bad, good := w.doctor(t, web); bad["neighbours"] != "" || good["neighbours"] == "" {
		t.Errorf("alone: %q, %q", bad, good)
	}
	w.contain(t, append([]string{"--name", "mate"}, held...)...)
	if bad, good := w.doctor(t, web); bad["neighbours"] != "" || !strings.Contains(good["neighbours"], "mate") {
		t.Errorf("beside one that is held: %q, %q", bad, good)
	}
	for _, row := range []struct {
		says string
		args []string
		join bool
	}{
		{"bridge", []string{"--name", "both", engine.Shell}, true},
		{"--volume /etc", append([]string{"--name", "reads", "-v", "/etc:/e"}, held...), false},
		{"--volume /etc", []string{"--name", "inside", "-v", "/etc:/e", "--cap-drop", "NET_RAW", "--network", "container:" + web, engine.Shell}, false},
	} {
		other := w.docker(t, append([]string{"run", "-d"}, row.args...)...)
		if row.join {
			w.docker(t, "network", "connect", "closed", other)
		}
		if bad, _ := w.doctor(t, web); !strings.Contains(bad["neighbours"], row.says) || !strings.Contains(bad["neighbours"], row.args[1]) {
			t.Errorf("%q: doctor says %q", row.args, bad)
		}
		w.docker(t, "rm", "-f", other)
	}
}

// TestDoctorOfAContainerWithoutNetwork looks at one before and after it is attached. What it has no network for is not
// praised.
func TestDoctorOfAContainerWithoutNetwork(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, dockerPolicy)
	alone := w.contain(t, "--network", "none", engine.Shell)
	if bad, good := w.doctor(t, alone); len(bad) != 1 || bad["network"] == "" || len(good) != 1 || good["settings"] == "" {
		t.Errorf("that nobody serves: %q, %q", bad, good)
	}
	if e := d.Attach(t, "web", "--docker", w.Socket, alone); e.Code != 0 {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	if bad, good := w.doctor(t, alone); len(bad) != 0 || good["network"] == "" {
		t.Errorf("that egressd serves: %q, %q", bad, good)
	}
	w.contain(t, "--name", "guest", "--network", "container:"+alone, "-v", "/etc:/e", engine.Shell)
	if bad, _ := w.doctor(t, alone); !strings.Contains(bad["network"]+bad["neighbours"], "guest") {
		t.Errorf("with a guest: %q", bad)
	}
}
