package containers

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// dockerRun is egressd docker run with the engine.
func (w *dockerWorld) dockerRun(ctx context.Context, d *world.Daemon, socket string, args ...string) *exec.Cmd {
	cmd := d.Command(ctx, nil, append([]string{"docker", "run", "--socket", filepath.Join(d.Dir, socket, "enter.sock")}, args...)...)
	cmd.Env = append(cmd.Env, w.Environment()...)
	return cmd
}

// TestDockerRun starts containers as a user would.
func TestDockerRun(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	for _, row := range []struct {
		says, sandbox, mode string
		args                []string
	}{
		{"an image with a shell", "web", "transparent", []string{engine.Shell}},
		{"without capabilities", "web", "transparent", []string{"--cap-drop=ALL", "--cap-drop", "NET_RAW", engine.Shell}},
		{"an image with nothing, as its user, read-only", "narrow", "proxy", []string{"--read-only", "--cap-drop=ALL", engine.Scratch}},
		{"with a health check", "web", "proxy", []string{"--health-cmd", "true", engine.Shell}},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := w.startBeside(t, dockerPolicy)
			out, err := w.dockerRun(t.Context(), d, row.sandbox, append([]string{"-d"}, row.args...)...).Output()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Fatalf("%v: %s", err, exit.Stderr)
			}
			c := strings.TrimSpace(string(out))
			t.Cleanup(func() { w.docker(t, "rm", "-f", c) })
			w.said(t, c, "sandbox "+row.sandbox+" · "+row.mode)
			ways := w.ways(t, c) // docker exec, which has the variables of the container
			holds(t, d, row.sandbox, ways)
			killed(t, d, ways)
		})
	}
}

// TestDockerRunIsDockerRun looks at exit codes, signals, streams and the entry points of images.
func TestDockerRunIsDockerRun(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, dockerPolicy)
	for _, row := range []struct {
		says string
		args []string
		code int
		out  string
		talk string
	}{
		{"its exit code", []string{"--rm", engine.Shell, "sh", "-c", "echo out; exit 7"}, 7, "out\n", ""},
		{"what it is given", []string{"--rm", "-i", engine.Shell, "cat"}, 0, "given", ""},
		{"the entry point of the image", []string{"--rm", engine.Scratch, "id"}, 0, "id: uid 65532", ""},
		{"an entry point of its own", []string{"--rm", "--entrypoint", "/bin/echo", engine.Shell, "a b"}, 0, "a b\n", ""},
		{"without NET_ADMIN in the end", []string{"--rm", engine.Shell, "sh", "-c", "ip link add x type dummy || echo refused"}, 0, "refused\n", ""},
		{"nothing but what it needs in sight", []string{"--rm", engine.Shell, "ls", "/.egressd"}, 0, "egressd\nenter.sock\ntmp\n", ""},
		{"no such program", []string{"--rm", engine.Shell, "no-such-program"}, 127, "", "no such program"},
		{"no such image", []string{"--pull", "never", "egressd.test/none:1"}, 125, "", "egressd.test/none:1"},
		{"a way out", []string{"--network", "host", engine.Shell}, 125, "", "--network host: the container would have a network besides egressd"},
		{"the engine itself", []string{"-v", w.Socket + ":/run/docker.sock", engine.Shell}, 125, "", ": it is, or has in it, a way out"},
		{"the folder of the engine", []string{"-v", filepath.Dir(w.Socket) + ":/run", engine.Shell}, 125, "", ": it is, or has in it, a way out"},
		{"the whole machine", []string{"--mount", "type=bind,src=/,dst=/host", engine.Shell}, 125, "", ": it is, or has in it, a way out"},
		{"a user whom no sandbox has", []string{"--rm", "--user", "1000", engine.Shell}, 125, "", "uid: [1000]}"},
		{"a daemon that is not there", []string{"--socket", "/nowhere", engine.Shell}, 125, "", "no egressd listens at /nowhere"},
	} {
		t.Run(row.says, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			socket := "web"
			if strings.Contains(strings.Join(row.args, " "), engine.Scratch) {
				socket = "narrow"
			}
			cmd := w.dockerRun(ctx, d, socket, row.args...)
			var out, talk bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("given"), &out, &talk
			_ = cmd.Run()
			if cmd.ProcessState.ExitCode() != row.code || !strings.HasPrefix(out.String(), row.out) || !strings.Contains(talk.String(), row.talk) {
				t.Errorf("exit %d, %q, %q", cmd.ProcessState.ExitCode(), out.String(), talk.String())
			}
		})
	}
	d.Kill()
	inspecting := w.startBeside(t, strings.Replace(dockerPolicy, `allow: ["*.allowed.test"]`, `allow: [{host: a.allowed.test, paths: ["/ok"]}]`, 1))
	if out, err := w.dockerRun(t.Context(), inspecting, "web", "--rm", "--read-only", engine.Shell, "sh", "-c", "grep -c BEGIN $SSL_CERT_FILE; echo $EGRESSD_CA_FOLDER").Output(); err != nil || len(out) < 3 {
		t.Errorf("where egressd looks into TLS, its authority is not trusted: %q, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := w.dockerRun(ctx, inspecting, "web", "--rm", "--name", "told", engine.Shell)
	said := new(world.Output)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	heard := func() bool { // before it waits, process 1 of a container does not hear a signal
		return strings.Contains(said.String(), "sandbox web") && strings.Contains(said.String(), "waiting")
	}
	if !world.Eventually(30*time.Second, heard) {
		t.Fatalf("said %q", said.String())
	}
	cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("after a signal: exit %d, %q", code, said.String())
	}
}
