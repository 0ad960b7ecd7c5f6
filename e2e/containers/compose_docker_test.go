package containers

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
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
	defer syscall.Umask(syscall.Umask(0o077)) // the user of the image has to read the policy all the same
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
	// The loop of a denial, with the commands that are printed.
	id := regexp.MustCompile(`"id":"([A-Z0-9]+)"`).FindStringSubmatch(said)
	if id == nil {
		t.Fatalf("no id in\n%s", said)
	}
	fix := filepath.Join(dir, "policy", "egressd") + " allow evil.test --from " + id[1]
	for name, text := range map[string]string{"reply": said, "log": script("egressd", "log"), "why": script("egressd", "why", id[1])} {
		if !strings.Contains(text, fix) {
			t.Errorf("%s does not say %q:\n%s", name, fix, text)
		}
	}
	fetch := func() string {
		return script("run-agent.sh", "--rm", engine.Shell, engine.ProbePath, "get http://evil.test/")
	}
	script(strings.Fields(fix)...)
	if said := fetch(); !strings.Contains(said, "200 OK origin ") {
		t.Errorf("after %s: %s", fix, said)
	}
	script("egressd", "allow", "--undo", "all")
	if said := fetch(); !strings.Contains(said, "default-deny") {
		t.Errorf("with the grant taken back: %s", said)
	}
	if said := script(append(strings.Fields(fix), "--save")...); !strings.Contains(said, "+++ "+policy+".new") || !strings.Contains(said, "\n+") {
		t.Errorf("%s --save does not show what it writes: %s", fix, said)
	}
	if said := fetch(); !strings.Contains(said, "200 OK origin ") {
		t.Errorf("after %s --save: %s", fix, said)
	}
	if text, err := os.ReadFile(policy); err != nil || !strings.Contains(string(text), "evil.test:80") {
		t.Errorf("%v\n%s", err, text)
	}
	script("egressd", "answer")
	script("egressd", "status")
}

// TestNeighboursOfInitDocker has containers of one run-NAME.sh try to reach each other, and another one try to join them.
func TestNeighboursOfInitDocker(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	w.loadImage(t)
	dir := t.TempDir()
	w.init(t, dir, "docker", "--project", "apart", "--subnet", "10.140.48.0/20", "--policy", "policy")
	policy := filepath.Join(dir, "policy")
	t.Cleanup(func() {
		down := exec.Command("sh", filepath.Join(policy, "up.sh"), "down")
		down.Env = append(os.Environ(), w.Environment()...)
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("up.sh down: %v\n%s", err, out)
		}
		w.docker(t, "volume", "rm", "egressd-apart-state")
	})
	if said, err := w.typeOn(t, filepath.Join(policy, "up.sh")); err != nil {
		t.Fatalf("up.sh: %v\n%s", err, said)
	}
	w.leaveBridgesAlone(t)
	type neighbour struct{ id, address, egressd string }
	var all []neighbour
	for range 8 {
		id, err := w.typeOn(t, filepath.Join(policy, "run-agent.sh")+" -d "+engine.Shell+" httpd -f -p 8080")
		if err != nil {
			t.Fatalf("number %d: %v\n%s", len(all)+1, err, id)
		}
		n := neighbour{id: strings.TrimSpace(id)}
		t.Cleanup(func() { _, _ = w.Docker(context.Background(), "rm", "-f", n.id) }) // one is removed before
		n.address = w.docker(t, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", n.id)
		n.egressd = w.docker(t, "exec", n.id, "sh", "-c", "echo ${http_proxy#http://}")
		all = append(all, n)
	}
	if said, err := w.typeOn(t, filepath.Join(policy, "run-agent.sh")+" "+engine.Shell); err == nil || !strings.Contains(said, "all 8 networks of agent have a container") {
		t.Errorf("one more than there are networks: %v, %q", err, said)
	}
	w.docker(t, "rm", "-f", all[7].id)
	for _, refused := range []string{"--privileged", "--cap-add NET_ADMIN", "-v " + policy + ":/policy", "-v " + w.Socket + ":/docker.sock", "--log-driver syslog"} {
		if said, err := w.typeOn(t, filepath.Join(policy, "run-agent.sh")+" "+refused+" "+engine.Shell); err == nil || !strings.Contains(said, "egressd: error: ") {
			t.Errorf("run-agent.sh %s: %v, %q", refused, err, said)
		} else if why, err := w.typeOn(t, filepath.Join(policy, "egressd")+" why "+whyID(t, said)); err != nil || !strings.Contains(why, "container-refused") || !strings.Contains(why, "sandbox agent") {
			t.Errorf("run-agent.sh %s: why says %q, %v", refused, why, err)
		}
	}
	a, b := all[0], all[1]
	w.attempts(t, []attempt{
		{a.id, "tcp " + a.address + ":8080", "connected"},
		{a.id, "tcp " + a.egressd, "connected"},
		{a.id, "get http://evil.test/", `"class":"default-deny"`},
		{a.id, "tcp " + b.address + ":8080", "error: "},
		{a.id, "tcp " + b.egressd, "error: "},
		{a.id, "get http://" + b.address + ":8080/", `"class":"address-denied"`},
		{b.id, "tcp " + a.address + ":8080", "error: "},
		{b.id, "get http://" + a.address + ":8080/", `"class":"address-denied"`},
	})
	network := w.docker(t, "inspect", "-f", "{{.HostConfig.NetworkMode}}", a.id)
	stranger := w.contain(t, engine.Shell)
	beside := netip.MustParseAddr(a.address).Prev().String()
	for _, args := range [][]string{{network, stranger}, {"--ip", beside, network, stranger}, {"--ip", a.address, network, stranger}} {
		if out, err := w.Docker(t.Context(), append([]string{"network", "connect"}, args...)...); err == nil {
			t.Errorf("docker network connect %q: it has joined: %s", args, out)
		}
	}
}
