package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// sharedPolicy is one under which run uses the daemon.
const sharedPolicy = `version: 1
listen: {open_to_network: true, proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"], enter: ["unix:${XDG_RUNTIME_DIR}/run/enter.sock"]}
allow: ["*.allowed.test"]
`

func runBeside(t *testing.T, d *world.Daemon, flags []string, script string) *world.Result {
	t.Helper()
	argv := append([]string{"run", "--config", d.Config}, flags...)
	return d.RunCommand(t, nil, append(argv, "--", "sh", "-c", script)...)
}

func TestRunThroughADaemon(t *testing.T) {
	d := world.Start(t, sharedPolicy)
	for _, flags := range [][]string{{"--name", "one"}, {"--name", "one", "--redirect"}} {
		wire, err := d.World.Wire.Mark()
		if err != nil {
			t.Fatal(err)
		}
		e := runBeside(t, d, append(flags, "--fail-on-deny"), `curl -sS -m9 http://evil.test/; curl -sS -m9 http://169.254.169.254/; ls run; true`)
		if e.Code != 86 || !strings.Contains(e.Out, `"class":"default-deny"`) || strings.Contains(e.Out, "enter.sock") {
			t.Errorf("%q: exit %d, %q, %q", flags, e.Code, e.Out, e.Talk)
		}
		if !strings.Contains(e.Talk, "all traffic captured") || !strings.Contains(e.Talk, d.Dir) {
			t.Errorf("%q: said %q", flags, e.Talk)
		}
		if world.CountDenials(e.Records, "one", "evil.test") != 1 || world.CountDenials(e.Records, "one", "169.254.169.254") != 1 {
			t.Errorf("%q: %+v", flags, e.Records)
		}
		if packets, err := d.World.Wire.Since(wire); err != nil || len(packets) > 0 {
			t.Errorf("%q: sent %v, %v", flags, packets, err)
		}
		e = runBeside(t, d, flags, `curl -sS -m9 http://a.allowed.test/x; curl -sS -m9 --cacert lab.pem https://a.allowed.test/y; exit 5`)
		if e.Code != 5 || strings.Count(e.Out, "origin") < 2 {
			t.Errorf("%q: exit %d, %q, %q", flags, e.Code, e.Out, e.Talk)
		}
		first, last := e.Records[0], e.Records[len(e.Records)-1]
		if first.Kind != record.KindStart || first.Sandbox != "one" || last.Kind != record.KindStop || last.Sandbox != "one" {
			t.Errorf("%q: from %+v to %+v", flags, first, last)
		}
		if who := e.Records[1].Process; who == nil || !strings.HasSuffix(who.Exe, "/curl") {
			t.Errorf("%q: the program is %+v", flags, who)
		}
	}
}

// TestRunThroughADaemonDoesNotBecomeAnother has the program knock at the socket, which
// was made anew in the meantime, too.
func TestRunThroughADaemonDoesNotBecomeAnother(t *testing.T) {
	d := world.Start(t, sharedPolicy)
	e := runBeside(t, d, []string{"--name", "one"}, `"$EGRESSD" enter --socket run/enter.sock --name two -- true; echo $?; ls -A run`)
	if e.Out != "125\n" {
		t.Errorf("exit %d, %q, %q", e.Code, e.Out, e.Talk)
	}
	for _, r := range e.Records {
		if r.Sandbox != "" && r.Sandbox != "one" {
			t.Errorf("%+v", r)
		}
	}
}

func TestRunThroughADaemonRefusals(t *testing.T) {
	d := world.Start(t, sharedPolicy)
	for _, row := range []struct {
		says  string
		flags []string
		code  int
		talk  string
	}{
		{"a port of the host", []string{"--host-port", "5432"}, 125, "--alone --host-port 5432"},
		{"alone", []string{"--alone"}, 0, "escape checks passed"},
		{"a port of the sandbox", []string{"-p", "0:3000"}, 0, "leads to port 3000"},
		{"a file system of its own", []string{"--fs"}, 125, "--fs"},
	} {
		e := runBeside(t, d, row.flags, "true")
		if e.Code != row.code || !strings.Contains(e.Talk, row.talk) {
			t.Errorf("%s: exit %d, %q", row.says, e.Code, e.Talk)
		}
	}
}

