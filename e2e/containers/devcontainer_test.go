package containers

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
)

// devContainerPolicy has a socket at which the dev container alone attaches.
const devContainerPolicy = `version: 1
listen: {open_to_network: true, proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"]}
allow: ["*.allowed.test"]
sandboxes:
  - {name: web, enter: "unix:${XDG_RUNTIME_DIR}/web/enter.sock"}
`

// devImage is an image with a shell and what the command devcontainer looks for.
const devImage = "egressd.test/devcontainer:1"

func importDevImage(t *testing.T, w *dockerWorld) {
	t.Helper()
	files, err := engine.ShellFiles()
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f engine.File) bool { return f.Path == "etc/passwd" })
	for _, folder := range []string{"bin/", "etc/", "home/"} { // else only root may look into them
		files = slices.Insert(files, 0, engine.File{Path: folder, Mode: 0o755})
	}
	files = append(files, engine.File{Path: engine.ProbePath[1:], From: world.Probe.Path(), Mode: 0o755},
		engine.File{Path: "home/user/", Mode: 0o777},
		engine.File{Path: "etc/passwd", Text: "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n", Mode: 0o644},
		engine.File{Path: "etc/group", Text: "root:x:0:\nuser:x:1000:\n", Mode: 0o644})
	if err := w.Import(devImage, files, "ENV PATH=/usr/local/bin:/bin"); err != nil {
		t.Fatal(err)
	}
}

// A devContainer is a workspace with settings, and the container that the command
// devcontainer makes of it.
type devContainer struct {
	w      *dockerWorld
	d      *world.Daemon
	folder string
}

// newDevContainer writes settings and has egressd init change them.
func newDevContainer(t *testing.T, d *world.Daemon, w *dockerWorld, settings string, flags ...string) *devContainer {
	t.Helper()
	c := &devContainer{w, d, filepath.Join(d.Dir, "project")}
	at := filepath.Join(c.folder, ".devcontainer", "devcontainer.json")
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"init", "devcontainer", "--config", d.Config, "--workspace", c.folder, "--name", "web", "--yes"}, flags...)
	cmd := d.Command(t.Context(), nil, argv...)
	cmd.Env = append(cmd.Env, w.Environment()...) // it reads the image's metadata
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	t.Cleanup(c.remove)
	return c
}

func (c *devContainer) tell(t *testing.T, argv ...string) (out, talk string, code int) {
	t.Helper()
	return runDevContainer(t, c.w, c.d.Dir, nil, argv...)
}

// runDevContainer runs the command devcontainer, in a network without interfaces: what it does
// not find there it goes without.
func runDevContainer(t *testing.T, w *dockerWorld, home string, env []string, argv ...string) (out, talk string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if argv[0] == "up" {
		argv = append(argv, "--buildkit", "never") // it fetches an image of the registry's
	}
	cmd := exec.CommandContext(ctx, world.Source("tools", "npm", "node_modules", ".bin", "devcontainer"), argv...)
	cmd.Env = append(append(append(os.Environ(), "HOME="+home, "DOCKER_BUILDKIT=0"), w.Environment()...), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// up returns what was said.
func (c *devContainer) up(t *testing.T) string {
	t.Helper()
	out, talk, code := c.tell(t, "up", "--workspace-folder", c.folder)
	if code != 0 || !strings.Contains(out, `"outcome":"success"`) {
		t.Fatalf("devcontainer up: exit %d, %s\n%s", code, out, talk)
	}
	return talk
}

// exec runs the probe in the container, as devcontainer does.
func (c *devContainer) exec(t *testing.T, ways ...string) string {
	t.Helper()
	out, talk, code := c.tell(t, append([]string{"exec", "--workspace-folder", c.folder, engine.ProbePath}, ways...)...)
	if code != 0 {
		t.Fatalf("devcontainer exec: exit %d, %s\n%s", code, out, talk)
	}
	return out
}

func (c *devContainer) id() string {
	id, _ := c.w.Docker(context.Background(), "ps", "-aq", "--filter", "label=devcontainer.local_folder="+c.folder)
	return id
}

func (c *devContainer) remove() {
	if id := c.id(); id != "" {
		_, _ = c.w.Docker(context.Background(), "rm", "-f", id)
	}
}

// line is what the probe came to, one way.
func line(out, way string) string {
	for l := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(l, way+": "); ok {
			return rest
		}
	}
	return "not tried"
}

// came compares what the probe printed with what each way is to have come to.
func came(t *testing.T, out string, ways map[string]string) {
	t.Helper()
	for way, want := range ways {
		if got := line(out, way); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", way, got, want)
		}
	}
}

// silent runs f, in which nothing is to leave the engine's host, not even a question for a name.
func (c *devContainer) silent(t *testing.T, f func()) {
	t.Helper()
	wire, err := c.w.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked := c.w.Zone.Mark()
	f()
	if packets, err := c.w.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
	if names := c.w.Zone.Since(asked); len(names) > 0 {
		t.Errorf("asked for %q", names)
	}
}

// startFor starts egressd on the engine's host.
func startFor(t *testing.T, w *dockerWorld, policy string) *world.Daemon {
	t.Helper()
	d := world.NewDaemonIn(t, w.World, policy)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return d
}
