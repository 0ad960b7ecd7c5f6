// Package world is the laboratory of the end-to-end tests: the built egressd in network namespaces, with clients
// that lie, upstreams that misbehave and a name server that answers what a test tells it.
//
// [Open] returns the hosts and the name server. [Start] runs egressd in the gateway under a policy.
// [Daemon.Observe] carries out one case of testdata/conformance, and [Judge] compares what was seen on the wire,
// in the answers and in the audit log with what the case expects. Every line of every log that egressd writes in
// a test is checked against docs/record.schema.json.
//
// The folders beside this one hold the tests by subject; the TestMain of each calls [Main]. EGRESSD names the
// binary under test; without it, Main builds one:
//
//	go test -count=1 ./e2e/...
//	EGRESSD=/usr/bin/egressd go test -count=1 ./e2e/policy
//
// CONTRIBUTING.md lists the variables by which a test runs longer.
package world

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/lab"
)

// A Program is a command that tests start. Its variable names the file of the program; without the
// variable, the program is built from this module.
type Program struct {
	variable, module, pkg string
	plugin                string // its name in build/plugins, where scripts/setup.sh builds it; or empty
}

// Programs that tests start.
var (
	Egressd = Program{variable: "EGRESSD", module: ".", pkg: "github.com/egressd/egressd/cmd/egressd"}
	H2Spec  = Program{variable: "EGRESSD_H2SPEC", module: "tools", pkg: "github.com/summerwind/h2spec/cmd/h2spec"} // the module of tools holds its version
	Probe   = Program{variable: "EGRESSD_PROBE", module: ".", pkg: "github.com/egressd/egressd/internal/lab/engine/probe"}
	Imager  = Program{variable: "EGRESSD_IMAGER", module: ".", pkg: "github.com/egressd/egressd/packaging/image"}
	Compose = Program{variable: "EGRESSD_COMPOSE", plugin: "docker-compose"}
	Buildx  = Program{variable: "EGRESSD_BUILDX", plugin: "docker-buildx"}
)

// Path returns the file of the program.
func (p Program) Path() string { return os.Getenv(p.variable) }

func (p Program) build(dir string) error {
	if p.Path() != "" {
		return nil
	}
	path := filepath.Join(dir, filepath.Base(p.pkg))
	cmd := exec.Command("go", "build", "-o", path, p.pkg)
	if p.plugin != "" {
		path, cmd = Source("build", "plugins", p.plugin), exec.Command(Source("scripts", "setup.sh"), "plugins")
	}
	cmd.Dir, cmd.Env = Source(p.module), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", filepath.Base(path), err, out)
	}
	return os.Setenv(p.variable, path)
}

// root is the folder of this module: the nearest one above the test's with a go.mod.
var root = sync.OnceValue(func() string {
	at, err := os.Getwd()
	for dir := at; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	panic(fmt.Sprintf("no go.mod in or above %q, %v", at, err))
})

// Source returns the path of a file of this module.
func Source(name ...string) string { return filepath.Join(append([]string{root()}, name...)...) }

// A Suite says what the tests of one package need.
type Suite struct {
	Programs []Program       // beside egressd
	Modes    map[string]Mode // by the first argument of the test binary
	Close    func() error    // called after the tests
}

// A Mode is what a test binary does instead of testing. It gets the arguments after the first, and returns
// an exit status.
type Mode func(args []string) int

// Main is the TestMain of each package of tests. It runs the tests in the lab, and ends the process.
func Main(m *testing.M, s Suite) {
	if len(os.Args) > 1 && s.Modes[os.Args[1]] != nil {
		os.Exit(s.Modes[os.Args[1]](os.Args[2:]))
	}
	code, err := s.run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// run is called twice: outside the lab, where it builds the programs, and inside the lab, which has no
// network to fetch a module from.
func (s Suite) run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "egressd-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	for _, p := range append([]Program{Egressd}, s.Programs...) {
		if err := p.build(dir); err != nil {
			return 1, err
		}
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
	if s.Close == nil {
		return code, nil
	}
	return code, s.Close()
}

// forgetTheUser has nothing that tests start be led elsewhere by who runs them: by a
// proxy, an engine, a umask, or the python3 of a version manager, which takes ten times
// as long to start as that of the system.
func forgetTheUser() {
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "no_proxy", "docker_host", "docker_context"} {
		os.Unsetenv(strings.ToUpper(name))
		os.Unsetenv(name)
	}
	os.Setenv("PATH", "/usr/bin:/bin:"+os.Getenv("PATH"))
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

// misleadResolvers gives the machine's own files answers that egressd must
// never use: names that the policy would allow or that mean something only
// here, all at evil.test's address.
func misleadResolvers() error {
	dir, err := os.MkdirTemp("", "etc-")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"hosts": "127.0.0.1 localhost\n" + EvilIPv4 + " allowed.test a.allowed.test metadata kubernetes.default.svc " +
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
