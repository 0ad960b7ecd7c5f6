package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/sidecar"
)

// heldContainer is one as egressd init compose has it made.
func heldContainer() *containerLook {
	l := &containerLook{Engine: "20.10.24+dfsg1", addresses: func(string) ([]string, error) { return nil, nil }}
	l.Container.HostConfig.NetworkMode = "app_egressd-web"
	l.Container.HostConfig.DNS = []string{"10.140.16.2"}
	l.Container.Config.Env = []string{"HTTPS_PROXY=http://10.140.16.2:3128", "NO_PROXY=db"}
	l.Networks = []dockerNetwork{{ID: "0123456789abcdef", Name: "app_egressd-web", Driver: "bridge", Internal: true, Options: map[string]string{"com.docker.network.bridge.name": "egd-0123456789"}}}
	return l
}

// TestDoctorFindsTrapsOfDocker changes one thing at a time in a container that is held.
func TestDoctorFindsTrapsOfDocker(t *testing.T) {
	dir := t.TempDir()
	cfg := func(rules string) *config.Config {
		path := filepath.Join(dir, "egressd.yaml")
		if err := os.WriteFile(path, []byte("version: 1\nlisten: {proxy: [\"10.140.16.2:3128\"]}\n"+rules), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	said := func(l *containerLook, c *config.Config) string {
		return textOf(l.findings(c))
	}
	const plain, inspecting = "allow: [a.test]\n", "allow: [{host: a.test, methods: [GET]}]\n"
	if got := said(heldContainer(), cfg(plain)); strings.Contains(got, "✗") {
		t.Fatalf("a container that is held:\n%s", got)
	}
	for says, change := range map[string]func(*containerLook){
		"it has the network of the host":          func(l *containerLook) { l.Container.HostConfig.NetworkMode = "host" },
		"it has lost its network app_egressd-web": func(l *containerLook) { l.Networks = nil },
		"the network of another container":        func(l *containerLook) { l.Container.HostConfig.NetworkMode = "container:other" },
		"✗ settings: --cap-add SYS_PTRACE: it reads other processes": func(l *containerLook) {
			l.settings = []boundary.Breach{{Field: "HostConfig.CapAdd", Value: "SYS_PTRACE", Why: "it reads other processes", Instead: "leave it out"}}
		},
		"bridge leads out past egressd":               func(l *containerLook) { l.join("bridge", false) },
		"has IPv6, and leads out by it":               func(l *containerLook) { l.join("bridge", true) },
		"CVE-2024-29018":                              func(l *containerLook) { l.Container.HostConfig.DNS = nil },
		"this host is 10.140.16.1 in the network app": func(l *containerLook) { l.at("10.140.16.1") },
		"cannot be told here": func(l *containerLook) {
			l.addresses = func(string) ([]string, error) { return nil, errors.New("no such interface") }
		},
		"HTTPS_PROXY is 10.140.16.2:3129": func(l *containerLook) { l.Container.Config.Env = []string{"HTTPS_PROXY=http://10.140.16.2:3129/"} },
		"NO_PROXY leads past egressd for *.corp": func(l *containerLook) {
			l.join("bridge", false)
			l.Container.Config.Env = []string{"NO_PROXY=*.corp"}
		},
	} {
		l := heldContainer()
		change(l)
		if got := said(l, cfg(plain)); !strings.Contains(got, says) || !strings.Contains(got, "fix: ") {
			t.Errorf("%q is not said:\n%s", says, got)
		}
	}
	l := heldContainer()
	if got := said(l, cfg(inspecting)); !strings.Contains(got, "Node (NODE_EXTRA_CA_CERTS)") || !strings.Contains(got, "Java") || !strings.Contains(got, "curl (") {
		t.Errorf("inspection:\n%s", got)
	}
	l.mount("/b.pem", "/etc/ssl/certs/ca-certificates.crt")
	if got := said(l, cfg(inspecting)); strings.Contains(got, "curl (") || !strings.Contains(got, "requests") {
		t.Errorf("with the system's bundle:\n%s", got)
	}
	l.Container.Config.Env = append(l.Container.Config.Env, "REQUESTS_CA_BUNDLE=/b", "NODE_EXTRA_CA_CERTS=/b", "JAVA_TOOL_OPTIONS=-D")
	if got := said(l, cfg(inspecting)); strings.Contains(got, "✗") {
		t.Errorf("with all variables:\n%s", got)
	}
	l = heldContainer()
	l.at("10.140.16.1")
	l.rules = strings.NewReplacer("{", "{\n", ";", "\n").Replace(sidecar.HostRules)
	if got := said(l, cfg(plain)); strings.Contains(got, "✗") {
		t.Errorf("with the rules of the host:\n%s", got)
	}
	l.rules = strings.Replace(l.rules, "drop", "accept", 1)
	if got := said(l, cfg(plain)); !strings.Contains(got, "✗ host") {
		t.Errorf("with rules that drop nothing:\n%s", got)
	}
}

func (l *containerLook) mount(source, destination string) {
	l.Container.Mounts = append(l.Container.Mounts, struct{ Source, Destination string }{source, destination})
}

func (l *containerLook) join(name string, ipv6 bool) {
	l.Networks = append(l.Networks, dockerNetwork{Name: name, Driver: "bridge", EnableIPv6: ipv6})
}

func (l *containerLook) at(address string) {
	l.addresses = func(string) ([]string, error) { return []string{address}, nil }
}

func TestEnginesThatForwardNoNames(t *testing.T) {
	for version, want := range map[string]bool{
		"20.10.24+dfsg1": false, "23.0.10": false, "23.0.11": true, "24.0.9": false, "25.0.4": false, "25.0.5-rc1": true,
		"26.0.0": true, "29.1.1": true, "27.1": true, "dev": false, "": false, "25.1": false,
	} {
		if got := forwardsNoNames(version); got != want {
			t.Errorf("%s: %v", version, got)
		}
	}
}

// TestDoctorInside has what the kernel shows changed, one thing at a time.
func TestDoctorInside(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Dir(path)
	}
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	const proxy = "http://10.140.16.2:3128"
	held := env("HTTPS_PROXY", proxy, "NO_PROXY", "db")
	const header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	ours := write("ours/route", header+"eth0\t00108C0A\t00000000\t0001\t0\t0\t0\tC0FFFFFF\t0\t0\t0\n")
	write("ours/ipv6_route", strings.Repeat("0", 32)+" 00 "+strings.Repeat("0", 32)+" 00 "+strings.Repeat("0", 32)+" ffffffff 00000001 00000000 00200200       lo\n")
	out := write("out/route", header+"eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	captured := write("captured/route", header+"eth0\t00000000\t02108C0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	out6 := write("out6/ipv6_route", strings.Repeat("0", 32)+" 00 "+strings.Repeat("0", 32)+" 00 fd99"+strings.Repeat("0", 27)+"1 00000400 00000001 00000000 00000003     eth0\n")
	write("host/2/comm", "kthreadd\n")
	write("own/2/comm", "sh\n")
	write("net/eth0/address", "")
	write("hostnet/docker0/bridge/bridge_id", "")
	bundle := filepath.Join(write("b.pem", ""), "b.pem")
	for _, row := range []struct {
		name string
		got  Finding
		want string // of what is found; none: nothing is
	}{
		{"no capabilities", insideCapabilities(0), ""},
		{"Docker's capabilities but NET_RAW", insideCapabilities(0xa80405fb &^ (1 << 13) &^ (1 << 29) &^ (1 << 31)), ""},
		{"NET_RAW", insideCapabilities(1 << 13), "NET_RAW"},
		{"NET_ADMIN", insideCapabilities(1 << 12), "NET_ADMIN"},
		{"SYS_ADMIN", insideCapabilities(1 << 21), "SYS_ADMIN"},
		{"own processes", insideProcesses(filepath.Join(dir, "own")), ""},
		{"the host's processes", insideProcesses(filepath.Join(dir, "host")), "those of the host"},
		{"own network", insideNetwork(filepath.Join(dir, "net")), ""},
		{"the host's network", insideNetwork(filepath.Join(dir, "hostnet")), "bridge docker0"},
		{"no route", insideRoutes(ours, held), ""},
		{"a route out", insideRoutes(out, held), "default route by 172.17.0.1"},
		{"a route by egressd", insideRoutes(captured, held), ""},
		{"an IPv6 route out", insideRoutes(out6, held), "default route by fd99::1"},
		{"variables", insideExceptions(held), ""},
		{"no variables", insideExceptions(env()), "no proxy variable"},
		{"exceptions", insideExceptions(env("https_proxy", proxy, "no_proxy", "localhost,.corp.example")), "for .corp.example"},
		{"a bundle", insideBundles(env("SSL_CERT_FILE", bundle)), ""},
		{"no bundle", insideBundles(env("NODE_EXTRA_CA_CERTS", bundle+".none")), "NODE_EXTRA_CA_CERTS"},
	} {
		if (row.got.Fix == "") != (row.want == "") || row.want != "" && !strings.Contains(row.got.Says, row.want) {
			t.Errorf("%s: %+v", row.name, row.got)
		}
	}
}
