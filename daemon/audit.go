package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/record"
)

// auditing opens the log, and says how it is.
type auditing struct {
	daemon   *Daemon
	sinks    *sink.Set // nil where the log is not open
	anchors  *sink.Anchors
	fresh    *freshLog        // nil once a record is written, and for a log that was there
	accepted string           // damage of the log that the operator has accepted
	messages operatorMessages // that nobody waits for
	clock    chan string      // what the log is to have of the machine's clock
	outage   *outage          // of the log
	beats    heartbeats
	kept     int64 // bytes of the log
	bounded  bool  // kept is the default
}

// logOptions are how the log of this daemon is written.
func (au *auditing) logOptions() (audit.Options, error) {
	file := au.daemon.Config.File.Audit
	kept := file.Retain
	if au.daemon.tailor.Log == nil { // a run has a log of its own
		var err error
		if kept, au.bounded, err = au.daemon.Config.Retained(); err != nil {
			return audit.Options{}, err
		}
	}
	au.kept = kept.Bytes
	o := audit.Options{
		SegmentBytes: file.SegmentBytes,
		Retain: audit.Retain{
			Bytes: kept.Bytes, Age: kept.Age, Segments: kept.Segments,
			OwedBytes: kept.Sinks.Bytes, OwedAge: kept.Sinks.Age,
		},
		Trouble:  au.troubled,
		Changed:  au.outage.changed,
		Recovery: func(i audit.Interruption) []byte { return record.Note(record.KindRecovery, recoveryNote(i)) },
	}
	if file.Durability == "process" {
		o.Durability = audit.Process
	}
	var err error
	if o.Keys, err = au.daemon.Config.KeyDir(); err != nil {
		return o, err
	}
	if au.daemon.tailor.Log != nil {
		au.daemon.tailor.Log(&o)
	}
	return o, nil
}

// sayBound tells the operator how much of the log is kept where the policy does not say.
func (au *auditing) sayBound() {
	if au.bounded {
		fmt.Fprintf(au.daemon.Talk, "egressd: the audit log takes at most %s; then its oldest records are removed (audit.retain)\n", quantity.Bytes(au.kept))
	}
}

// createLog makes the log. If the daemon does not start, Close removes it again.
func (au *auditing) createLog(dir string, o audit.Options) (*audit.Log, error) {
	for _, parent := range []string{filepath.Dir(dir), filepath.Dir(o.Keys)} {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return nil, err
		}
	}
	l, err := audit.Create(dir, o)
	if err != nil || o.Ephemeral {
		return l, err
	}
	au.fresh = &freshLog{dir, o.Keys}
	return l, nil
}

// A freshLog is a log without a record.
type freshLog struct{ dir, keys string }

// announce says once what has to be kept to verify the log. f may be nil.
func (f *freshLog) announce(talk io.Writer, log *audit.Log) {
	if f == nil {
		return
	}
	_, root := log.Origin()
	fmt.Fprintf(talk, "egressd: new log in %s; store its public key on another machine, to verify the log with it:\n%s\n", printable.Text(f.dir), root)
}

// isDamage reports whether a log is there and does not hold together.
func isDamage(err error) bool {
	var damage *audit.DamageError
	var refusal *audit.Refusal
	return errors.As(err, &damage) || errors.As(err, &refusal)
}

// acceptAndBegin sets a log aside that does not hold together and makes a new one,
// which begins with a record that says so.
func (au *auditing) acceptAndBegin(dir string, o audit.Options, why error) (*audit.Log, error) {
	where, err := audit.SetAside(dir, o.Keys)
	if err != nil {
		return nil, err
	}
	au.accepted = fmt.Sprintf("accepted damage; the log before is in %s: %v", filepath.Base(where), why)
	fmt.Fprintf(au.daemon.Talk, "egressd: warning: %v\n", why)
	fmt.Fprintf(au.daemon.Talk, "egressd: warning: that log is now in %s, and a new one begins\n", printable.Text(where))
	return au.createLog(dir, o)
}

// explainLog gives an error of opening the log the line that says what to do.
func (au *auditing) explainLog(dir string, err error) error {
	var refusal *audit.Refusal
	var damage *audit.DamageError
	switch {
	case errors.Is(err, audit.ErrLocked):
		return au.explainWriter(dir, err)
	case errors.As(err, &refusal):
		return hint.Failed(err, refusal.Fix)
	case errors.As(err, &damage):
		return hint.Failed(err, "egressd log verify "+shell.Word(dir)+"; then restore it, or egressd serve --accept-damage, which sets it aside and begins a new one")
	case errors.Is(err, os.ErrPermission):
		return hint.Failed(fmt.Errorf("audit log: %w", err), "set audit.dir and audit.key_dir in "+au.daemon.Path+" to folders that egressd may write")
	default:
		return hint.Failed(fmt.Errorf("audit log: %w", err), "egressd log --dir "+dir+", and set audit.dir in "+au.daemon.Path)
	}
}

// explainWriter says who writes the log, and how two can write at the same time.
func (au *auditing) explainWriter(dir string, err error) error {
	stop := "stop the other egressd"
	if pid := audit.Writer(dir); pid > 0 {
		err = fmt.Errorf("%w: process %d", err, pid)
		stop = fmt.Sprintf("kill %d, to stop it", pid)
	} else if pid, host := audit.WriterElsewhere(dir); pid > 0 {
		err = fmt.Errorf("%w: process %d of the container or host %s", err, pid, printable.Text(host))
		stop = "docker stop " + shell.Word(host) + ", if that is a container"
	}
	return hint.Failed(err, stop+", or write \"audit: {dir: ANOTHER-FOLDER}\" into "+au.daemon.Path+" to run both")
}

// attest has the policy that is in force from now on stand in a checkpoint. Where
// that fails the log admits nothing more, and says why.
func (au *auditing) attest() {
	if au.daemon.tailor.Log != nil { // a run, which does not change its policy, and waits for nothing
		return
	}
	au.daemon.Serving.Go(func() {
		if _, err := au.daemon.Log.Checkpoint(); err != nil && !errors.Is(err, os.ErrClosed) {
			au.daemon.Complain(err)
		}
	})
}

// clockNotes is how many notes about the machine's clock wait to be recorded: who tells of
// them holds the log.
const clockNotes = 8

// troubled is told what goes wrong beside the writing of records. It does not wait: the log holds its locks meanwhile.
func (au *auditing) troubled(err error) {
	au.messages.write(au.daemon.Talk, complaint(err))
	var set *audit.ClockError
	if !errors.As(err, &set) {
		return
	}
	select {
	case au.clock <- set.Error():
	default: // it was said
	}
}

// recordClock records what is said of the clock until ctx is done or the daemon stops.
func (au *auditing) recordClock(ctx context.Context) {
	au.daemon.Serving.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-au.daemon.admin.ended:
				return
			case note := <-au.clock:
				if err := au.daemon.Gate.Records.Note(record.KindRecovery, note); err != nil {
					au.daemon.Complain(err)
				}
			}
		}
	})
}
