package daemon

import (
	"context"
	"errors"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/record"
)

// clockNotes is how many notes about the machine's clock wait to be recorded: who tells of
// them holds the log.
const clockNotes = 8

// troubled is told what goes wrong beside the writing of records. It does not wait: the log holds its locks meanwhile.
func (d *Daemon) troubled(err error) {
	d.messages.write(d.Talk, complaint(err))
	var set *audit.ClockError
	if !errors.As(err, &set) {
		return
	}
	select {
	case d.clock <- set.Error():
	default: // it was said
	}
}

// recordClock records what is said of the clock until ctx is done or the daemon stops.
func (d *Daemon) recordClock(ctx context.Context) {
	d.Serving.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.operator.ended:
				return
			case note := <-d.clock:
				if err := d.Gate.Records.Note(record.KindRecovery, note); err != nil {
					d.Complain(err)
				}
			}
		}
	})
}
