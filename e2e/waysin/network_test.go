package waysin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

var anyListener = regexp.MustCompile(`"[0-9.:\[\]]+:(3128|53)"`)

// TestAListenerOnAllInterfacesServesNobodyInWhatInitWrites takes each policy that init writes, has it listen on
// all interfaces, and asks from another network namespace. egressd refuses to start, or knows nobody there.
func TestAListenerOnAllInterfacesServesNobodyInWhatInitWrites(t *testing.T) {
	for _, row := range []struct {
		name, host string
		args       []string // of egressd init
		starts     bool
	}{
		{"starter", "registry.npmjs.org", []string{"--print"}, false},
		{"k8s", "example.com", []string{"k8s", "--print"}, false},
		{"compose", "example.com", []string{"compose", "-f", "app", "--allow", "example.com", "--subnet", "10.140.16.0/20", "--policy", "made"}, true},
		{"docker", "example.com", []string{"docker", "web", "--allow", "example.com", "--subnet", "10.140.16.0/20", "--policy", "made"}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := world.NewDaemon(t, "version: 1\n")
			text := initialPolicy(t, d.Dir, row.args)
			if text = onAllInterfaces(text); !strings.Contains(text, "0.0.0.0:3128") {
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
			c, err := d.Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprintf(c, "CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", row.host)
			answer, err := io.ReadAll(bufio.NewReader(c))
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 407 ") {
				t.Errorf("%v, %s", err, answer)
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

// initialPolicy returns the policy that egressd init writes or prints.
func initialPolicy(t *testing.T, dir string, args []string) string {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, "app"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "app", "compose.yaml"), []byte("services:\n  web: {image: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(world.Egressd.Path(), append([]string{"init"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("egressd init %v: %v", args, err)
	}
	if written, err := os.ReadFile(filepath.Join(dir, "made", "egressd.yaml")); err == nil {
		return string(written)
	}
	_, text, _ := strings.Cut("\n"+string(out), "\n    version: 1\n") // of a pod, in a ConfigMap
	if text == "" {
		return string(out)
	}
	text, _, _ = strings.Cut(text, "\n---")
	return "version: 1\n" + strings.ReplaceAll("\n"+text, "\n    ", "\n")
}

// onAllInterfaces has the first listener of each list listen everywhere, and leaves the others out.
func onAllInterfaces(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if all := anyListener.FindAllStringSubmatch(line, -1); len(all) > 0 {
			key, _, _ := strings.Cut(line, ":")
			line = fmt.Sprintf("%s: [\"0.0.0.0:%s\"]\n", key, all[0][1])
			if all[0][1] == "3128" {
				line = key + ": [\"0.0.0.0:3128\", \"0.0.0.0:3129\"]\n"
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}
