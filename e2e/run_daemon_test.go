package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// sharedPolicy is one under which run uses the daemon.
const sharedPolicy = `version: 1
listen: {proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"], enter: ["unix:${XDG_RUNTIME_DIR}/run/enter.sock"]}
allow: ["*.allowed.test"]
`

func (d *daemon) runBeside(t *testing.T, flags []string, script string) *entered {
	t.Helper()
	argv := append([]string{"run", "--config", d.config}, flags...)
	return d.tell(t, nil, append(argv, "--", "sh", "-c", script)...)
}

func TestRunThroughADaemon(t *testing.T) {
	d := start(t, sharedPolicy)
	for _, flags := range [][]string{{"--name", "one"}, {"--name", "one", "--redirect"}} {
		wire, err := d.world.Wire.Mark()
		if err != nil {
			t.Fatal(err)
		}
		e := d.runBeside(t, append(flags, "--fail-on-deny"), `curl -sS -m9 http://evil.test/; curl -sS -m9 http://169.254.169.254/; ls run; true`)
		if e.code != 86 || !strings.Contains(e.out, `"class":"default-deny"`) || strings.Contains(e.out, "enter.sock") {
			t.Errorf("%q: exit %d, %q, %q", flags, e.code, e.out, e.talk)
		}
		if !strings.Contains(e.talk, "sandbox one · transparent") || !strings.Contains(e.talk, "by the egressd at "+d.dir) || !strings.Contains(e.talk, "2 denied: ") {
			t.Errorf("%q: said %q", flags, e.talk)
		}
		if denials(e.records, "one", "evil.test") != 1 || denials(e.records, "one", "169.254.169.254") != 1 {
			t.Errorf("%q: %+v", flags, e.records)
		}
		if packets, err := d.world.Wire.Since(wire); err != nil || len(packets) > 0 {
			t.Errorf("%q: sent %v, %v", flags, packets, err)
		}
		e = d.runBeside(t, flags, `curl -sS -m9 http://a.allowed.test/x; curl -sS -m9 --cacert lab.pem https://a.allowed.test/y; exit 5`)
		if e.code != 5 || strings.Count(e.out, "origin") < 2 || !strings.Contains(e.talk, "2 requests to 1 host,") {
			t.Errorf("%q: exit %d, %q, %q", flags, e.code, e.out, e.talk)
		}
		first, last := e.records[0], e.records[len(e.records)-1]
		if first.Kind != record.KindStart || first.Sandbox != "one" || last.Kind != record.KindStop || last.Sandbox != "one" {
			t.Errorf("%q: from %+v to %+v", flags, first, last)
		}
		if who := e.records[1].Process; who == nil || !strings.HasSuffix(who.Exe, "/curl") {
			t.Errorf("%q: the program is %+v", flags, who)
		}
	}
}

// TestRunThroughADaemonDoesNotBecomeAnother has the program knock at the socket, which
// was made anew in the meantime, too.
func TestRunThroughADaemonDoesNotBecomeAnother(t *testing.T) {
	d := start(t, sharedPolicy)
	e := d.runBeside(t, []string{"--name", "one"}, `"$EGRESSD" enter --socket run/enter.sock --name two -- true; ls -A run`)
	if !strings.Contains(e.talk, "no egressd answers") || e.out != "" {
		t.Errorf("exit %d, %q, %q", e.code, e.out, e.talk)
	}
	for _, r := range e.records {
		if r.Sandbox != "" && r.Sandbox != "one" {
			t.Errorf("%+v", r)
		}
	}
}

