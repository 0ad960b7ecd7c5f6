//go:build linux

package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
		"go build": func() (*proxy, error) { return egressd(filepath.Join(t.TempDir(), "egressd"), "disk") },
		"apt-get install --no-install-recommends nonesuch": func() (*proxy, error) { return installed(&proxy{name: "nonesuch"}) },
		"go build ./goproxy": func() (*proxy, error) { return peer("goproxy", t.TempDir(), t.TempDir()) },
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
		Version  int
		Listen   struct{ Proxy []string }
		Allow    []string
		Unsafe   []string `yaml:"unsafe_allow"`
		Upstream struct{ DNS []string }
		Audit    struct{ Dir, Durability string }
	}
	d := yaml.NewDecoder(strings.NewReader(egressdConfig("/tmp/a b", 0, 5353, "process")))
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
	if len(config.Allow) != 1+len(allowedNames()) || config.Allow[0] != "bench.test:*" || config.Unsafe[0] != "127.0.0.0/8:*" {
		t.Errorf("allow %q, unsafe_allow %q", config.Allow, config.Unsafe)
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
