package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRootIsRootUnderRun has root do with files, users and ports what it does outside.
func TestRootIsRootUnderRun(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"repository/Packages": "Package: none\nVersion: 1\nArchitecture: all\n\n", "apt/lists/partial/x": "", "f": "f\n"})
	if err := os.WriteFile(filepath.Join(d.Dir, "apt", "sources"), []byte("deb [trusted=yes] file:"+d.Dir+"/repository ./\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	archive := exec.Command("tar", "czf", "owned.tgz", "--owner=1234", "--group=567", "f")
	archive.Dir = d.Dir
	if out, err := archive.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, row := range []struct{ says, script, out string }{
		{"an archive with foreign owners", `mkdir out; tar xzf owned.tgz -C out && stat -c '%u %g' out/f`, "1234 567\n"},
		{"chown", `chown 1000:1001 f && stat -c '%u %g' f; chown 0:0 f`, "1000 1001\n"},
		{"a file of another user", `install -o 1000 -m 600 f theirs; cat theirs; echo more >>theirs; rm theirs; echo $?`, "f\n0\n"},
		{"another user", `setpriv --reuid=1000 --regid=1000 --clear-groups sh -c 'id -u; grep CapEff: /proc/self/status | tr -d "[:space:]"'`, "1000\nCapEff:0000000000000000"},
		{"a low port", `python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 80)); s.listen(); print("listens")'`, "listens\n"},
		{"apt-get", `apt-get update -q -o Dir::Etc::sourcelist=$PWD/apt/sources -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt 2>&1 | grep -c '^E:'`, "0\n"},
		{"owners as they are", `stat -c %U /etc/passwd`, "root\n"},
	} {
		for _, flags := range [][]string{nil, {"--redirect"}} {
			if r := runAs(t, d, "root", row.script, flags...); r.out != row.out {
				t.Errorf("%s %v: %q, %s", row.says, flags, r.out, r.talk)
			}
			os.RemoveAll(filepath.Join(d.Dir, "out"))
		}
	}
}

// TestRootKeepsNoMoreUnderRun has root try what it may outside, and must not inside.
func TestRootKeepsNoMoreUnderRun(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	r := runAs(t, d, "root", `
grep CapBnd: /proc/self/status | tr -d '[:space:]'; echo
try() { "$@" >/dev/null 2>&1 && echo "worked: $*"; }
try mount -t tmpfs none /mnt
try umount "$HOME/runs"
try ip link set lo down
try ip link add d0 type dummy
try nft flush ruleset
try mknod disk b 254 0
try setcap cap_net_raw+ep /tmp
try sh -c 'echo x >/proc/sys/kernel/core_pattern'
try sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
try kill -9 1
try cat /proc/1/environ
try ls /proc/1/root/
try nsenter -t 1 -n true
try unshare -m true
try unshare -Urm true
try chroot / umount "$HOME/runs"
try mv "$HOME" "$HOME-away"
try sh -c "echo x >>$HOME/egressd.yaml"
try setpriv --reuid=1000 --clear-groups sh -c "echo x >>$HOME/egressd.yaml"
try python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'
try python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'
try python3 -c 'import socket; s = socket.socket(); s.setsockopt(0, 19, 1)'
try python3 -c 'import socket; s = socket.socket(); s.setsockopt(1, 36, 1)'
ls "$HOME/runs" | grep -v '^[0-9]*$' | head -1 | grep -q - && echo "the log is there"
echo over`)
	if r.code != 0 || r.out != "CapBnd:00000000000404fb\nover\n" {
		t.Errorf("exit %d, %q, %s", r.code, r.out, r.talk)
	}
}

// TestRunSaysWhichUsersAreMissing has a user with a second group.
func TestRunSaysWhichUsersAreMissing(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, groups := range [][]string{{"--clear-groups"}, {"--groups", "27,1001"}} {
		talk, err := runAsAnother(t, d, nil, groups...)
		if err != nil || strings.Contains(talk, "1 other group") != (groups[0] == "--groups") {
			t.Errorf("%v: %v: %s", groups, err, talk)
		}
	}
}

// TestRunStartsWithoutTheNullDevice has a user who may not open /dev/null, as after a chmod of root's.
func TestRunStartsWithoutTheNullDevice(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	closed := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs none /mnt && touch /mnt/null && chmod 0 /mnt/null && mount --bind /mnt/null /dev/null && exec "$@"`, "sh"}
	if talk, err := runAsAnother(t, d, closed, "--clear-groups"); err != nil {
		t.Errorf("%v: %s", err, talk)
	}
}

// runAsAnother runs true under egressd run as a user whose number is not that of the tests. The command begins with before.
func runAsAnother(t *testing.T, d *world.Daemon, before []string, groups ...string) (talk string, err error) {
	t.Helper()
	for _, path := range []string{filepath.Dir(d.Dir), d.Dir, d.Config} {
		if err := os.Chown(path, 1001, 1001); err != nil {
			t.Fatal(err)
		}
	}
	cmd := jailed(t.Context(), d, "root", nil, "true")
	words := slices.Concat(before, []string{"setpriv", "--reuid=1001", "--regid=1001"}, groups, cmd.Args)
	cmd = exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Dir, cmd.Env = d.Dir, append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	var said strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(""), &said
	err = d.World.Gateway.Run(cmd)
	return said.String(), err
}
