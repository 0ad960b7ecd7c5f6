package run

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// TestAStartThatFailsLeavesNothingBehind has run end at each step of a start: what was
// begun before it was known that there is nothing to start is gone then, and what it said
// is about the mistake.
func TestAStartThatFailsLeavesNothingBehind(t *testing.T) {
	const ends = "version: 1\n"
	for name, row := range map[string]struct {
		policy, says string
		args         []string
		status       int
	}{
		"help":                            {ends, "", []string{"--help"}, 0},
		"a flag that does not exist":      {ends, "unknown flag", []string{"--nothing", "--", "true"}, 125},
		"no program":                      {ends, "run needs a program", nil, 125},
		"no policy":                       {"", "no such file", []string{"--", "true"}, 125},
		"a policy that is none":           {"version: 2\n", "version", []string{"--", "true"}, 125},
		"a test of the policy that fails": {ends + "tests:\n  - allow https://example.com/\n", "example.com", []string{"--", "true"}, 125},
		"a name that is none":             {ends, "name", []string{"--name", "a/b", "--", "true"}, 125},
		"a program that is not there":     {ends, "no such", []string{"--", "there-is-none"}, 127},
		"a program that is a folder":      {ends, "folder", []string{"--", "/tmp"}, 126},
		"a program":                       {ends, "", []string{"--", "true"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d, config, _ := indexed(t)
			if err := os.WriteFile(config, []byte(row.policy), 0o600); err != nil {
				t.Fatal(err)
			}
			if row.policy == "" {
				config += ".none"
			}
			var said bytes.Buffer
			cmd := exec.Command(world.Egressd.Path(), append([]string{"run", "--config", config}, row.args...)...)
			cmd.Env, cmd.Stderr = markedEnv(d), &said
			err := cmd.Run()
			var status *exec.ExitError
			if code := cmd.ProcessState.ExitCode(); code != row.status || err != nil && !errors.As(err, &status) {
				t.Errorf("status %d, want %d: %v", code, row.status, err)
			}
			if !bytes.Contains(said.Bytes(), []byte(row.says)) {
				t.Errorf("it said %q", said.String())
			}
			world.WaitFor(t, "the end of all that was begun", func() bool { return len(markedProcesses(t, d)) == 0 })
		})
	}
}

// TestRunSaysThatItLacksDescriptors lets egressd have fewer descriptors than a start needs, whatever the step.
func TestRunSaysThatItLacksDescriptors(t *testing.T) {
	d, config, _ := indexed(t)
	for _, most := range []string{"12", "16", "24", "32"} {
		cmd := exec.Command("sh", "-c", `ulimit -n "$1"; shift; exec "$@"`, "sh", most, world.Egressd.Path(), "run", "-q", "--config", config, "--", "true")
		cmd.Env = markedEnv(d)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "ulimit -n") {
			t.Errorf("%s descriptors: %v, %s", most, err, out)
		}
	}
}

// TestAStandardStreamThatLeadsOutIsRefused gives run a folder and a socket of the network, and reads what to type instead.
func TestAStandardStreamThatLeadsOutIsRefused(t *testing.T) {
	_, config, _ := indexed(t)
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	file, err := socket.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for line, hint := range map[string]string{
		`"$@" </`:           "</dev/null",
		`"$@" <&3`:          "cat FILE |",
		`"$@" >&3`:          "| cat",
		`"$@" </dev/null`:   "",
		`echo x | "$@"`:     "",
		`"$@" </etc/passwd`: "",
	} {
		cmd := exec.Command("bash", append([]string{"-c", line, "bash", world.Egressd.Path()}, "run", "-q", "--config", config, "--", "cat")...)
		cmd.ExtraFiles = []*os.File{file}
		out, err := cmd.CombinedOutput()
		if refused := hint != ""; refused != strings.Contains(string(out), "egressd: error: standard ") || !strings.Contains(string(out), hint) || refused != (cmd.ProcessState.ExitCode() == 125) {
			t.Errorf("%s: %v, %s", line, err, out)
		}
	}
}

// TestAStartThatIsKilledLeavesNothingBehind kills run sooner or later after it began.
func TestAStartThatIsKilledLeavesNothingBehind(t *testing.T) {
	d, config, _ := indexed(t)
	for i := range 12 {
		cmd := exec.Command(world.Egressd.Path(), "run", "-q", "--config", config, "--", "sleep", "600")
		cmd.Env = markedEnv(d)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // wherever that is: each place is as good
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		world.WaitFor(t, "the end of all that was begun", func() bool { return len(markedProcesses(t, d)) == 0 })
	}
	d.ExpectExit(t, 0, "run", "-q", "--config", config, "--", "true")
}

// TestWhatIsStartedHasTimersAsAnyOther has a command give a credential, and a program, each of which
// writes down how much longer than it asks for it may sleep. In run all threads may for long.
func TestWhatIsStartedHasTimersAsAnyOther(t *testing.T) {
	d, config, _ := indexed(t)
	const look = `read now < /proc/self/timerslack_ns; echo 0 > /proc/self/timerslack_ns; read first < /proc/self/timerslack_ns; echo "$now $first"`
	own, err := exec.Command("sh", "-c", look).Output()
	if err != nil {
		t.Fatal(err)
	}
	noted := filepath.Join(d.Dir, "noted")
	policy := fmt.Sprintf("version: 1\nallow:\n  - {host: a.test, methods: [GET], inject: {header: x-key, command: [/bin/sh, -c, '{ %s; } > %s; echo a-long-key']}}\n", look, noted)
	if err := os.WriteFile(config, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := d.ExpectExit(t, 0, "run", "-q", "--config", config, "--", "sh", "-c", look); said != string(own) {
		t.Errorf("the program has %q, want %q", said, own)
	}
	if got := readAll(t, noted); got != string(own) {
		t.Errorf("the command has %q, want %q", got, own)
	}
}

func markedEnv(d *world.Daemon) []string {
	return append(os.Environ(), "XDG_RUNTIME_DIR="+d.Dir, "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "EGRESSD_TEST_START="+d.Dir)
}

// markedProcesses are those whose environment is that of markedEnv.
func markedProcesses(t *testing.T, d *world.Daemon) (all []string) {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(environs) == 0 {
		t.Fatalf("%d processes, %v", len(environs), err)
	}
	for _, path := range environs {
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("EGRESSD_TEST_START="+d.Dir)) {
			all = append(all, path)
		}
	}
	return all
}
