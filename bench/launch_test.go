//go:build linux

package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestAnnouncedPort(t *testing.T) {
	for output, want := range map[string]int{
		"egressd: listening on 127.0.0.1:4123 (proxy)\n":                                      4123,
		"egressd: warning: x\negressd: listening on 127.0.0.1:4123 (proxy)\negressd: ready\n": 4123,
		"egressd: listening on 127.0.0.1:53 (dns)\n":                                          0,
		"sandbox said: egressd: listening on 127.0.0.1:4123 (proxy)\n":                        0,
		"egressd: listening on 127.0.0.1:41":                                                  0,
		"egressd: listening on 127.0.0.1:99999999999999999999 (proxy)\n":                      0,
		"": 0,
	} {
		if got := announcedPort(output); got != want {
			t.Errorf("%q: port %d, want %d", output, got, want)
		}
	}
}

func shell(line string, announces bool) *proxy {
	return &proxy{name: "a shell", announces: announces, command: func(string, int, origins) (*exec.Cmd, error) {
		return exec.Command("sh", "-c", line), nil
	}}
}

func TestAProxyThatEndsAtOnceIsReportedWithItsWords(t *testing.T) {
	_, err := shell("echo no such option >&2; exit 2", false).start(t.TempDir(), origins{})
	if err == nil || !strings.Contains(err.Error(), "no such option") {
		t.Errorf("error %v", err)
	}
}

func TestAProxyThatAnnouncesItsPortIsStoppedByItsPid(t *testing.T) {
	r, err := shell("echo 'egressd: listening on 127.0.0.1:4123 (proxy)' >&2; exec sleep 600", true).start(t.TempDir(), origins{})
	if err != nil {
		t.Fatal(err)
	}
	if r.port != 4123 {
		t.Errorf("port %d", r.port)
	}
	r.stop()
	if state := r.cmd.ProcessState; state == nil || state.ExitCode() != -1 {
		t.Errorf("after stop: %v", state)
	}
}

func TestAProxyThatIgnoresTermIsKilled(t *testing.T) {
	r, err := shell("trap '' TERM; echo 'egressd: listening on 127.0.0.1:1 (proxy)'; exec sleep 600", true).start(t.TempDir(), origins{})
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	if _, err := os.Stat("/proc/" + strconv.Itoa(r.cmd.Process.Pid)); err == nil {
		t.Error("it still runs")
	}
}

