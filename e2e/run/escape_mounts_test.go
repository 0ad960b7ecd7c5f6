package run

import (
	"bytes"
	"os/exec"
	"slices"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// beside runs a script under egressd run in a mount namespace that a shell line prepares.
func beside(t *testing.T, d *world.Daemon, user, prepare, script string, flags ...string) (out, talk string, code int) {
	t.Helper()
	inner := jailed(t.Context(), d, user, flags, "sh", "-c", script)
	words := slices.Concat([]string{"unshare", "--mount", "--propagation", "private", "sh", "-ec", prepare + `; exec "$@"`, "sh"}, inner.Args)
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = inner.Dir, inner.Env, &stdout, &stderr
	_ = d.World.Gateway.Run(cmd)
	return stdout.String(), stderr.String(), codeOf(cmd.ProcessState)
}

// TestEscapesByTheKernelsSettings has the kernel's settings mounted a further time, as in the folder of a chroot.
func TestEscapesByTheKernelsSettings(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	const prepare = `mount -t tmpfs none /mnt; mkdir /mnt/proc /mnt/sys /mnt/files; mount -t proc proc /mnt/proc; mount -t sysfs sys /mnt/sys
mount -t proc proc /mnt/files; mount -t tmpfs -o mode=1777 none /mnt/files; sleep 20 </dev/null >/dev/null 2>&1 & echo $! >/mnt/pid; chown --reference="$HOME" /mnt/pid`
	const script = `p=/mnt/proc; for f in $p/sys/kernel/core_pattern $p/sysrq-trigger /mnt/sys/kernel/uevent_helper /mnt/sys/kernel/mm/ksm/run $p/$(cat /mnt/pid)/oom_score_adj $p/self/comm; do
(: >>$f) 2>/dev/null && echo "can write $f"; done; echo kept >/mnt/files/f; cat /mnt/files/f; echo x >/proc/self/comm && echo own`
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--nested"}} {
			if out, talk, code := beside(t, d, user, prepare, script, flags...); code != 0 || out != "kept\nown\n" {
				t.Errorf("%s %v: exit %d, %q, %s", user, flags, code, out, talk)
			}
		}
	}
}
