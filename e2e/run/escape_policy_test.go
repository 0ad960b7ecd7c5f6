package run

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// detach is Python that gets rid of all mounts in a namespace of its own, and goes for
// names in a folder that it holds open.
const detach = `
import ctypes, os, platform, sys
c = ctypes.CDLL(None, use_errno=True)
folder, name = os.path.split(sys.argv[1])
if c.unshare(0x10020000) != 0 and c.unshare(0x00020000) != 0: print("not unshared")
else:
    c.mount(b"none", b"/", None, 0x4000 | 1 << 18, None)
    fd = os.open(folder, os.O_RDONLY)
    print("detached", c.umount2(b"/", 2))
    for act in (lambda: os.rename(name, name + ".old", src_dir_fd=fd, dst_dir_fd=fd), lambda: os.unlink(name + ".old", dir_fd=fd),
                lambda: os.write(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd), b"version: 1\ndefault: allow\n")):
        try: act(); print("did it")
        except OSError as e: print(e)
flags = (ctypes.c_uint64 * 11)(0x10020000)
if c.syscall(435, flags, 88) == 0: os._exit(0)
for call in (428, 432, 467):
    if c.syscall(call, -1, b"", 0, 0, 0) == -1 and ctypes.get_errno() != 38: print("call", call)
try:
    pid = c.syscall({"x86_64": 56, "aarch64": 220}[platform.machine()], 0x10020011, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid > 0: print("cloned")
finally: pass
`

// TestEscapesByDetachingMounts goes for the policy from a namespace in which
// nothing is mounted over it.
func TestEscapesByDetachingMounts(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeScript(t, d, "detach.py", detach)
	before := fileText(t, d.Config)
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			r := runAs(t, d, user, `python3 detach.py "$PWD/egressd.yaml"; unshare -Ur true 2>/dev/null; unshare -Urm true; unshare -Um true; echo done`)
			if r.out != "not unshared\ndone\n" {
				t.Errorf("printed %q (%s)", r.out, r.talk)
			}
			if after := fileText(t, d.Config); after != before {
				t.Fatalf("the policy is now %q", after)
			}
		})
	}
	r, _ := apart(t, d, "user", `unshare -Urm sh -c 'mount -t tmpfs x /mnt && umount -l /mnt && echo nested'`)
	if r.out != "nested\n" {
		t.Errorf("with --fs, whose working directory has no policy: %q %q", r.out, r.talk)
	}
	r = runAs(t, d, "user", `unshare -Urm sh -c 'mount -t tmpfs x /mnt && echo nested'`, "--nested")
	if r.out != "nested\n" {
		t.Errorf("with --nested: %q %q", r.out, r.talk)
	}
}

// TestEscapesWithAPolicyInTheProject has the program nest in a working directory that
// holds the policy, with --fs.
func TestEscapesWithAPolicyInTheProject(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	project := filepath.Join(d.Dir, "home,with: marks", "project")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(project, "egressd.yaml")
	text := fileText(t, d.Config)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.Config = path
	for _, named := range []string{path, "egressd.yaml", "../project/egressd.yaml"} {
		d.Config = named
		r, _ := apart(t, d, "user", `unshare -Urm true && echo nested; echo done`)
		if r.out != "done\n" || fileText(t, path) != text {
			t.Errorf("%s: printed %q (%s)", named, r.out, r.talk)
		}
	}
}

