package world

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/egressd/egressd/record"
)

// PutFile writes a file of the policy, whole, as editors do.
func (d *Daemon) PutFile(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(d.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// StartRego starts egressd with a policy and one module in Rego.
func StartRego(t *testing.T, policy, module string) *Daemon {
	t.Helper()
	d := NewDaemon(t, policy)
	d.PutFile(t, "policy/egress.rego", module)
	d.Run(t, exec.Command(Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return d
}

// Edit writes a new policy and has egressd read it.
func (d *Daemon) Edit(t *testing.T, policy string) {
	t.Helper()
	d.WriteConfig(t, policy)
	if err := d.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// ExpectPolicy waits for a record that puts a policy in force.
func (d *Daemon) ExpectPolicy(t *testing.T, ok func(record.Record) bool) {
	t.Helper()
	found := func() bool {
		records, _ := d.Log.Since(0)
		for _, r := range records {
			if r.Kind == record.KindPolicy && ok(r) {
				return true
			}
		}
		return false
	}
	if !Eventually(Settling, found) {
		t.Errorf("no record says that the policy is in force; egressd said:\n%s", d.Output.String())
	}
}

// CloseRecord waits for the record that ends a client's flow.
func (d *Daemon) CloseRecord(t *testing.T, src string) (last record.Record) {
	t.Helper()
	closed := func() bool {
		records, _ := d.Log.Of(src, 0)
		if len(records) > 0 {
			last = records[len(records)-1]
		}
		return last.Kind == record.KindClose
	}
	if !Eventually(Settling, closed) {
		t.Errorf("no record ends the flow of %s: %+v", src, last)
	}
	return last
}
