// Package e2e runs the real egressd in a laboratory of network namespaces,
// against clients that lie, hosts that misbehave and a name server that
// answers what it likes, and judges what was seen on the wire, in the answers
// and in the audit log.
//
// The cases are in testdata/conformance; TestCoverage lists them. The binary
// is built from this module, or taken from the variable EGRESSD:
//
//	go test -count=1 ./e2e/
//	EGRESSD=/usr/bin/egressd go test -count=1 ./e2e/
//
// Policies are swapped under load for a few seconds, or for longer:
//
//	EGRESSD_E2E_SWAP=60s go test -count=1 -run Swapped ./e2e/
//
// So are many requests made (EGRESSD_E2E_MIX=100000), the log flooded (EGRESSD_E2E_FLOOD=60s), and
// all of it used at once (EGRESSD_E2E_SOAK=1h); CONTRIBUTING.md has all long forms.
// Every line of every log that a test has an egressd write is checked by docs/record.schema.json.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/lab"
)

// binaryVariable names the egressd to test; without it one is built.
// h2specVariable does so for h2spec, whose version stands in the module of tools, and
// probeVariable for what containers try their ways out with, imagerVariable for what makes
// egressd's image.
const (
	binaryVariable = "EGRESSD"
	h2specVariable = "EGRESSD_H2SPEC"
	probeVariable  = "EGRESSD_PROBE"
	imagerVariable = "EGRESSD_IMAGER"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(leakVariable); kind != "" {
		os.Exit(leakyProxy(kind))
	}
	if len(os.Args) > 3 && os.Args[1] == plainArgument {
		os.Exit(plainUser(os.Args[2], os.Args[3], os.Args[4:]))
	}
	if len(os.Args) > 2 && os.Args[1] == filteredArgument {
		os.Exit(filtered(os.Args[2:]))
	}
	if len(os.Args) == 3 && os.Args[1] == goClientArgument {
		os.Exit(goClient(os.Args[2]))
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// run is passed twice: outside the lab, where it builds, and inside it, where
// there is no network to fetch a module from.
func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "egressd-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	for variable, from := range map[string][2]string{
		binaryVariable: {".", "github.com/egressd/egressd/cmd/egressd"},
		h2specVariable: {filepath.Join("..", "tools"), "github.com/summerwind/h2spec/cmd/h2spec"},
		probeVariable:  {".", "github.com/egressd/egressd/internal/lab/engine/probe"},
		imagerVariable: {".", "github.com/egressd/egressd/packaging/image"},
	} {
		if os.Getenv(variable) != "" {
			continue
		}
		path := filepath.Join(dir, filepath.Base(from[1]))
		if err := build(path, from[0], from[1]); err != nil {
			return 1, err
		}
		os.Setenv(variable, path)
	}
	code, inside := lab.Enter()
	if !inside {
		return code, nil
	}
	forgetTheUser()
	if err := misleadResolvers(); err != nil {
		return 1, err
	}
	heedSignals()
	code = m.Run()
	return code, closeEngine()
}

// forgetTheUser has nothing that tests start be led elsewhere by who runs them: by a
// proxy, an engine, or a umask.
func forgetTheUser() {
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "no_proxy", "docker_host", "docker_context"} {
		os.Unsetenv(strings.ToUpper(name))
		os.Unsetenv(name)
	}
	syscall.Umask(0o022)
}

// heedSignals has the signals that this process was started to ignore, as nohup and
// shells do for what runs in the background, not be ignored by all that the tests start.
func heedSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

func build(path, dir, name string) error {
	cmd := exec.Command("go", "build", "-o", path, name)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return nil
}

// misleadResolvers gives the machine's own files answers that egressd must
// never use: names that the policy would allow or that mean something only
// here, all at evil.test's address.
func misleadResolvers() error {
	dir, err := os.MkdirTemp("", "etc-")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"hosts": "127.0.0.1 localhost\n" + evilIPv4 + " allowed.test a.allowed.test metadata kubernetes.default.svc " +
			"metadata.google.internal host.docker.internal instance-data hosts-file.allowed.test\n",
		"resolv.conf": "nameserver 1.1.1.1\nsearch allowed.test\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(path, "/etc/"+name, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over /etc/%s: %w", name, err)
		}
	}
	return os.RemoveAll(dir)
}
