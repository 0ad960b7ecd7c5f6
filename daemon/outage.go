package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
)

const (
	outageAgain = time.Minute     // between two messages while an outage lasts
	outageOver  = 2 * time.Second // a log that fails again before was never well
)

// An outage tells the operator that the audit log admits no records: at once, once a minute
// while it lasts, and when it is over.
type outage struct {
	changes chan error // nil: the log goes on
	life    context.Context
	die     context.CancelFunc
	running sync.WaitGroup
}

func newOutage() *outage {
	o := &outage{changes: make(chan error, 16)}
	o.life, o.die = context.WithCancel(context.Background())
	return o
}

// changed is called by the log, and does not wait. A change that is dropped here is
// noticed with the next message.
func (o *outage) changed(err error) {
	select {
	case o.changes <- err:
	default:
	}
}

// follow tells of the outages of the log in dir until end is called.
func (o *outage) follow(talk io.Writer, dir string, log interface{ Reopen() error }) {
	o.running.Go(func() {
		var said time.Time // the last message of this outage; zero while there is none
		next := time.NewTimer(time.Hour)
		next.Stop()
		defer next.Stop()
		say := func(err error) {
			sayOutage(talk, dir, err)
			said = time.Now()
			next.Reset(outageAgain)
		}
		for {
			select {
			case <-o.life.Done():
				return
			case err := <-o.changes:
				switch {
				case err == nil && !said.IsZero():
					next.Reset(outageOver)
				case err != nil && said.IsZero():
					say(err)
				case err != nil:
					next.Reset(time.Until(said.Add(outageAgain)))
				}
			case <-next.C:
				if err := log.Reopen(); err != nil { // without it, only a request would have the log tried again
					say(err)
					continue
				}
				fmt.Fprintln(talk, "egressd: the audit log can be written again, and requests pass")
				said = time.Time{}
			}
		}
	})
}

func (o *outage) end() {
	o.die()
	o.running.Wait()
}

func sayOutage(talk io.Writer, dir string, err error) {
	hint.Write(talk, fmt.Errorf("nothing new passes, and requests get 503 audit-unavailable: %w", err), remedy(dir, err)+"; egressd tries again by itself")
}

// remedy is what to do about the error of a log in dir.
func remedy(dir string, err error) string {
	dir = shell.Word(dir)
	var damage *audit.DamageError
	switch {
	case errors.As(err, &damage):
		return "egressd log verify " + dir + ", then restore the file from a copy"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space on the disk of " + dir + ", and bound the log with audit.retain"
	case errors.Is(err, syscall.EROFS):
		return "mount the file system of " + dir + " writable again"
	case errors.Is(err, fs.ErrPermission):
		return "let the user of egressd write to " + dir
	case errors.Is(err, fs.ErrNotExist):
		return "put " + dir + " back where it was"
	case errors.Is(err, syscall.EFBIG):
		return "raise the limit on the size of files (LimitFSIZE= of systemd, ulimit -f)"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit on open files (LimitNOFILE= of systemd, ulimit -n), or lower limits.connections"
	case errors.Is(err, syscall.EIO):
		return "look for errors of the disk of " + dir + " in dmesg"
	}
	return "make sure that egressd can write to " + dir
}

func recoveryNote(i audit.Interruption) string {
	note := fmt.Sprintf("the audit log admitted no records for %s, and refused %s", time.Since(i.Began).Round(time.Millisecond), quantity.Plural(int(i.Refused), "record"))
	if i.From < i.To {
		note += fmt.Sprintf("; records %d to %d were written and not synced", i.From, i.To-1)
	}
	for _, torn := range i.Torn {
		note += fmt.Sprintf("; %+v", torn)
	}
	return clipped(note + ": " + i.Cause.Error())
}
