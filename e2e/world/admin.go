package world

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// WithAdmin is a policy with an operator's listener.
func WithAdmin(at, more string) string {
	return fmt.Sprintf("version: 1\nlisten: {open_to_network: true, proxy: [\"%s:%d\", \"[%s]:%d\"], admin: %q}\n%s", lab.GatewayIPv4, ProxyPort, lab.GatewayIPv6, ProxyPort, at, more)
}

const AdminSocket = "unix:${XDG_RUNTIME_DIR}/operator/admin.sock"

// Curl asks at a socket, in some network and as some user, and returns what came of it.
func (d *Daemon) Curl(t *testing.T, in *lab.Net, before []string, arguments ...string) string {
	t.Helper()
	words := slices.Concat(before, []string{"curl", "-sS", "-m", "20"}, arguments)
	cmd := exec.Command(words[0], words[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = in.Run(cmd) // what it says is looked at
	return out.String()
}

// HasSaid reports whether a record of what operators asked for begins with a text.
func (d *Daemon) HasSaid(t *testing.T, text string) bool {
	t.Helper()
	all, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(r record.Record) bool { return r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, text) })
}

// Must fails the test if there is an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
