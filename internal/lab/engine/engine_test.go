package engine_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
)

const probeVariable = "EGRESSD_LAB_PROBE"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run builds the probe outside of the lab.
func run(m *testing.M) (int, error) {
	if os.Getenv(probeVariable) == "" {
		dir, err := os.MkdirTemp("", "probe-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "probe")
		if err := engine.BuildProbe(path); err != nil {
			return 1, err
		}
		os.Setenv(probeVariable, path)
	}
	code, inside := lab.Enter()
	if inside {
		code = m.Run()
	}
	return code, nil
}

// TestEngine is made by root: elsewhere there is no engine.
func TestEngine(t *testing.T) {
	if err := engine.Usable(); err != nil {
		t.Logf("no engine is tested: %v", err)
		return
	}
	w, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	go w.Sink.Serve(func(a *lab.Arrival) {
		if _, err := http.ReadRequest(bufio.NewReader(a)); err != nil {
			return
		}
		fmt.Fprintf(a, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfar")
		a.CloseWrite()
	})
	began := time.Now()
	e, err := engine.Start(w.Gateway.Start, os.Getenv(probeVariable))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started within %v", time.Since(began).Round(time.Millisecond))
	run := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := e.Docker(ctx, append([]string{"run", "--rm"}, args...)...)
		if err != nil {
			t.Errorf("%v\n%s", err, e.Log())
		}
		return out
	}
	if out := run(engine.Scratch, "id", "get http://93.184.216.34/"); !strings.Contains(out, "uid 65532") || !strings.Contains(out, "200 OK far") {
		t.Errorf("a container of scratch says %q", out)
	}
	if out := run("--network", "none", engine.Shell, "sh", "-c", "echo $(id -u); "+engine.ProbePath+" 'get http://93.184.216.34/'"); !strings.HasPrefix(out, "0") || !strings.Contains(out, "unreachable") {
		t.Errorf("a container without network says %q", out)
	}
	for _, command := range []string{"iptables-save", "ip -o link"} {
		if out, _ := exec.Command("sh", "-c", "PATH=$PATH:/usr/sbin "+command).Output(); strings.Contains(strings.ToLower(string(out)), "docker") {
			t.Errorf("the engine has reached out of its network: %s prints %s", command, out)
		}
	}
	restarted(t, e)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(e.Socket); err == nil {
		t.Error("the engine has left its folder")
	}
}

// restarted kills an engine, whose next one ends what that one had running.
func restarted(t *testing.T, e *engine.Engine) {
	t.Helper()
	ask := func(args ...string) string {
		out, err := e.Docker(t.Context(), args...)
		if err != nil {
			t.Errorf("%v\n%s", err, e.Log())
		}
		return out
	}
	id := ask("run", "-d", "--network", "none", engine.Scratch)
	pid := ask("inspect", "-f", "{{.State.Pid}}", id)
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + pid + "/ns/net"); err != nil {
		t.Errorf("its container went with it: %v", err)
	}
	if err := e.Restart(); err != nil {
		t.Fatal(err)
	}
	if state := ask("inspect", "-f", "{{.State.Status}}", id); state != "exited" {
		t.Errorf("the container is %s", state)
	}
	if _, err := os.Stat("/proc/" + pid + "/ns/net"); err == nil {
		t.Error("the process of a container that ended is there")
	}
}
