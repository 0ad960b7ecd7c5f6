package waysin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

// An initPolicy is a policy that a kind of egressd init writes.
type initPolicy struct {
	kind, keys, host string // keys are those of listen that are to have a listener on all interfaces
	args             []string
	starts           bool // with these listeners
}

// initPolicies are the kinds of egressd init that write a policy.
var initPolicies = []initPolicy{
	{"starter", "proxy dns", "registry.npmjs.org", []string{"--print"}, false},
	{"k8s", "proxy dns", "example.com", []string{"k8s", "--print"}, false},
	{"k8s", "transparent", "registry.npmjs.org", []string{"k8s", "--print"}, true},
	{"compose", "proxy dns", "example.com", []string{"compose", "-f", "app", "--allow", "example.com", "--subnet", "10.140.16.0/20", "--policy", "made"}, true},
	{"docker", "proxy dns", "example.com", []string{"docker", "web", "--allow", "example.com", "--subnet", "10.140.16.0/20", "--policy", "made"}, true},
}

// initOthers are the kinds that write settings for a policy that is there. They write no listener on all interfaces, or
// refuse a policy that has one.
var initOthers = map[string]struct {
	args    []string
	refuses bool
}{
	"claude":       {[]string{"--print"}, false},
	"codex":        {[]string{"--print"}, false},
	"systemd":      {[]string{"--print"}, true},
	"github":       {[]string{"--print"}, false},
	"devcontainer": {[]string{"--workspace", "app", "--print", "--trust", "a"}, false},
	"bubblewrap":   {[]string{"--print"}, false},
	"rego":         {[]string{"made", "--json"}, false},
}

// TestEachKindOfInitIsTriedOnAllInterfaces finds the kinds in the help of egressd init.
func TestEachKindOfInitIsTriedOnAllInterfaces(t *testing.T) {
	help, err := exec.Command(world.Egressd.Path(), "init", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(help), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	kinds := 0
	for line := range strings.Lines(list) {
		kind := strings.Fields(line)[0]
		kinds++
		_, other := initOthers[kind]
		if !other && !slices.ContainsFunc(initPolicies, func(p initPolicy) bool { return p.kind == kind }) {
			t.Errorf("egressd init %s has no row in initPolicies or initOthers", kind)
		}
	}
	if kinds < len(initOthers) {
		t.Errorf("%d kinds in\n%s", kinds, help)
	}
	for kind, row := range initOthers {
		dir := initFolder(t)
		policy, err := runInit(dir, "--print")
		if err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(dir, "egressd.yaml")
		if err := os.WriteFile(config, []byte(onAllInterfaces(policy, "proxy")), 0o600); err != nil {
			t.Fatal(err)
		}
		args := append([]string{kind}, row.args...)
		if kind != "github" && kind != "rego" { // which name a policy of the repository
			args = append(args, "--config", config)
		}
		out, err := runInit(dir, args...)
		if (err != nil) != row.refuses || strings.Contains(out, "0.0.0.0") || strings.Contains(out, "[::]") || !row.refuses && out == "" {
			t.Errorf("egressd init %s: %v\n%s", kind, err, out)
		}
	}
}

// TestAListenerOnAllInterfacesServesNobodyInWhatInitWrites takes each policy that init writes, has it listen on
// all interfaces, and asks from another network namespace. egressd refuses to start, or knows nobody there.
func TestAListenerOnAllInterfacesServesNobodyInWhatInitWrites(t *testing.T) {
	for _, row := range initPolicies {
		t.Run(row.kind+" "+row.keys, func(t *testing.T) {
			d := world.NewDaemon(t, "version: 1\n")
			text := onAllInterfaces(initialPolicy(t, row.args), row.keys)
			if !strings.Contains(text, `"0.0.0.0:312`) {
				t.Fatalf("no listener in:\n%s", text)
			}
			if err := os.WriteFile(d.Config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			started := d.Begin(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
			if started {
				t.Cleanup(func() { d.Stop(t) })
			}
			if started != row.starts {
				t.Fatalf("started: %t\n%s", started, d.Output.String())
			}
			if !started {
				return
			}
			wire, err := d.World.Wire.Mark()
			if err != nil {
				t.Fatal(err)
			}
			asked := d.World.Zone.Mark()
			defer func() {
				packets, err := d.World.Wire.Since(wire)
				packets = slices.DeleteFunc(packets, func(p lab.Packet) bool { return p.From.Port() == 53 }) // refusals to the sandbox
				if err != nil || len(packets) > 0 {
					t.Errorf("sent %v, %v", packets, err)
				}
				if names := d.World.Zone.Since(asked); len(names) > 0 {
					t.Errorf("asked for %q", names)
				}
			}()
			if row.keys == "transparent" {
				if answer := sentTo(t, d, ":3129", "GET / HTTP/1.1\r\nHost: "+row.host+"\r\n\r\n"); strings.Contains(answer, " 200 ") {
					t.Errorf("it answers %s", answer)
				}
				return
			}
			answer := sentTo(t, d, ":3128", fmt.Sprintf("CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", row.host))
			if !strings.HasPrefix(answer, "HTTP/1.1 407 ") {
				t.Errorf("it answers %s", answer)
			}
			names := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
				return d.World.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, "53"))
			}}
			if found, err := names.LookupHost(t.Context(), row.host); err == nil {
				t.Errorf("%s is %v", row.host, found)
			}
		})
	}
}

