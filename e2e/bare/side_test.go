package bare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/e2e/world"
)

// A mode says who runs a row's line and whether it is on a terminal.
type mode struct {
	user     string // "dev" or "root"
	terminal bool
}

func (m mode) String() string {
	if m.terminal {
		return m.user + ", on a terminal"
	}
	return m.user
}

func (m mode) home() string {
	if m.user == "root" {
		return "/root"
	}
	return "/home/dev"
}

const doesNotEnd = "does not end"

// An outcome is what a line came to.
type outcome struct {
	status   string
	out, err string   // on a terminal both are in out
	files    []string // in the home folder and in /tmp, sorted
}

// enter makes a mount namespace in which the paths of both sides are the same, and becomes the user. Its arguments are
// the side's folder, the shared folder, the home folder, commands of npm, the words of setpriv and a command.
const enter = `set -e; side=$1 shared=$2 home=$3 npm=$4 become=$5; shift 5
umount /etc/hosts /etc/resolv.conf # of package world
for f in passwd group hosts resolv.conf; do mount --bind "$shared/$f" "/etc/$f"; done
mount --bind "$npm" /media # which may lie below what is covered next
mount --bind "$shared" /mnt
mount --bind "$side/state" /srv
if [ "$home" != /root ]; then mount -t tmpfs -o mode=755 none /home; mkdir "$home"; fi
mount --bind "$side/home" "$home"
mount --bind "$shared/go-cache" /opt
mount --bind "$side/tmp" /tmp
cd "$home"
exec $become "$@"`

// begin shows that a line was run at all.
const begin = ": >/srv/begun\n"

// A side runs a line in one mode, bare or under egressd run.
type side struct {
	world  *world.World
	shared string
	dir    string
	mode   mode
	jailed bool
	port   int
}