func writeScript(t *testing.T, d *world.Daemon, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.Dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestEscapesByOtherPaths goes for the policy by links on the way to it, by another
// mount, and by a place where egressd would look first the next time.
func TestEscapesByOtherPaths(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	real, mirror := filepath.Join(d.Dir, "real"), filepath.Join(d.Dir, "mirror")
	for _, dir := range []string{filepath.Join(real, "conf"), mirror, filepath.Join(d.Dir, "links")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := fileText(t, d.Config)
	for _, name := range []string{"conf/egressd.yaml", "conf/other.yaml"} {
		if err := os.WriteFile(filepath.Join(real, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"links/folder": "../real/conf", "links/file": "folder/egressd.yaml"} {
		if err := os.Symlink(to, filepath.Join(d.Dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mount(real, mirror, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(mirror, syscall.MNT_DETACH)
	d.Config = filepath.Join(d.Dir, "links", "file")
	const script = `exec 2>&1
rm -f links/file links/folder; mv links/file links/f; mv links/folder links/d; mv links l; mv real r; ln -sfn ../elsewhere links/folder
echo x >>mirror/conf/egressd.yaml; rm -f mirror/conf/egressd.yaml; mv mirror/conf mirror/c; mv mirror m
mkdir -p .config/egressd; echo "$0" >.config/egressd/egressd.yaml; mv .config c; mv .config/egressd .config/e
echo x >>links/folder/other.yaml && echo "written: what is nobody's"
`
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			r := runAs(t, d, user, script)
			if r.code == 125 || strings.Count(r.out, "written") != 1 {
				t.Errorf("exit %d, printed %q (%s)", r.code, r.out, r.talk)
			}
			if got := fileText(t, d.Config); got != text {
				t.Errorf("the policy is now %q", got)
			}
			for _, path := range []string{".config/egressd/egressd.yaml", "links/f", "links/d", "l", "r", "m", "c"} {
				if _, err := os.Lstat(filepath.Join(d.Dir, path)); err == nil {
					t.Errorf("%s was made: %s", path, r.out)
				}
			}
		})
	}
}

// TestEscapesByOpenFiles is started by somebody who has what egressd keeps open, and
// sockets, and a device.
func TestEscapesByOpenFiles(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	before := fileText(t, d.Config)
	ours, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, far := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "far")
	defer socket.Close()
	defer far.Close()
	policyFile, err := os.OpenFile(d.Config, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer policyFile.Close()
	secret, err := os.Open(filepath.Join(d.Dir, "lab.pem"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	network, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	device, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		device, err = os.Open("/dev/fuse")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			cmd := jailed(t.Context(), d, user, nil, "python3", "-c", `import os
for f in range(3, 9):
    try: print(f, os.path.basename(os.readlink(f"/proc/self/fd/{f}")).split(":")[0])
    except OSError: pass
try: os.write(4, b"x")
except OSError: pass
`)
			cmd.ExtraFiles = []*os.File{theirs, policyFile, socket, secret, network, device}
			var out, talk strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &talk
			_ = d.World.Gateway.Run(cmd)
			if out.String() != "3 pipe\n6 lab.pem\n" {
				t.Errorf("has %q (%s)", out.String(), talk.String())
			}
			for _, kept := range []struct {
				file *os.File
				says string
			}{{policyFile, "a file that egressd keeps"}, {device, "a device"}, {network, "something of the kernel's"}} {
				cmd := jailed(t.Context(), d, user, nil, "true")
				var talk strings.Builder
				cmd.Stdin, cmd.Stderr = kept.file, &talk
				if _ = d.World.Gateway.Run(cmd); cmd.ProcessState.ExitCode() != 125 || !strings.Contains(talk.String(), kept.says) {
					t.Errorf("as input: exit %d, %q", cmd.ProcessState.ExitCode(), talk.String())
				}
			}
			cmd = jailed(t.Context(), d, user, nil, "sh", "-c", "echo through >&0")
			cmd.Stdin = socket
			_ = d.World.Gateway.Run(cmd)
			b := make([]byte, 99)
			if n, _, _ := syscall.Recvfrom(pair[1], b, syscall.MSG_DONTWAIT); string(b[:max(n, 0)]) != "through\n" {
				t.Errorf("a Unix socket as input gives %q", b[:max(n, 0)])
			}
		})
	}
	if got := fileText(t, d.Config); got != before {
		t.Errorf("the policy is now %q", got)
	}
}

// TestEscapesByWhateverListens has a service that nobody has heard of, and devices.
func TestEscapesByWhateverListens(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, name := range []string{"agent", "watch me.sock", "S.gpg-agent"} {
		l, err := d.World.Gateway.Listen("unix", filepath.Join(d.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chmod(filepath.Join(d.Dir, name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(d.Dir, "agent"))
	const try = `for s in agent "watch me.sock" S.gpg-agent; do python3 -c '
import socket, sys
try: socket.socket(1).connect(sys.argv[1]); print("connected", sys.argv[1])
except OSError as e: print("no", sys.argv[1])
' "$s"; done`
	const devices = `python3 - <<'END'
import errno, os, pty, stat
plain = "null zero full random urandom hwrng tty ptmx fuse net/tun kvm userfaultfd cpu_dma_latency udmabuf kfd dxg sgx_enclave sgx_provision".split()
def left(name): return name in plain or name.split("/")[0] in ("pts", "dma_heap", "dri", "snd", "accel", "nvidia-caps") or name.startswith(("video", "media", "nvidia", "mali"))
seen = 0
for path in [os.path.join(f, n) for f, _, names in os.walk("/dev") for n in names]:
    kind = os.lstat(path).st_mode
    if not (stat.S_ISCHR(kind) or stat.S_ISBLK(kind)) or path.startswith("/dev/") and left(path[5:]): continue
    seen += 1
    if not os.statvfs(path).f_flag & 4: print("open:", path); continue # ST_NODEV
    try: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)); print("opened:", path)
    except OSError as e:
        if e.errno != errno.EACCES: print(path, e)
for name in "null", "zero", "full", "random", "urandom":
    os.close(os.open("/dev/" + name, os.O_RDWR))
pty.openpty()
print("done" if seen else "none seen")
END`
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			r := runAs(t, d, user, try)
			if r.out != "no agent\nno watch me.sock\nno S.gpg-agent\n" {
				t.Errorf("printed %q (%s)", r.out, r.talk)
			}
			if r = runAs(t, d, user, try, "--host-socket", filepath.Join(d.Dir, "watch me.sock")); r.out != "no agent\nconnected watch me.sock\nno S.gpg-agent\n" {
				t.Errorf("with one kept: %q (%s)", r.out, r.talk)
			}
			if r = runAs(t, d, user, devices); r.out != "done\n" {
				t.Errorf("devices: %q (%s)", r.out, r.talk)
			}
			r = runAs(t, d, user, `find /sys /proc/bus /proc/fs /proc/irq /proc/acpi -type f -writable 2>/dev/null | head -3; mkdir /sys/kernel/config/netconsole/x 2>/dev/null && echo made; echo done`)
			if r.out != "done\n" {
				t.Errorf("settings of the kernel: %q (%s)", r.out, r.talk)
			}
		})
	}
}
