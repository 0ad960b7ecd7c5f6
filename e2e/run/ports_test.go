package run

import (
	"bytes"
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
	"github.com/egressd/egressd/policy"
)

// hostServer answers on a port of the gateway's loopback.
func hostServer(t *testing.T, d *world.Daemon) (port string) {
	t.Helper()
	l, err := d.World.Gateway.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	world.Serve(t, l, func(c net.Conn) {
		io.WriteString(c, "host ")
		io.Copy(c, c)
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestRunGivesOnePortOfTheHost talks to it by each name of loopback; another port
// stays out of reach, and all is recorded.
func TestRunGivesOnePortOfTheHost(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	given, other := hostServer(t, d), hostServer(t, d)
	script := fmt.Sprintf(`for a in 127.0.0.1 localhost [::1]; do echo to-$a | socat -t5 - TCP:$a:%s; done; echo x | socat -t2 - TCP:127.0.0.1:%s 2>&1; echo x | socat -t2 - TCP:10.99.0.2:%s 2>&1`, given, other, given)
	for user := range world.Users {
		r := runAs(t, d, user, script, "--host-port", given)
		for _, want := range []string{"host to-127.0.0.1\n", "host to-localhost\n", "host to-[::1]\n", "Connection refused"} {
			if !strings.Contains(r.out, want) {
				t.Errorf("%s: printed %q (%s), want %q", user, r.out, r.talk, want)
			}
		}
		if strings.Contains(r.talk, "warning") || !strings.Contains(r.talk, "egressd: 127.0.0.1:"+given+" of the sandbox leads to that of the host\n") {
			t.Errorf("%s: said %q", user, r.talk)
		}
		var opened, closed int
		for _, rec := range r.records {
			if rec.Dst == nil || rec.Dst.Host != "127.0.0.1" || rec.Decision.Rule != "--host-port "+given {
				continue
			}
			switch rec.Kind {
			case "open":
				opened++
			case "close":
				closed++
				if rec.Bytes.Up == 0 || rec.Bytes.Down <= rec.Bytes.Up || rec.Outcome != "closed" {
					t.Errorf("%s: ended as %+v %s", user, rec.Bytes, rec.Outcome)
				}
			}
		}
		if opened != 3 || closed != 3 {
			t.Errorf("%s: %d opened, %d closed: %+v", user, opened, closed, r.records)
		}
		if r.denied("10.99.0.2", policy.AddressDenied) == 0 {
			t.Errorf("%s: the gateway's other address is not denied", user)
		}
	}
	if r := runAs(t, d, "user", "true", "--host-port", given, "-p", given); r.code != 125 {
		t.Errorf("a port that is both: exit %d", r.code)
	}
}

// TestRunHostPortsAreDecided has the policy narrow its sandbox, and deny with Rego.
func TestRunHostPortsAreDecided(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [a.allowed.test]\nrego: [policy/]\n")
	folder := filepath.Join(d.Dir, "policy")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	given := hostServer(t, d)
	text := "package egress\n\ndeny contains {\"rule\": \"no-host\"} if input.destination.address_class == \"loopback\"\n"
	if err := os.WriteFile(filepath.Join(folder, "deny.rego"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := runAs(t, d, "user", fmt.Sprintf(`echo x | socat -t2 - TCP:127.0.0.1:%s 2>&1; echo done`, given), "--host-port", given)
	if strings.Contains(r.out, "host") || !strings.Contains(r.out, "done") || r.denied("127.0.0.1", policy.RuleDeny) == 0 {
		t.Errorf("printed %q (%s): %+v", r.out, r.talk, r.records)
	}
}

// TestRunPublishesAPort talks to a server in the sandbox, more often than there are
// sockets for it, and not after its end.
func TestRunPublishesAPort(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, listen := range []string{"TCP4-LISTEN:8000,bind=127.0.0.1", "TCP6-LISTEN:8000,bind=[::1]", "TCP4-LISTEN:8000"} {
		t.Run(listen, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := jailed(ctx, d, "user", []string{"-p", "0:8000"}, "sh", "-c", `socat `+listen+`,fork,reuseaddr,backlog=64 EXEC:cat & read end; kill $!`)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			talk := new(world.Output)
			cmd.Stderr = talk
			if err := d.World.Gateway.Start(cmd); err != nil {
				t.Fatal(err)
			}
			defer func() { stdin.Close(); cmd.Wait() }()
			var port string
			if !world.Eventually(20*time.Second, func() bool {
				found := regexp.MustCompile(`egressd: 127\.0\.0\.1:(\d+) leads to port 8000 of the sandbox\n`).FindStringSubmatch(talk.String())
				if found != nil {
					port = found[1]
				}
				return found != nil
			}) {
				t.Fatalf("said %q", talk.String())
			}
			ask := fmt.Sprintf(`i=0; while [ $i -lt 80 ]; do echo n$i | socat -t5 - TCP:127.0.0.1:%s || exit 1; i=$((i+1)); done`, port)
			var out bytes.Buffer
			if !world.Eventually(20*time.Second, func() bool { // until the server listens
				one := exec.Command("sh", "-c", fmt.Sprintf("echo up | socat -t5 - TCP:127.0.0.1:%s 2>/dev/null", port))
				text := new(bytes.Buffer)
				one.Stdout = text
				return d.World.Gateway.Run(one) == nil && text.String() == "up\n"
			}) {
				t.Fatalf("nobody answers: %q", talk.String())
			}
			many := exec.Command("sh", "-c", ask)
			many.Stdout, many.Stderr = &out, &out
			if err := d.World.Gateway.Run(many); err != nil || strings.Count(out.String(), "\n") != 80 || !strings.HasSuffix(out.String(), "n79\n") {
				t.Errorf("%v: read %q", err, out.String())
			}
			stdin.Close()
			cmd.Wait()
			after := exec.Command("socat", "-u", "TCP:127.0.0.1:"+port, "-")
			if d.World.Gateway.Run(after) == nil {
				t.Error("the port outlives the sandbox")
			}
		})
	}
}
