package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
)

// logOptions are how the log of this daemon is written.
func (d *Daemon) logOptions() (audit.Options, error) {
	file := d.Config.File.Audit
	kept := file.Retain
	if d.tailor.Log == nil { // a run has a log of its own
		var err error
		if kept, d.bounded, err = d.Config.Retained(); err != nil {
			return audit.Options{}, err
		}
	}
	d.kept = kept.Bytes
	o := audit.Options{
		SegmentBytes: file.SegmentBytes,
		Retain: audit.Retain{
			Bytes: kept.Bytes, Age: kept.Age, Segments: kept.Segments,
			OwedBytes: kept.Sinks.Bytes, OwedAge: kept.Sinks.Age,
		},
		Trouble:  d.troubled,
		Changed:  d.outage.changed,
		Recovery: func(i audit.Interruption) []byte { return record.Note(record.KindRecovery, recoveryNote(i)) },
	}
	if file.Durability == "process" {
		o.Durability = audit.Process
	}
	var err error
	if o.Keys, err = d.Config.KeyDir(); err != nil {
		return o, err
	}
	if d.tailor.Log != nil {
		d.tailor.Log(&o)
	}
	return o, nil
}

// sayBound tells the operator how much of the log is kept where the policy does not say.
func (d *Daemon) sayBound() {
	if d.bounded {
		fmt.Fprintf(d.Talk, "egressd: the audit log takes at most %s; then its oldest records are removed (audit.retain)\n", quantity.Bytes(d.kept))
	}
}

// createLog makes the log, and says once what has to be kept to verify it.
func (d *Daemon) createLog(dir string, o audit.Options) (*audit.Log, error) {
	for _, parent := range []string{filepath.Dir(dir), filepath.Dir(o.Keys)} {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return nil, err
		}
	}
	l, err := audit.Create(dir, o)
	if err != nil || o.Ephemeral {
		return l, err
	}
	_, root := l.Origin()
	fmt.Fprintf(d.Talk, "egressd: new log in %s; store its public key on another machine, to verify the log with it:\n%s\n", printable.Text(dir), root)
	return l, nil
}

// isDamage reports whether a log is there and does not hold together.
func isDamage(err error) bool {
	var damage *audit.DamageError
	var refusal *audit.Refusal
	return errors.As(err, &damage) || errors.As(err, &refusal)
}

// acceptAndBegin sets a log aside that does not hold together and makes a new one,
// which begins with a record that says so.
func (d *Daemon) acceptAndBegin(dir string, o audit.Options, why error) (*audit.Log, error) {
	where, err := audit.SetAside(dir, o.Keys)
	if err != nil {
		return nil, err
	}
	d.accepted = fmt.Sprintf("accepted damage; the log before is in %s: %v", filepath.Base(where), why)
	fmt.Fprintf(d.Talk, "egressd: warning: %v\n", why)
	fmt.Fprintf(d.Talk, "egressd: warning: that log is now in %s, and a new one begins\n", printable.Text(where))
	return d.createLog(dir, o)
}

// explainLog gives an error of opening the log the line that says what to do.
func (d *Daemon) explainLog(dir string, err error) error {
	var refusal *audit.Refusal
	var damage *audit.DamageError
	switch {
	case errors.Is(err, audit.ErrLocked):
		return d.explainWriter(dir, err)
	case errors.As(err, &refusal):
		return hint.Failed(err, refusal.Fix)
	case errors.As(err, &damage):
		return hint.Failed(err, "egressd log verify "+shell.Word(dir)+"; then restore it, or egressd serve --accept-damage, which sets it aside and begins a new one")
	case errors.Is(err, os.ErrPermission):
		return hint.Failed(fmt.Errorf("audit log: %w", err), "set audit.dir and audit.key_dir in "+d.Path+" to folders that egressd may write")
	default:
		return hint.Failed(fmt.Errorf("audit log: %w", err), "egressd log --dir "+dir+", and set audit.dir in "+d.Path)
	}
}

// explainWriter says who writes the log, and how two can write at the same time.
func (d *Daemon) explainWriter(dir string, err error) error {
	stop := "stop the other egressd"
	if pid := audit.Writer(dir); pid > 0 {
		err = fmt.Errorf("%w: process %d", err, pid)
		stop = fmt.Sprintf("kill %d, to stop it", pid)
	}
	return hint.Failed(err, stop+", or write \"audit: {dir: ANOTHER-FOLDER}\" into "+d.Path+" to run both")
}

// attest has the policy that is in force from now on stand in a checkpoint. Where
// that fails the log admits nothing more, and says why.
func (d *Daemon) attest() {
	if d.tailor.Log != nil { // a run, which does not change its policy, and waits for nothing
		return
	}
	d.Serving.Go(func() {
		if _, err := d.Log.Checkpoint(); err != nil && !errors.Is(err, os.ErrClosed) {
			d.Complain(err)
		}
	})
}
