package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// queuesOfOthers is Python that makes, or finds, what processes of a user share by a number or
// a name: memory, semaphores, messages (svipc(7), mq_overview(7)), and queues that are files.
const queuesOfOthers = `
import ctypes, os, sys
c, rt = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("librt.so.1", use_errno=True)
create, key = 0o1600 if sys.argv[1:] == ["make"] else 0, 0x45475244
for name, got in ("memory", c.shmget(key, 4096, create)), ("semaphores", c.semget(key, 1, create)), ("messages", c.msgget(key, create)), ("queue", rt.mq_open(b"/egressd-e2e", os.O_RDWR | (create and os.O_CREAT), 0o600, None)):
    if got >= 0: print(name)
for line in open("/proc/self/mountinfo"):
    point = line.split()[4]
    if " - mqueue " in line and "egressd-e2e" in os.listdir(point): print("a file in", point)
print("done")
`

// TestEscapesByWhatProcessesShare has shared memory and queues outside, and a file system
// that shows the queues.
func TestEscapesByWhatProcessesShare(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	script, shown := filepath.Join(d.Dir, "share.py"), filepath.Join(d.Dir, "queues")
	if err := os.WriteFile(script, []byte(queuesOfOthers), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(shown, 0o700); err != nil {
		t.Fatal(err)
	}
	for user, as := range world.Users {
		run := jailed(t.Context(), d, user, nil, "python3", script)
		// All in namespaces of this test's own, which take with them what is made.
		const around = `mount -t mqueue mqueue queues && python3 share.py make && "$@"`
		run.Args = slices.Concat([]string{"unshare", "--user", "--map-root-user", "--ipc", "--mount", "sh", "-c", around, "sh"}, as, run.Args[len(as):])
		cmd := exec.Command(run.Args[0], run.Args[1:]...)
		var out, talk bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = run.Dir, run.Env, &out, &talk
		err := d.World.Gateway.Run(cmd)
		if want := "memory\nsemaphores\nmessages\nqueue\na file in " + shown + "\ndone\ndone\n"; err != nil || out.String() != want {
			t.Errorf("%s: %v, printed %q, want %q (%s)", user, err, out.String(), want, talk.String())
		}
	}
}
