package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
)

// alarms tell the operator of the canaries that were found: a few times a second at most, since a program can go on
// and on. The log has all of them. A goroutine writes them: a terminal that was stopped, or a pipe that nobody
// reads, must not hold up a connection.
type alarms struct {
	talk io.Writer
	pace fair.Bucket // of those that are written one by one

	mu      sync.Mutex // guards what follows; not held while something is written
	waiting []egress.Alarm
	more    int // alarms that are only counted
	writing bool

	running sync.WaitGroup
	life    context.Context
	die     context.CancelFunc
}

// alarmsMost is how many alarms wait to be written, at most.
const alarmsMost = 16

func newAlarms(talk io.Writer) *alarms {
	a := &alarms{talk: talk}
	a.pace.Rate, a.pace.Most = 1, 10
	a.life, a.die = context.WithCancel(context.Background())
	return a
}

// tell has an alarm written, or counted. It does not wait.
func (a *alarms) tell(alarm egress.Alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ok, _ := a.pace.Take(1, time.Now()); ok && len(a.waiting) < alarmsMost {
		a.waiting = append(a.waiting, alarm)
	} else {
		a.more++
	}
	if !a.writing {
		a.writing = true
		a.running.Go(a.write)
	}
}

// write writes what there is, and then again each second while there is something.
func (a *alarms) write() {
	for {
		all, more := a.take()
		if len(all) == 0 && more == 0 {
			return
		}
		for _, alarm := range all {
			a.say(alarm)
		}
		if more > 0 {
			fmt.Fprintf(a.talk, "egressd: ALARM: %s more\n", quantity.Plural(more, "alarm"))
			hint.Sayf(a.talk, "egressd log kind:signal")
		}
		select {
		case <-time.After(time.Second):
		case <-a.life.Done():
		}
	}
}

// take takes what there is. If there is nothing, nobody writes any more.
func (a *alarms) take() (all []egress.Alarm, more int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, more = a.waiting, a.more
	a.waiting, a.more = nil, 0
	a.writing = len(all)+more > 0
	return all, more
}

func (a *alarms) say(alarm egress.Alarm) {
	who := alarm.Sandbox
	if alarm.Program != "" {
		who += " (" + filepath.Base(alarm.Program) + ")"
	}
	fmt.Fprintf(a.talk, "egressd: ALARM: %s tried to send the canary %s to %s, in its %s (%s); it was stopped\n",
		printable.Text(cmp.Or(who, "nobody known")), alarm.Canary, printable.Text(cmp.Or(alarm.Destination, "an unknown place")), printable.Text(alarm.Where), alarm.Encoding)
	hint.Sayf(a.talk, "egressd why %s", alarm.ID)
}

// end writes what there is left, and waits for that. Call it when nobody calls tell any more.
func (a *alarms) end() {
	a.die()
	a.running.Wait()
}