// sentTo sends text to a port of the gateway from the sandbox's network, and returns all that is answered: nothing if the
// connection is reset, at whichever step the reset arrives.
func sentTo(t *testing.T, d *world.Daemon, port, text string) string {
	t.Helper()
	c, err := d.World.Sandbox.Dial("tcp", lab.GatewayIPv4+port)
	var answer []byte
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err = io.WriteString(c, text); err == nil {
			answer, err = io.ReadAll(c)
		}
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("port %s: %v after %q", port, err, answer)
	}
	return string(answer)
}

// initFolder is a home with the project app, which has a compose file and a dev container.
func initFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"compose.yaml": "services:\n  web: {image: a}\n", ".devcontainer/devcontainer.json": `{"image": "a"}`} {
		path := filepath.Join(dir, "app", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runInit runs egressd init with dir as its home, and returns what it prints.
func runInit(dir string, args ...string) (string, error) {
	cmd := exec.Command(world.Egressd.Path(), append([]string{"init"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir)
	out, err := cmd.Output()
	return string(out), err
}

// initialPolicy returns the policy that egressd init writes or prints.
func initialPolicy(t *testing.T, args []string) string {
	t.Helper()
	dir := initFolder(t)
	out, err := runInit(dir, args...)
	if err != nil {
		t.Fatalf("egressd init %v: %v", args, err)
	}
	if written, err := os.ReadFile(filepath.Join(dir, "made", "egressd.yaml")); err == nil {
		return string(written)
	}
	_, text, _ := strings.Cut("\n"+out, "\n    version: 1\n") // of a pod, in a ConfigMap
	if text == "" {
		return out
	}
	text, _, _ = strings.Cut(text, "\n---")
	return "version: 1\n" + strings.ReplaceAll("\n"+text, "\n    ", "\n")
}

var anyListener = regexp.MustCompile(`"[0-9.:\[\]]+:(\d+)"`)

// onAllInterfaces has the first listener of each of the keys listen everywhere, and leaves the others of that key out.
func onAllInterfaces(text, keys string) string {
	var lines []string
	for line := range strings.Lines(text) {
		key, _, _ := strings.Cut(line, ":")
		if all := anyListener.FindAllStringSubmatch(line, -1); len(all) > 0 && slices.Contains(strings.Fields(keys), strings.TrimSpace(key)) {
			line = fmt.Sprintf("%s: [\"0.0.0.0:%s\"]\n", key, all[0][1])
			if all[0][1] == "3128" {
				line = key + ": [\"0.0.0.0:3128\", \"0.0.0.0:3130\"]\n" // the daemon of the tests has two
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}
