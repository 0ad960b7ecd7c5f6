package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// intrude is Python that tries all ways into another process.
const intrude = `
import ctypes, os, platform, sys
c = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
for name in ("environ", "mem", "maps", "auxv", "io", "stack", "syscall", "stat", "sched", "net/tcp", "net/unix", "net/route", f"task/{pid}/net/tcp"):
    try: print("read", name, os.read(os.open(f"/proc/{pid}/{name}", os.O_RDONLY), 9))
    except OSError: pass
for name in ("root/etc", "cwd/.", "fdinfo", "map_files", "ns/net/."):
    try: print("listed", name, os.listdir(f"/proc/{pid}/{name}"))
    except OSError: pass
for name in ("fd/0", "exe", "cwd", "root", "ns/net"):
    try: print("read", name, os.readlink(f"/proc/{pid}/{name}"))
    except OSError: pass
for name in ("mem", "timens_offsets", "attr/current", "setgroups", "uid_map", "comm"):
    try: os.write(os.open(f"/proc/{pid}/{name}", os.O_WRONLY), b"1"); print("wrote", name)
    except OSError: pass
for request in (16, 0x4206):
    if c.ptrace(request, pid, 0, 0) != -1: print("traced")
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
buf = ctypes.create_string_buffer(8)
v = iovec(ctypes.cast(buf, ctypes.c_void_p), 8)
there = iovec(0x400000, 8)
for name in ("process_vm_readv", "process_vm_writev"):
    if getattr(c, name)(pid, ctypes.byref(v), 1, ctypes.byref(there), 1, 0) >= 0: print(name)
try: fd = os.pidfd_open(pid)
except OSError: fd = -1
for n in range(64):
    if c.syscall(438, fd, n, 0) >= 0: print("took descriptor", n)
for kind in (0x40000000, 0x10000000):
    if c.setns(fd, kind) == 0: print("entered", hex(kind))
if c.syscall({"x86_64": 312, "aarch64": 272}[platform.machine()], os.getpid(), pid, 0, 0, 0) >= 0: print("compared")
if c.syscall({"x86_64": 298, "aarch64": 241}[platform.machine()], ctypes.create_string_buffer(b"\0\0\0\0\x70\0\0\0", 112), pid, -1, -1, 0) >= 0: print("measured")
try: import resource; resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0)); print("limited")
except OSError: pass
try: os.sched_setaffinity(pid, {0}); print("moved")
except OSError: pass
for call in lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)), lambda: os.sched_setparam(pid, os.sched_param(0)), lambda: os.setpriority(os.PRIO_PROCESS, pid, 19):
    try: call(); print("slowed down")
    except OSError: pass
os.setpriority(os.PRIO_USER, 0, 7)
try: os.setpriority(os.PRIO_PGRP, 0, 8)
except OSError: pass
ioprio = {"x86_64": 251, "aarch64": 30}[platform.machine()]
for which, who in ((1, pid), (2, 0), (3, os.getuid())): c.syscall(ioprio, which, who, 3 << 13)
print("tried")
`

// TestEscapesThroughOtherProcesses has two processes of the program's user
// outside: egressd, and one that hides nothing.
func TestEscapesThroughOtherProcesses(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	script := filepath.Join(d.Dir, "intrude.py")
	if err := os.WriteFile(script, []byte(intrude), 0o644); err != nil {
		t.Fatal(err)
	}
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			const how = `how() { for p in $BYSTANDER $$; do cut -d' ' -f18,19,41 /proc/$p/stat; ionice -p $p; done; }; `
			r := runFrom(t, d, user, how+`SECRET=1 sleep 60 & BYSTANDER=$! && export BYSTANDER; before=$(how); sh -c 'export OUTSIDE=$$; exec "$@"' sh "$@"; after=$(how); [ "$before" = "$after" ] && echo as before || echo "$before, $after"; kill $BYSTANDER`, `python3 intrude.py $OUTSIDE; python3 intrude.py $BYSTANDER`)
			if r.out != "tried\ntried\nas before\n" {
				t.Errorf("printed %q %q", r.out, r.talk)
			}
		})
	}
}

// TestEscapesByEndingEgressd has the program kill and stop what it is held by.
func TestEscapesByEndingEgressd(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user := range world.Users {
		for _, signal := range []string{"KILL", "STOP", "SEGV", "XCPU"} {
			t.Run(user+"/"+signal, func(t *testing.T) {
				r := runFrom(t, d, user, `export OUTSIDE=$$; exec "$@"`, `kill -`+signal+` $OUTSIDE 2>&1; curl -sS -m9 http://151.101.1.69/ 2>&1`)
				if !strings.Contains(r.out, "No such process") || r.denied(world.EvilIPv4, policy.DefaultDeny) == 0 {
					t.Errorf("exit %d, printed %q (%s)", r.code, r.out, r.talk)
				}
			})
		}
	}
}

// queues is Python that queues all the signals that it may until there is a file "over".
const queues = `
import ctypes, os, signal, time
c, n = ctypes.CDLL(None), signal.SIGRTMIN + 3
signal.pthread_sigmask(signal.SIG_BLOCK, [n])
queued = 0
while c.sigqueue(os.getpid(), n, ctypes.c_void_p(0)) == 0: queued += 1
print("queued", queued > 0)
open("full", "w").close()
while not os.path.exists("over"): time.sleep(0.05)
`

