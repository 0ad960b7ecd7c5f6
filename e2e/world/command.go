package world

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// Attach runs egressd attach with a network that has no way out.
func (d *Daemon) Attach(t *testing.T, socket string, argv ...string) *Result {
	t.Helper()
	return d.RunCommand(t, nil, append([]string{"attach", "--socket", filepath.Join(d.Dir, socket, "enter.sock")}, argv...)...)
}

// Result is what a script in a sandbox came to.
type Result struct {
	Out, Talk string
	Code      int
	Records   []record.Record
}

// Command is a program of egressd in the gateway, with the words before it.
func (d *Daemon) Command(ctx context.Context, before []string, argv ...string) *exec.Cmd {
	words := slices.Concat(before, []string{Egressd.Path()}, argv)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = d.Dir
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "XDG_RUNTIME_DIR="+d.Dir)
	return cmd
}

// RunCommand runs a command in the gateway to its end.
func (d *Daemon) RunCommand(t *testing.T, before []string, argv ...string) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // busy machines, too
	defer cancel()
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	cmd := d.Command(ctx, before, argv...)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	var exit *exec.ExitError
	if err := d.World.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, talk.String())
	}
	e := &Result{Out: out.String(), Talk: talk.String(), Code: cmd.ProcessState.ExitCode()}
	if e.Records, err = d.Log.Since(mark); err != nil {
		t.Fatal(err)
	}
	return e
}

// CountDenials counts the connections and requests to a host that were denied to a
// sandbox.
func CountDenials(records []record.Record, sandbox, host string) (n int) {
	for _, r := range records {
		if r.Kind != record.KindDNS && r.Sandbox == sandbox && r.Dst != nil && r.Dst.Host == host && r.Decision != nil && r.Decision.Action == "deny" {
			n++
		}
	}
	return n
}

// RunPolicy is that of most tests of egressd run.
const RunPolicy = `version: 1
allow:
  - "*.allowed.test"
  - "ssh.allowed.test:22"
  - "db.allowed.test:5432"
  - 93.184.216.34:443
  - 93.184.216.34:7000
`

// Users are who starts egressd run: whoever runs the tests, as root over the lab,
// and an ordinary user without any privilege.
var Users = map[string][]string{
	"root": nil,
	"user": {"unshare", "--user", "--map-user=1000", "--map-group=1000"},
}
