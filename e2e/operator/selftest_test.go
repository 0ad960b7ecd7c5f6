package operator

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestSelftestAndDoctor run as a person has them, and where there is no sandbox.
func TestSelftestAndDoctor(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	none := []string{"unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, "sh"}
	for _, row := range []struct {
		says   string
		before []string
		args   []string
		code   int
		want   string
	}{
		{"a user", world.Users["user"], []string{"doctor", "--escapes"}, 0, "✓ a datagram over IPv6\nself-test 15/15\n"},
		{"root", world.Users["root"], []string{"doctor", "--escapes", "--json"}, 0, `{"name":"interfaces of the machine","ok":true}`},
		{"without tproxy", world.Users["user"], []string{"doctor", "--escapes", "--redirect"}, 0, "self-test 13/13\n"},
		{"without namespaces", none, []string{"doctor", "--escapes"}, 2, "egressd: hint: allow unprivileged user namespaces"},
		{"a doctor", world.Users["user"], []string{"doctor", "--config", d.Config}, 1, "✓ sandbox: can be made; self-test 15 of 15\n✓ capture: tproxy\n"},
		{"a doctor without namespaces", none, []string{"doctor", "--config", d.Config}, 1, "fix: sysctl user.max_user_namespaces=15000, as root"},
	} {
		words := slices.Concat(row.before, []string{world.Egressd.Path()}, row.args)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, d.Dir
		d.World.Gateway.Run(cmd)
		if code := cmd.ProcessState.ExitCode(); code != row.code || !strings.Contains(out.String(), row.want) {
			t.Errorf("%s: exit %d, %q; want %d, %q", row.says, code, out.String(), row.code, row.want)
		}
	}
}
