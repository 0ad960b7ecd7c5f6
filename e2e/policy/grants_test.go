package policy

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// grants are what egressd allow --list lists.
func grants(t *testing.T, d *world.Daemon) (ids []string) {
	t.Helper()
	e := d.RunCommand(t, nil, "allow", "--list", "--json", "--config", d.Config)
	if e.Code != 0 {
		t.Fatalf("exit %d: %s", e.Code, e.Talk)
	}
	for line := range strings.Lines(e.Out) {
		var g struct {
			ID      string `json:"id"`
			Sandbox string `json:"sandbox"`
			From    string `json:"from"`
			UID     *int   `json:"uid"`
		}
		if err := json.Unmarshal([]byte(line), &g); err != nil || g.UID == nil || *g.UID != 0 || (g.Sandbox == "") != (g.From == "") {
			t.Errorf("listed as %s: %v", line, err)
		}
		ids = append(ids, g.ID)
	}
	return ids
}

// TestAHostIsGrantedForAWhile answers a refusal by the command that egressd log prints.
func TestAHostIsGrantedForAWhile(t *testing.T) {
	world.Covers(t, "DN-32")
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "deny: [\"*.allowed.test\"]\n"))
	before := d.Digest(t)
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Fatalf("before: %d", status)
	}
	shown := d.RunCommand(t, nil, "log", "--config", d.Config).Out
	at := strings.Index(shown, "egressd allow allowed.test --from ")
	if at < 0 {
		t.Fatalf("no fix in\n%s", shown)
	}
	fix := strings.Fields(shown[at : strings.Index(shown[at:], "\n")+at])
	said := d.RunCommand(t, nil, fix[1:]...)
	if said.Code != 0 {
		t.Fatalf("%q: exit %d: %s", fix, said.Code, said.Talk)
	}
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	if d.Digest(t) == before {
		t.Error("the digest does not name what is in force")
	}
	if e := d.RunCommand(t, nil, "allow", "x.other.allowed.test", "--config", d.Config); e.Code != 1 || !strings.Contains(e.Talk, "egressd allow x.other.allowed.test:443 --over-deny") {
		t.Errorf("against a deny: exit %d: %s", e.Code, e.Talk)
	}
	if e := d.RunCommand(t, nil, "allow", "a.allowed.test", "--over-deny", "--config", d.Config); e.Code != 0 || d.ConnectStatus(t, "a.allowed.test:443") != http.StatusOK {
		t.Errorf("over a deny: exit %d: %s", e.Code, e.Talk)
	}
	if e := d.RunCommand(t, nil, "allow", "--list", "--json", "--config", d.Config); !strings.Contains(e.Out, `"over_deny":true`) {
		t.Errorf("the list does not say so: %s", e.Out)
	}
	if e := d.RunCommand(t, nil, "log", "kind:admin", "--config", d.Config); !strings.Contains(e.Out, "allow over deny a.allowed.test") {
		t.Errorf("the log does not say so: %s", e.Out)
	}
	ids := grants(t, d)
	if e := d.RunCommand(t, nil, "allow", "--undo", ids[len(ids)-1], "--config", d.Config); e.Code != 0 {
		t.Errorf("revoke: exit %d: %s", e.Code, e.Talk)
	}
	ids = grants(t, d)
	if len(ids) != 1 {
		t.Fatalf("granted %q", ids)
	}
	if e := d.RunCommand(t, nil, "allow", "--undo", ids[0], "--config", d.Config); e.Code != 0 {
		t.Errorf("revoke: exit %d: %s", e.Code, e.Talk)
	}
	if !tunnel.EndsWithin(world.Patience) {
		t.Error("the tunnel was not cut")
	}
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden || d.Digest(t) != before {
		t.Errorf("afterwards: %d", status)
	}
	if r := d.CloseRecord(t, tunnel.LocalAddr().String()); r.Outcome != "cut" || r.Decision == nil || r.Decision.Class != "default-deny" {
		t.Errorf("its end is recorded as %q, %+v", r.Outcome, r.Decision)
	}
	for _, text := range []string{"grant " + ids[0] + " for 1h, until ", "revoke grant " + ids[0] + ": allow allowed.test:443 to sandbox default, asked by uid 0"} {
		if !d.HasSaid(t, text) {
			t.Errorf("the log does not say %q", text)
		}
	}
}

// TestAGrantEndsByItselfAndADenialCutsAtOnce: with its time, and with egressd. What is shut by
// the end is no question of how fast this test is.
func TestAGrantEndsByItselfAndADenialCutsAtOnce(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [other.allowed.test]\n"))
	before := d.Digest(t)
	if e := d.RunCommand(t, nil, "allow", "allowed.test", "--for", "1s", "--config", d.Config); e.Code != 0 {
		t.Fatalf("exit %d: %s", e.Code, e.Talk)
	}
	ended := func() bool { return notedLike(t, d, "^grant G[A-Z2-7]{6} has ended: allow allowed.test$") }
	if !world.Eventually(world.Patience, ended) || d.Digest(t) != before {
		t.Error("it does not end")
	}
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("afterwards: %d", status)
	}
	tunnel := d.MustOpenTunnel(t, "other.allowed.test:443")
	if e := d.RunCommand(t, nil, "deny", "*.allowed.test:*", "--config", d.Config); e.Code != 0 || !tunnel.EndsWithin(world.Patience) {
		t.Errorf("a tunnel to what is denied stays; exit %d: %s", e.Code, e.Talk)
	}
	if status := d.ConnectStatus(t, "other.allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("what is denied: %d", status)
	}
	d.Stop(t)
	if !notedLike(t, d, `^grant G[A-Z2-7]{6} ends with egressd: deny \*\.allowed\.test:\*$`) {
		t.Error("the end of what was denied is not recorded")
	}
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	if status := d.ConnectStatus(t, "other.allowed.test:443"); status != http.StatusOK || d.Digest(t) != before || len(grants(t, d)) != 0 {
		t.Errorf("after a restart: %d", status)
	}
}

// notedLike reports whether there is an admin record like that.
func notedLike(t *testing.T, d *world.Daemon, expression string) bool {
	t.Helper()
	records, err := d.Log.Since(0)
	world.Must(t, err)
	is := regexp.MustCompile(expression)
	return slices.ContainsFunc(records, func(r record.Record) bool { return r.Kind == record.KindAdmin && is.MatchString(r.Note) })
}

// TestASandboxGrantsItselfNothing: the socket is no place that it has, and its root is
// turned away where somebody has mounted it.
func TestASandboxGrantsItselfNothing(t *testing.T) {
	world.Covers(t, "SP-05")
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [other.allowed.test]\n"))
	socket := filepath.Join(d.Dir, "operator", "admin.sock")
	body := `{"verdict":"allow","patterns":["allowed.test"],"seconds":60}`
	for _, more := range [][]string{
		{"--unix-socket", socket, "-H", "Content-Type: application/json", "-d", body, "http://egressd/v1/grants"},
		{"-x", "http://" + d.Address(), "-H", "Content-Type: application/json", "-d", body, "http://egressd/v1/grants"},
	} {
		if got := d.Curl(t, d.World.Sandbox, nil, more...); strings.Contains(got, `"grants"`) {
			t.Errorf("%q is answered %s", more, got)
		}
	}
	if ids := grants(t, d); len(ids) != 0 {
		t.Errorf("there are grants: %q", ids)
	}
	records, err := d.Log.Since(0)
	world.Must(t, err)
	for _, r := range records {
		if r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "grant ") {
			t.Errorf("recorded: %s", r.Note)
		}
	}
}