// TestRunOutlivesItsDaemon has the program go on without a network.
func TestRunOutlivesItsDaemon(t *testing.T) {
	d := world.NewDaemon(t, sharedPolicy)
	d.Run(t, d.Command(t.Context(), nil, "serve", "--config", d.Config))
	cmd := d.Command(t.Context(), nil, "run", "--config", d.Config, "--", "sh", "-c", `echo ready; read x; curl -sS -m3 http://a.allowed.test/; ls -A run; "$EGRESSD" enter --socket run/enter.sock -- true; echo over; exit 3`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, said world.Output
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if !world.Eventually(20*time.Second, func() bool { return strings.Contains(out.String(), "ready") }) {
		t.Fatalf("%q", said.String())
	}
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	if !world.Eventually(20*time.Second, func() bool { return strings.Contains(said.String(), "is gone: the program has none any more") }) {
		t.Errorf("said %q", said.String())
	}
	d.Run(t, d.Command(t.Context(), nil, "serve", "--config", d.Config)) // with a socket made anew
	defer d.Stop(t)
	in.Write([]byte("go\n"))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(out.String(), "over") || strings.Contains(out.String(), "origin") || strings.Contains(out.String(), "enter.sock") || !strings.Contains(said.String(), "no egressd answers") {
		t.Errorf("exit %d, %q, %q", code, out.String(), said.String())
	}
	if packets, err := d.World.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
}

// TestRunThroughADaemonInspectsAndKeepsTheHost has the daemon look into TLS, for programs
// that trust its authority without being told, and one with a file system of its own.
func TestRunThroughADaemonInspectsAndKeepsTheHost(t *testing.T) {
	d := world.Start(t, strings.Replace(sharedPolicy, `"*.allowed.test"`, `{host: a.allowed.test, paths: ["/public/**"]}`, 1)+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	project := []string{"sh", "-c", `mkdir -p project; cd project; exec "$@"`, "sh"}
	for _, flag := range []string{"--redirect", "--fs"} {
		e := d.RunCommand(t, project, "run", "--config", d.Config, "--name", "one", flag, "--", "sh", "-c",
			`curl -sS -m9 https://a.allowed.test/public/x; curl -sS -m9 https://a.allowed.test/private; echo built >result; test "$0" = --redirect || touch /etc/egressd-e2e 2>&1; ls -A ../run`, flag)
		if e.Code == 125 || !strings.Contains(e.Out, "origin") || !strings.Contains(e.Out, "path-denied") || strings.Contains(e.Out, "enter.sock") {
			t.Errorf("%s: exit %d, %q, %q", flag, e.Code, e.Out, e.Talk)
		}
		for _, a := range []world.LoggedRequest{{Method: "GET", Path: "/public/x", Status: 200}, {Method: "GET", Path: "/private", Class: policy.PathDenied}} {
			request, _ := world.FindRequest(e.Records, a)
			if request == nil || request.Sandbox != "one" || request.TLS == nil || !request.TLS.Inspected || request.Decision.Class != string(a.Class) {
				t.Errorf("%s: of %s the log has %+v", flag, a.Path, request)
			}
		}
		if text, err := os.ReadFile(filepath.Join(d.Dir, "project", "result")); err != nil || string(text) != "built\n" {
			t.Errorf("%s: the project has %q, %v", flag, text, err)
		}
		if apart := strings.Contains(e.Out, "Read-only file system"); apart != (flag == "--fs") {
			t.Errorf("%s: the system can be written: %v; %q", flag, !apart, e.Out)
		}
	}
}
