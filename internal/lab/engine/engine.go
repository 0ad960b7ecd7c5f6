// Package engine runs Docker's engine for tests: dockerd of the distribution, with its own state, /etc/docker,
// /run/containerd and control groups, in a network of the lab. Its routes and packet filters change only that
// network.
//
//	engine, err := engine.Start(world.Gateway.Start)
//	out, err := engine.Docker(ctx, "run", "--rm", engine.Shell, "id")
//	engine.Close()
//
// It needs root over an ordinary number of users, see [Usable], a PID namespace of
// the lab (which ends every container when the test does, however that ends), and
// dockerd, docker and busybox, which scripts/setup.sh installs.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Shell is an image with BusyBox and [ProbePath]. Its containers run as root, and
// wait for their end where they are given no command.
const Shell = "egressd.test/shell:1"

// Scratch is an image with the probe and nothing else: no shell, no /etc, no /tmp.
// Its containers run as user 65532, and wait for their end where they are given
// no command.
const Scratch = "egressd.test/scratch:1"

// ProbePath is where both images have the program of the package probe.
const ProbePath = "/probe"

const (
	startPatience = 30 * time.Second // busy machines, too
	stopPatience  = 10 * time.Second
)

// An Engine runs until it is closed, or the test ends. Its methods may be called from
// many goroutines at once, but Restart, Kill and Close from one.
type Engine struct {
	Socket string // of its API

	dir    string // everything that it writes
	start  func(*exec.Cmd) error
	daemon *exec.Cmd
	ended  chan struct{} // closed when daemon has
}

// Usable returns an error if no engine can run here. The engine needs root over a machine's usual range of users, which may
// be in a user namespace, and over its control group.
func Usable() error {
	const ordinary = 1 << 16
	for _, name := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return errors.New("this is not root")
		}
		users := uint64(0)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 {
				n, _ := strconv.ParseUint(f[2], 10, 64) // the kernel writes numbers
				users += n
			}
		}
		if users < ordinary {
			return fmt.Errorf("%s has %d users; an engine needs %d", name, users, ordinary)
		}
	}
	const ofItsOwn = "mount -t cgroup2 none /sys/fs/cgroup && test -w /sys/fs/cgroup"
	if out, err := exec.Command("unshare", "--mount", "--cgroup", "sh", "-c", ofItsOwn).CombinedOutput(); err != nil {
		return fmt.Errorf("the control group belongs to another user (systemd-run --user --scope -p Delegate=yes makes one): %w %s", err, out)
	}
	return nil
}

// Start starts an engine by start, which is that of a network of the lab, and waits
// until it answers. probe is the path of the built program of the package probe.
func Start(start func(*exec.Cmd) error, probe string) (*Engine, error) {
	if err := Usable(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "engine-") // short: the path of a socket has 107 bytes
	if err != nil {
		return nil, err
	}
	e := &Engine{Socket: filepath.Join(dir, "docker.sock"), dir: dir, start: start}
	if err = e.boot(); err == nil {
		err = e.images(probe)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// surroundings is a script that gives the engine its own copies of folders that it would share with this machine. $0 is the
// folder of these copies, and a restarted engine finds them again. Its control groups are version 2, without
// controllers if the machine uses version 1.
const surroundings = `set -e
for d in /etc/docker /run/containerd /run/docker; do mkdir -p $d "$0$d"; mount --bind "$0$d" $d; done
mount -t cgroup2 none /sys/fs/cgroup
exec "$@"`

// boot starts the engine with what it has in its folder.
func (e *Engine) boot() error {
	log, err := os.OpenFile(e.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("sh", "-c", surroundings, filepath.Join(e.dir, "own"), "dockerd",
		"--data-root", filepath.Join(e.dir, "data"), "--exec-root", filepath.Join(e.dir, "exec"), "--pidfile", filepath.Join(e.dir, "pid"),
		"--host", "unix://"+e.Socket, "--config-file", filepath.Join(e.dir, "none.json"),
		"--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs", "--shutdown-timeout", "1")
	if err := os.WriteFile(filepath.Join(e.dir, "none.json"), []byte("{}"), 0o600); err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "DOCKER_RAMDISK=") // pivot_root(2), as elsewhere
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		cmd.Env = append(cmd.Env, name+"=")
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP}
	if err := e.start(cmd); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	ended := make(chan struct{})
	e.daemon, e.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return e.answers()
}

// answers waits until the API does.
func (e *Engine) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	for {
		_, err := e.Docker(ctx, "version", "--format", "{{.Server.Version}}")
		if err == nil {
			return nil
		}
		select {
		case <-e.ended:
			return fmt.Errorf("dockerd has ended:\n%s", e.Log())
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not answer: %w:\n%s", err, e.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (e *Engine) log() string { return filepath.Join(e.dir, "log") }

// Log is what the engine has said, or the last of it.
func (e *Engine) Log() string {
	const most = 8 << 10
	text, _ := os.ReadFile(e.log())
	return string(text[max(0, len(text)-most):])
}

// Command is a command of docker(1) that asks this engine. It has no settings of
// the user's.
func (e *Engine) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), e.Environment()...)
	return cmd
}

// Environment has programs find this engine.
func (e *Engine) Environment() []string {
	return []string{"DOCKER_HOST=unix://" + e.Socket, "DOCKER_CONFIG=" + filepath.Join(e.dir, "config"), "DOCKER_CONTEXT="}
}

// Plug gives docker(1) a plugin, such as docker-compose: the program at path.
func (e *Engine) Plug(name, path string) error {
	folder := filepath.Join(e.dir, "config", "cli-plugins")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.Symlink(path, filepath.Join(folder, name))
}

// Unplug takes a plugin away.
func (e *Engine) Unplug(name string) error {
	return os.Remove(filepath.Join(e.dir, "config", "cli-plugins", name))
}

// Docker runs a command of docker(1) to its end and returns what it printed, without
// the space around it. The error has what it said.
func (e *Engine) Docker(ctx context.Context, args ...string) (string, error) {
	var out, talk bytes.Buffer
	cmd := e.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &talk
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(talk.String()))
	}
	return strings.TrimSpace(out.String()), err
}

// Stop stops the engine with all its containers, as a shutdown of the machine does. Only Restart may follow.
func (e *Engine) Stop() error { return e.end(syscall.SIGTERM) }

// Kill kills the engine, and leaves its containers as they are.
func (e *Engine) Kill() error { return e.end(syscall.SIGKILL) }

func (e *Engine) end(how syscall.Signal) error {
	if e.daemon == nil {
		return nil
	}
	if err := e.daemon.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-e.ended:
		e.daemon = nil
		return nil
	case <-time.After(stopPatience):
		return errors.Join(errors.New("dockerd does not stop"), e.daemon.Process.Kill())
	}
}

// Restart starts an engine anew that was stopped or killed. Containers that one which was
// killed had running it stops, as dockerd does without live-restore.
func (e *Engine) Restart() error {
	// The pid of its containerd may belong to a zombie, which a new engine would take for a running process.
	for _, name := range []string{"pid", "docker.sock", "exec/containerd/containerd.pid"} {
		if err := os.Remove(filepath.Join(e.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return e.boot()
}

// Close ends the engine with all its containers.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if ids, err := e.Docker(ctx, "ps", "-aq"); err == nil && ids != "" {
		_, _ = e.Docker(ctx, append([]string{"rm", "-f", "-v"}, strings.Fields(ids)...)...)
	}
	return errors.Join(e.Stop(), os.RemoveAll(e.dir))
}