func (s *side) prepare(t *testing.T) {
	t.Helper()
	for _, name := range []string{"home", "home/.config", "home/.config/egressd", "home/.local", "home/.local/state", "home/.local/state/egressd", "tmp", "state"} { // those of egressd are there after a first run
		dir := filepath.Join(s.dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if s.mode.user == "dev" && name != "tmp" {
			if err := os.Chown(dir, 1000, 1000); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(filepath.Join(s.dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
}

func (s *side) command(ctx context.Context, r *row) *exec.Cmd {
	become := "env"
	if s.mode.user == "dev" {
		become = "setpriv --reuid=1000 --regid=1000 --groups=1000,1001 --"
	}
	words := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", s.dir, s.shared, s.mode.home(), world.Source("tools", "npm", "node_modules"), become}
	if r.before != "" {
		words = append(words, "bash", "-c", r.before+`; exec "$@"`, "bash")
	}
	if s.jailed {
		words = append(words, "/mnt/egressd", "run", "--config", "/mnt/policy.yaml")
		if s.mode.terminal {
			words = append(words, "-q") // what the terminal shows is compared, with the positions of its lines
		}
		words = append(words, r.flags...)
		words = append(words, "--")
	}
	if r.argv != nil {
		words = append(words, r.argv...)
	} else {
		words = append(words, "bash", "-c", begin+r.line)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + searchPath() + ":/media/.bin", "HOME=" + s.mode.home(), "USER=" + s.mode.user, "LOGNAME=" + s.mode.user, "SHELL=/bin/bash",
		"TERM=xterm", "GOCACHE=/opt", "LANG=C.UTF-8", "XDG_STATE_HOME=/srv", "PAGER=cat", "PS1=> ", fmt.Sprintf("PORT=%d", s.port),
		"GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z", "GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=Dev",
		"GIT_CONFIG_KEY_1=user.email", "GIT_CONFIG_VALUE_1=dev@allowed.test", "GIT_CONFIG_KEY_2=init.defaultBranch", "GIT_CONFIG_VALUE_2=main"}
	cmd.WaitDelay = 2 * time.Second // a process that was left behind may keep the output open
	return cmd
}

// patience is how long a line may take on a busy machine.
const patience = 45 * time.Second

// run runs a line to its end.
func (s *side) run(t *testing.T, r *row) *outcome {
	t.Helper()
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.prepare(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := s.command(ctx, r)
	o := &outcome{}
	if s.mode.terminal {
		o.out = s.converse(ctx, t, cmd, r.keys)
	} else {
		var out, talk bytes.Buffer
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // some lines signal their process group
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(r.stdin), &out, &talk
		var exit *exec.ExitError
		if err := s.world.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
			t.Fatalf("%s: %v", r.line, err)
		}
		o.out, o.err = out.String(), talk.String()
	}
	if ctx.Err() != nil {
		o.status = doesNotEnd
	} else {
		o.status = cmd.ProcessState.String()
	}
	_, err := os.Stat(filepath.Join(s.dir, "state", "begun"))
	if logs, _ := filepath.Glob(filepath.Join(s.dir, "state", "egressd", "runs", "*")); err != nil && r.argv == nil || s.jailed && len(logs) == 0 {
		t.Fatalf("%v: the line was not run as it should be: %v, %q: %s%s", s.mode, err, logs, o.out, o.err)
	}
	o.out, o.err = s.plain(o.out), s.plain(o.err)
	for _, name := range []string{"home", "tmp"} {
		o.files = append(o.files, s.files(t, name)...)
	}
	slices.Sort(o.files)
	return o
}

// converse runs a command on a terminal and types keys: a text to wait for and an answer, in turns.
func (s *side) converse(ctx context.Context, t *testing.T, cmd *exec.Cmd, keys []string) string {
	t.Helper()
	master, slave, err := world.NewTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = s.world.Gateway.Start(cmd)
	slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := master.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var seen []byte
	b, at := make([]byte, 4096), 0
	read := func() error {
		n, err := master.Read(b)
		seen = append(seen, b[:n]...)
		return err
	}
	for i := 0; i+1 < len(keys); i += 2 {
		for {
			if j := bytes.Index(seen[at:], []byte(keys[i])); j >= 0 {
				at += j + len(keys[i])
				break
			}
			if read() != nil {
				break
			}
		}
		if _, err := io.WriteString(master, keys[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait()
		master.SetReadDeadline(time.Now().Add(500 * time.Millisecond)) // what was left behind may keep the terminal open
	}()
	for read() == nil {
	}
	select {
	case <-ended:
	case <-ctx.Done():
		master.Close() // hangs up
		<-ended
	}
	return string(seen)
}

// times match what two runs of the same line never have in common.
var times = regexp.MustCompile(`\b\d\d:\d\d(:\d\d)?([.,]\d+)?\b|\d{4}-\d\d-\d\d|\b\d+([.,]\d+)?\s?(ms|s|sec|secs|seconds)\b|(Mon|Tue|Wed|Thu|Fri|Sat|Sun),? ([A-Z][a-z]{2} [ \d]\d|\d+ [A-Z][a-z]{2})`)

// pids match what bash says of a program that a signal ended, and the names that programs give themselves in messages.
var pids = regexp.MustCompile(`(line \d+:|[\w-]+\[|pid=) *\d+`)

// plain takes the lines of egressd and times of day out of a text.
func (s *side) plain(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if before, _, cut := strings.Cut(line, "egressd: "); s.jailed && cut {
			line = before
		}
		kept.WriteString(line)
	}
	return pids.ReplaceAllString(times.ReplaceAllString(kept.String(), "TIME"), "$1 PID")
}

// files lists a folder of the side. A text stands with its content.
func (s *side) files(t *testing.T, name string) (all []string) {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s%s %v %d:%d", name, strings.TrimPrefix(path, dir), info.Mode(), stat.Uid, stat.Gid)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		case info.Mode().IsRegular():
			line += fmt.Sprintf(" %d links", stat.Nlink)
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if len(text) < 4096 && utf8.Valid(text) && !bytes.ContainsRune(text, 0) {
				line += " " + s.plain(string(text))
			}
		}
		all = append(all, line)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}
