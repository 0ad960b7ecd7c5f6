package containers

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// A podman runs containers in folders of its own.
type podman struct {
	w   *dockerWorld
	dir string
}

func (p *podman) command(ctx context.Context, args ...string) *exec.Cmd {
	all := []string{"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--cgroup-manager", "cgroupfs", "--events-backend", "file"}
	return exec.CommandContext(ctx, "podman", append(all, args...)...)
}

func (p *podman) run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also in a Cleanup
	defer cancel()
	var out, talk bytes.Buffer
	cmd := p.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := p.w.Gateway.Run(cmd); err != nil {
		t.Fatalf("podman %s: %v: %s", strings.Join(args, " "), err, talk.String())
	}
	return strings.TrimSpace(out.String())
}

// TestAttachToPodman attaches containers of Podman, which says less of them than Docker: the kernel says the rest.
func TestAttachToPodman(t *testing.T) {
	w := theEngine(t) // of whose images Podman has one
	if w == nil {
		return
	}
	dir, err := os.MkdirTemp("", "podman-") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &podman{w, dir}
	socket, archive := filepath.Join(dir, "s"), filepath.Join(dir, "image.tar")
	w.docker(t, "save", "-o", archive, engine.Scratch)
	p.run(t, "load", "-q", "-i", archive)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	service := p.command(ctx, "system", "service", "--time", "0", "unix://"+socket)
	if err := w.Gateway.Start(service); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Wait() })
	if !world.Eventually(20*time.Second, func() bool { _, err := os.Stat(socket); return err == nil }) {
		t.Fatal("podman does not listen")
	}
	d := w.startBeside(t, dockerPolicy)
	start := func(flags ...string) string {
		id := p.run(t, append(append([]string{"run", "-d", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}, flags...), engine.Scratch)...)
		t.Cleanup(func() { p.run(t, "rm", "-f", "-t", "0", id) })
		return id
	}
	attached := func(id string) *world.Result { return d.Attach(t, "web", "--docker", socket, id) }
	good := start("-v", t.TempDir()+":/data")
	if e := attached(good); e.Code != 0 {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	holds(t, d, "web", func(ways ...string) string {
		return p.run(t, append([]string{"exec", good, engine.ProbePath}, ways...)...)
	})
	for flags, says := range map[string]string{
		"-v /etc:/e": "--volume /etc", "--security-opt unmask=ALL": "--security-opt /proc/", "--uts host": "--uts host",
		"--privileged": "--privileged", "--cap-add SYS_ADMIN": "--cap-add SYS_ADMIN",
	} {
		if e := attached(start(strings.Fields(flags)...)); e.Code != 1 || !strings.Contains(e.Talk, says) {
			t.Errorf("%s: exit %d, %q", flags, e.Code, e.Talk)
		}
	}
	place := filepath.Join(t.TempDir(), "data")
	if err := os.Symlink("/etc", place); err != nil {
		t.Fatal(err)
	}
	swapped := start("-v", place+":/d")
	if err := errors.Join(os.Remove(place), os.Mkdir(place, 0o755)); err != nil { // it was a link for a moment
		t.Fatal(err)
	}
	if e := attached(swapped); e.Code != 1 || !strings.Contains(e.Talk, "--volume /etc: ") {
		t.Errorf("a link for a moment: exit %d, %q", e.Code, e.Talk)
	}
}
