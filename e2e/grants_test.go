package e2e

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// grants are what egressd grants lists.
func (d *daemon) grants(t *testing.T) (ids []string) {
	t.Helper()
	e := d.tell(t, nil, "grants", "--json", "--config", d.config)
	if e.code != 0 {
		t.Fatalf("exit %d: %s", e.code, e.talk)
	}
	for line := range strings.Lines(e.out) {
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
	covers(t, "DN-32")
	d := start(t, withAdmin(socketOfOperator, "deny: [\"*.allowed.test\"]\n"))
	before := d.digest(t)
	if status := d.status(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Fatalf("before: %d", status)
	}
	shown := d.tell(t, nil, "log", "--config", d.config).out
	at := strings.Index(shown, "egressd allow allowed.test --from ")
	if at < 0 {
		t.Fatalf("no fix in\n%s", shown)
	}
	fix := strings.Fields(shown[at : strings.Index(shown[at:], "\n")+at])
	said := d.tell(t, nil, fix[1:]...)
	if said.code != 0 || !strings.Contains(said.talk, "allowed.test is allowed to sandbox default for 1h, until ") {
		t.Fatalf("%q: exit %d: %s", fix, said.code, said.talk)
	}
	tunnel := d.mustOpen(t, "allowed.test:443")
	if d.digest(t) == before {
		t.Error("the digest does not name what is in force")
	}
	if e := d.tell(t, nil, "allow", "x.other.allowed.test", "*.allowed.test", "--config", d.config); e.code != 1 || !strings.Contains(e.talk, "any-host-below.allowed.test:443 would stay refused") {
		t.Errorf("against a deny: exit %d: %s", e.code, e.talk)
	}
	ids := d.grants(t)
	if len(ids) != 1 {
		t.Fatalf("granted %q", ids)
	}
	if e := d.tell(t, nil, "grants", "revoke", ids[0], "--config", d.config); e.code != 0 {
		t.Errorf("revoke: exit %d: %s", e.code, e.talk)
	}
	if !tunnel.endsWithin(patience) {
		t.Error("the tunnel was not cut")
	}
	if status := d.status(t, "allowed.test:443"); status != http.StatusForbidden || d.digest(t) != before {
		t.Errorf("afterwards: %d", status)
	}
	if r := d.closeRecord(t, tunnel.LocalAddr().String()); r.Outcome != "cut" || r.Decision == nil || r.Decision.Class != "default-deny" {
		t.Errorf("its end is recorded as %q, %+v", r.Outcome, r.Decision)
	}
	for _, text := range []string{"grant " + ids[0] + " for 1h, until ", "revoke grant " + ids[0] + ": allow allowed.test to sandbox default, asked by uid 0"} {
		if !d.noted(t, text) {
			t.Errorf("the log does not say %q", text)
		}
	}
}

// TestAGrantEndsByItselfAndADenialCutsAtOnce: with its time, and with egressd. What is shut by
// the end is no question of how fast this test is.
func TestAGrantEndsByItselfAndADenialCutsAtOnce(t *testing.T) {
	d := start(t, withAdmin(socketOfOperator, "allow: [other.allowed.test]\n"))
	before := d.digest(t)
	if e := d.tell(t, nil, "allow", "allowed.test", "--for", "1s", "--config", d.config); e.code != 0 {
		t.Fatalf("exit %d: %s", e.code, e.talk)
	}
	ended := func() bool { return d.notedLike(t, "^grant G[A-Z2-7]{6} has ended: allow allowed.test$") }
	if !eventually(patience, ended) || d.digest(t) != before {
		t.Error("it does not end")
	}
	if status := d.status(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("afterwards: %d", status)
	}
	tunnel := d.mustOpen(t, "other.allowed.test:443")
	if e := d.tell(t, nil, "deny", "*.allowed.test:*", "--config", d.config); e.code != 0 || !tunnel.endsWithin(patience) {
		t.Errorf("a tunnel to what is denied stays; exit %d: %s", e.code, e.talk)
	}
	if status := d.status(t, "other.allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("what is denied: %d", status)
	}
	d.stop(t)
	if !d.notedLike(t, `^grant G[A-Z2-7]{6} ends with egressd: deny \*\.allowed\.test:\*$`) {
		t.Error("the end of what was denied is not recorded")
	}
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	if status := d.status(t, "other.allowed.test:443"); status != http.StatusOK || d.digest(t) != before || len(d.grants(t)) != 0 {
		t.Errorf("after a restart: %d", status)
	}
}

// notedLike reports whether there is an admin record like that.
func (d *daemon) notedLike(t *testing.T, expression string) bool {
	t.Helper()
	records, err := d.log.since(0)
	must(t, err)
	is := regexp.MustCompile(expression)
	return slices.ContainsFunc(records, func(r record.Record) bool { return r.Kind == record.KindAdmin && is.MatchString(r.Note) })
}

// TestASandboxGrantsItselfNothing: the socket is no place that it has, and its root is
// turned away where somebody has mounted it.
func TestASandboxGrantsItselfNothing(t *testing.T) {
	covers(t, "SP-05")
	d := start(t, withAdmin(socketOfOperator, "allow: [other.allowed.test]\n"))
	socket := filepath.Join(d.dir, "operator", "admin.sock")
	body := `{"verdict":"allow","patterns":["allowed.test"],"seconds":60}`
	for _, more := range [][]string{
		{"--unix-socket", socket, "-H", "Content-Type: application/json", "-d", body, "http://egressd/v1/grants"},
		{"-x", "http://" + d.address(), "-H", "Content-Type: application/json", "-d", body, "http://egressd/v1/grants"},
	} {
		if got := d.curl(t, d.world.Sandbox, nil, more...); strings.Contains(got, `"grants"`) {
			t.Errorf("%q is answered %s", more, got)
		}
	}
	if ids := d.grants(t); len(ids) != 0 {
		t.Errorf("there are grants: %q", ids)
	}
	records, err := d.log.since(0)
	must(t, err)
	for _, r := range records {
		if r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "grant ") {
			t.Errorf("recorded: %s", r.Note)
		}
	}
}
