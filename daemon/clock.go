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
			case <-au.daemon.operator.ended:
				return
			case note := <-au.clock:
				if err := au.daemon.Gate.Records.Note(record.KindRecovery, note); err != nil {
					au.daemon.Complain(err)
				}
			}
		}
	})
}
