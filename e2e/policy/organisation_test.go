package policy

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestTheOrganisationsFileHolds puts an organisation.yaml at its real path, in a mount
// namespace whose /etc holds nothing else, and has it hold whatever else is given.
func TestTheOrganisationsFileHolds(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\ndefault: allow\nallow: [allowed.test, other.allowed.test]\n")
	above := t.TempDir()
	organisation := filepath.Join(above, "organisation.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(organisation+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(organisation+".new", organisation); err != nil {
			t.Fatal(err)
		}
	}
	put("version: 1\nceiling: [allowed.test]\n")
	d.Run(t, underEtc(above, world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })

	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	for _, to := range []string{"other.allowed.test:443", "example.test:443"} {
		if status := d.ConnectStatus(t, to); status != http.StatusForbidden {
			t.Errorf("%s is answered %d", to, status)
		}
	}
	before := d.Digest(t)
	put("version: 1\nceiling: [other.allowed.test]\n")
	if !tunnel.EndsWithin(world.Patience) {
		t.Error("the tunnel was not cut when the ceiling came down")
	}
	d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if r := d.CloseRecord(t, tunnel.LocalAddr().String()); r.Decision == nil || r.Decision.Rule != "ceiling" || r.Decision.Layer != "organisation" || r.Decision.Class != "rule-deny" {
		t.Errorf("the close record says %+v", r.Decision)
	}
	if status := d.ConnectStatus(t, "other.allowed.test:443"); status != http.StatusOK {
		t.Errorf("the other host is answered %d", status)
	}

	for _, environment := range []string{"XDG_CONFIG_HOME=" + t.TempDir(), "EGRESSD_ORGANISATION=", "HOME=/nowhere"} {
		check := underEtc(above, world.Egressd.Path(), "check", "--config", d.Config, "allowed.test")
		check.Env = append(os.Environ(), environment)
		out, err := check.Output()
		if check.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "ceiling (organisation)") {
			t.Errorf("with %s, check says %v: %s", environment, err, out)
		}
	}
	put("version: 1\nceiling: [")
	check := underEtc(above, world.Egressd.Path(), "check", "--config", d.Config, "other.allowed.test")
	if out, err := check.CombinedOutput(); check.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "/etc/egressd/organisation.yaml:2:") {
		t.Errorf("with half a file, check says %v: %s", err, out)
	}
	if status := d.ConnectStatus(t, "other.allowed.test:443"); status != http.StatusOK {
		t.Errorf("with half a file, the policy in force answers %d", status)
	}
}

// underEtc is a command that sees the folder as /etc/egressd, and of the rest of /etc only what egressd itself needs.
func underEtc(folder string, command ...string) *exec.Cmd {
	script := `mount --bind /etc /mnt && mount -t tmpfs none /etc && mkdir /etc/egressd /etc/ssl && mount --bind /mnt/ssl /etc/ssl && umount -l /mnt &&
		echo nameserver 127.0.0.1 >/etc/resolv.conf && mount --bind "$0" /etc/egressd && exec "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, folder}, command...)...)
}

// TestASavedLineKeepsTheGroupOfTheFile: or says why it cannot, and changes nothing.
func TestASavedLineKeepsTheGroupOfTheFile(t *testing.T) {
	t.Parallel()
	const user, foreign, text = 4321, 1234, "version: 1\nallow: [a.test]\n"
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(world.Egressd.Path())
	if err != nil {
		t.Fatal(err)
	}
	egressd := filepath.Join(dir, "egressd") // where that user may run it
	if err := os.WriteFile(egressd, program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		group uint32 // of who types the command
		code  int
	}{{user, 1}, {foreign, 0}} {
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o640), os.Chown(path, user, foreign), os.Chown(dir, user, user)); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(egressd, "allow", "z.test", "--save", "--config", path)
		c.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_RUNTIME_DIR=")
		c.Dir = dir
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: row.group, NoSetGroups: true}}
		out, ran := c.CombinedOutput()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ProcessState.ExitCode(); got != row.code || info.Sys().(*syscall.Stat_t).Gid != foreign || (string(now) == text) != (row.code == 1) {
			t.Errorf("by group %d: %v, group %d: %s", row.group, ran, info.Sys().(*syscall.Stat_t).Gid, out)
		}
		if row.code == 1 && !strings.Contains(string(out), "group 1234") {
			t.Errorf("it does not name the group: %s", out)
		}
	}
}