func TestAFreePortCanBeListenedOn(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestWhatIsNotThereIsAbsentAndSaysWhatToType(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, find := range map[string]func() (*proxy, error){
		"go build": func() (*proxy, error) {
			return egressd(filepath.Join(t.TempDir(), "egressd"), "egressd", variants()[0])
		},
		"apt-get install --no-install-recommends nonesuch":  func() (*proxy, error) { return installed(&proxy{name: "nonesuch"}, "nonesuch") },
		"go build ./peers/goproxy":                          func() (*proxy, error) { return peer("goproxy", t.TempDir(), t.TempDir()) },
		"apt-get install --no-install-recommends mitmproxy": func() (*proxy, error) { return peer("mitmproxy", "", "") },
	} {
		_, err := find()
		var gone *absence
		if !errors.As(err, &gone) || !strings.Contains(gone.hint, name) {
			t.Errorf("error %v, want an absence with %q", err, name)
		}
	}
}

func TestTheConfigurationOfEgressdIsTheDocumentedOne(t *testing.T) {
	var config struct {
		Version int
		Listen  struct{ Proxy []string }
		Allow   []yaml.Node
		TLS     struct {
			CADir string   `yaml:"ca_dir"`
			Roots []string `yaml:"extra_roots"`
		}
		Unsafe   []string `yaml:"unsafe_allow"`
		File     []string `yaml:"allow_file"`
		Upstream struct{ DNS []string }
		Audit    struct{ Dir, Durability string }
	}
	d := yaml.NewDecoder(strings.NewReader(egressdConfig("/tmp/a b", 0, origins{Flight: 1001, HTTP: 1002, TLS: 1003, Bulk: 1004, DNS: 5353, Inspected: 4443, H2: 4444}, variant{durability: "process", hosts: 9})))
	d.KnownFields(true)
	if err := d.Decode(&config); err != nil {
		t.Fatal(err)
	}
	if config.Version != 1 || config.Listen.Proxy[0] != "127.0.0.1:0" || config.Upstream.DNS[0] != "127.0.0.1:5353" {
		t.Errorf("%+v", config)
	}
	if config.Audit.Dir != "/tmp/a b/log" || config.Audit.Durability != "process" {
		t.Errorf("audit: %+v", config.Audit)
	}
	if config.TLS.CADir != "/tmp/a b/ca" || !slices.Equal(config.TLS.Roots, []string{"/tmp/a b/roots.pem"}) {
		t.Errorf("tls: %+v", config.TLS)
	}
	if len(config.Allow) != 7+len(allowedNames()) || config.Unsafe[0] != "127.0.0.0/8:*" || !slices.Equal(config.File, []string{"/tmp/a b/hosts.txt"}) {
		t.Fatalf("allow %v, unsafe_allow %q", config.Allow, config.Unsafe)
	}
	for i, want := range []string{"bench.test:1001", "bench.test:1002", "bench.test:1003", "bench.test:1004"} {
		if got := config.Allow[i+3].Value; got != want {
			t.Errorf("rule %d is %q, want %q", i+3, got, want)
		}
	}
	for i, want := range []string{"bench.test:4443", "*.bench.test:4443", "bench.test:4444"} {
		var rule struct {
			Host    string
			Methods []string
		}
		if err := config.Allow[i].Decode(&rule); err != nil || rule.Host != want || !slices.Equal(rule.Methods, []string{"GET"}) {
			t.Errorf("rule %d is %+v, %v", i, rule, err)
		}
	}
}

func TestMitmproxyIsToldWhereAndWhomToTrust(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "mitmdump"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	p, err := peer("mitmproxy", "", "")
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := p.command(dir, 4123, origins{Root: []byte("a root")})
	if err != nil {
		t.Fatal(err)
	}
	const want = "DIR/mitmdump --quiet --listen-host 127.0.0.1 --listen-port 4123 --set confdir=DIR/conf --set ssl_verify_upstream_trusted_ca=DIR/roots.pem"
	if got := strings.NewReplacer(bin, "DIR", dir, "DIR").Replace(strings.Join(cmd.Args, " ")); got != want {
		t.Errorf("it is started as\n%s, want\n%s", got, want)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "roots.pem")); string(text) != "a root" {
		t.Errorf("its roots are %q, %v", text, err)
	}
	if !p.insideOnly || p.host != "127.0.0.1" || !strings.HasPrefix(p.certificate, "conf/") {
		t.Errorf("%+v", p)
	}
}

func TestAProxySeesNoneOfTheUsersEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv(roleVariable, "load")
	for _, v := range quietEnvironment("/somewhere") {
		if strings.Contains(v, "PROXY") || strings.Contains(v, roleVariable) {
			t.Errorf("it sees %s", v)
		}
	}
}

// TestTheRegoVariantHasNoListInItsFile checks the policy as egressd would read it: the
// file names it, and allows nothing itself.
func TestTheRegoVariantHasNoListInItsFile(t *testing.T) {
	o := origins{Flight: 1001, HTTP: 1002, TLS: 1003, Bulk: 1004, Inspected: 4443, H2: 4444}
	text := egressdConfig("/tmp/a b", 0, o, variant{rego: true})
	if strings.Contains(text, "\nallow:") || !strings.Contains(text, "\nrego: [\"/tmp/a b/policy.rego\"]\n") {
		t.Errorf("the file is\n%s", text)
	}
	for _, want := range []string{`in {1001, 1002, 1003, 1004}`, `in {4443, 4444}`, `["bench.test", "*.bench.test"]`, `"api.example.test", "registry.example.test"`} {
		if policy := regoPolicy(o); !strings.Contains(policy, want) {
			t.Errorf("the policy has no %s:\n%s", want, policy)
		}
	}
}