func TestRunThroughADaemonRefusals(t *testing.T) {
	d := start(t, sharedPolicy)
	for _, row := range []struct {
		says  string
		flags []string
		code  int
		talk  string
	}{
		{"a port of the host", []string{"--host-port", "5432"}, 125, "--alone --host-port 5432"},
		{"alone", []string{"--alone"}, 0, "self-test"},
		{"a port of the sandbox", []string{"-p", "0:3000"}, 0, "leads to port 3000"},
		{"a file system of its own", []string{"--fs"}, 125, "--fs"},
	} {
		e := d.runBeside(t, row.flags, "true")
		if e.code != row.code || !strings.Contains(e.talk, row.talk) {
			t.Errorf("%s: exit %d, %q", row.says, e.code, e.talk)
		}
	}
}

// TestRunOutlivesItsDaemon has the program go on without a network.
func TestRunOutlivesItsDaemon(t *testing.T) {
	d := newDaemon(t, sharedPolicy)
	d.run(t, d.command(t.Context(), nil, "serve", "--config", d.config))
	cmd := d.command(t.Context(), nil, "run", "--config", d.config, "--", "sh", "-c", `echo ready; read x; curl -sS -m3 http://a.allowed.test/; ls -A run; "$EGRESSD" enter --socket run/enter.sock -- true; echo over; exit 3`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, said talk
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := d.world.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if !eventually(20*time.Second, func() bool { return strings.Contains(out.String(), "ready") }) {
		t.Fatalf("%q", said.String())
	}
	wire, err := d.world.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	d.kill()
	if !eventually(20*time.Second, func() bool { return strings.Contains(said.String(), "is gone: the program has none any more") }) {
		t.Errorf("said %q", said.String())
	}
	d.run(t, d.command(t.Context(), nil, "serve", "--config", d.config)) // with a socket made anew
	defer d.stop(t)
	in.Write([]byte("go\n"))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(out.String(), "over") || strings.Contains(out.String(), "origin") || strings.Contains(out.String(), "enter.sock") || !strings.Contains(said.String(), "no egressd answers") {
		t.Errorf("exit %d, %q, %q", code, out.String(), said.String())
	}
	if packets, err := d.world.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
}

// TestRunThroughADaemonInspectsAndKeepsTheHost has the daemon look into TLS, for programs
// that trust its authority without being told, and one with a file system of its own.
func TestRunThroughADaemonInspectsAndKeepsTheHost(t *testing.T) {
	d := start(t, strings.Replace(sharedPolicy, `"*.allowed.test"`, `{host: a.allowed.test, paths: ["/public/**"]}`, 1)+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	project := []string{"sh", "-c", `mkdir -p project; cd project; exec "$@"`, "sh"}
	for _, flag := range []string{"--redirect", "--fs"} {
		e := d.tell(t, project, "run", "--config", d.config, "--name", "one", flag, "--", "sh", "-c",
			`curl -sS -m9 https://a.allowed.test/public/x; curl -sS -m9 https://a.allowed.test/private; echo built >result; test "$0" = --redirect || touch /etc/egressd-e2e 2>&1; ls -A ../run`, flag)
		if e.code == 125 || !strings.Contains(e.out, "origin") || !strings.Contains(e.out, "path-denied") || strings.Contains(e.out, "enter.sock") {
			t.Errorf("%s: exit %d, %q, %q", flag, e.code, e.out, e.talk)
		}
		for _, a := range []asked{{method: "GET", path: "/public/x", status: 200}, {method: "GET", path: "/private", class: policy.PathDenied}} {
			request, _ := requestOf(e.records, a)
			if request == nil || request.Sandbox != "one" || request.TLS == nil || !request.TLS.Inspected || request.Decision.Class != string(a.class) {
				t.Errorf("%s: of %s the log has %+v", flag, a.path, request)
			}
		}
		if text, err := os.ReadFile(filepath.Join(d.dir, "project", "result")); err != nil || string(text) != "built\n" {
			t.Errorf("%s: the project has %q, %v", flag, text, err)
		}
		if apart := strings.Contains(e.out, "Read-only file system"); apart != (flag == "--fs") {
			t.Errorf("%s: the system can be written: %v; %q", flag, !apart, e.out)
		}
	}
}