// TestSignalsAreLeftToOthers has the program queue all the signals that it may while
// another run of its user starts. Where somebody outside has done so, none hangs.
func TestSignalsAreLeftToOthers(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if err := os.WriteFile(filepath.Join(d.Dir, "queues.py"), []byte(queues), 0o644); err != nil {
		t.Fatal(err)
	}
	const until, over = ` & n=0; until test -e full || [ $((n+=1)) -gt 600 ]; do sleep 0.05; done; `, `; code=$?; touch over; wait; rm full over; exit $code`
	// What is queued in a namespace that may queue few is not taken from all others of this user.
	few := func(script string) string {
		return `exec prlimit --sigpending=1000 unshare --user --map-user=1000 --map-group=1000 sh -c '` + script + `' sh "$@"`
	}
	r := runFrom(t, d, "user", few(`"$@"`+until+`timeout -k 1 20 "$@"`+over), `test -e full && { echo started; exit; }; exec python3 queues.py`)
	if r.out != "queued True\nstarted\n" && r.out != "started\nqueued True\n" {
		t.Errorf("printed %q %q", r.out, r.talk)
	}
	if r := runFrom(t, d, "user", few(`python3 queues.py`+until+`timeout -k 1 20 "$@"`+over), "true"); r.code != 125 {
		t.Errorf("with none left: exit %d, %q", r.code, r.talk)
	}
	if r := runFrom(t, d, "user", `prlimit --sigpending=100 timeout -k 1 20 "$@"`, "true"); r.code != 125 || !strings.Contains(r.talk, "ulimit -i 128") {
		t.Errorf("with few signals: exit %d, %q", r.code, r.talk)
	}
}

// sends is Python that has as many descriptors under way as it may until there is a file "over".
const sends = `
import array, errno, os, socket, time
all, null = [], os.open("/dev/null", os.O_RDONLY)
try:
    while True:
        all.append(socket.socketpair())
        all[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 253))])
except OSError as e: print("sent", e.errno == errno.ETOOMANYREFS)
open("full", "w").close()
while not os.path.exists("over"): time.sleep(0.05)
`

// TestDescriptorsUnderWayStopNoOther has the program have as many descriptors under way as its
// user may (unix(7), ETOOMANYREFS) while another run of that user starts.
func TestDescriptorsUnderWayStopNoOther(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if err := os.WriteFile(filepath.Join(d.Dir, "sends.py"), []byte(sends), 0o644); err != nil {
		t.Fatal(err)
	}
	const both = `prlimit --nofile=1000 "$@" & n=0; until test -e full || [ $((n+=1)) -gt 600 ]; do sleep 0.05; done; prlimit --nofile=1000 timeout -k 1 20 "$@"; code=$?; touch over; wait; exit $code`
	r := runFrom(t, d, "user", both, `test -e full && { curl -sS -m9 http://a.allowed.test/x; echo started; exit; }; exec python3 sends.py`)
	if r.code != 0 || !strings.Contains(r.out, "started\n") || !strings.Contains(r.out, "sent True\n") || !strings.Contains(r.out, "GET /x") {
		t.Errorf("exit %d, printed %q %q", r.code, r.out, r.talk)
	}
}

// TestEscapesByExhaustion has the program use up what egressd needs. What passes
// afterwards is decided as ever.
func TestEscapesByExhaustion(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, e := range []escape{
		{"processes", `(ulimit -u 200; python3 -c '
import os, time
n = 0
try:
    while n < 600:
        if os.fork() == 0: time.sleep(2); os._exit(0)
        n += 1
except OSError: pass
') 2>/dev/null; sleep 2.1`, "", "", ""},
		{"connections", `python3 -c '
import socket
all = []
for i in range(3000):
    s = socket.socket(); s.setblocking(False)
    try: s.connect(("151.101.1.69", 9))
    except OSError: pass
    all.append(s)
'`, "", "", ""},
		{"names", `python3 -c '
import socket, os, struct
s = socket.socket(2, 2)
s.settimeout(0.001)
for i in range(5000):
    name = b"%08d" % i
    s.sendto(struct.pack(">HHHHHH", i & 0xffff, 256, 1, 0, 0, 0) + b"\x08" + name + b"\4evil\4test\0\0\1\0\1", ("9.9.9.9", 53))
    try: s.recv(512)
    except OSError: pass
'`, "", "", ""},
		{"datagrams", `python3 -c '
import socket
for i in range(5000):
    s = socket.socket(2, 2)
    try: s.sendto(b"x", ("151.101.1.69", 1 + i))
    except OSError: pass
'`, "", "", ""},
	} {
		t.Run(e.says, func(t *testing.T) {
			// With the budget of names used up, the resolver may try evil.test below a search domain first.
			after := `; for i in 1 2 3 4 5; do curl -sS -m9 http://evil.test/ | tee answer.tmp; grep -q default-deny answer.tmp && break; sleep 0.3; done`
			const watched = `"$@" & while grep -h VmHWM /proc/$!/status >most.tmp; do mv most.tmp most; sleep 0.05; done; wait $!; code=$?; cat most; exit $code`
			r := runFrom(t, d, "user", `ulimit -n 1024; ulimit -c 0; `+watched, e.script+after)
			if r.code != 0 || !strings.Contains(r.out, `"class":"default-deny"`) {
				t.Fatalf("exit %d, printed %q %q", r.code, r.out, r.talk)
			}
			var peak int
			if _, line, _ := strings.Cut(r.out, "VmHWM:"); line != "" {
				fmt.Sscan(line, &peak)
			}
			if peak == 0 || peak > 400<<10 {
				t.Errorf("egressd took %d KiB: %q", peak, r.out)
			}
		})
	}
}
