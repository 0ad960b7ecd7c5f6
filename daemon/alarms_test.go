package daemon

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/egress"
)

// A stopped terminal takes nothing until it goes on.
type stoppedTerminal struct {
	io.Writer
	goOn chan struct{}
}

func (s stoppedTerminal) Write(p []byte) (int, error) {
	<-s.goOn
	return s.Writer.Write(p)
}

// shown counts the alarms that are on a terminal, one by one and in sums.
func shown(t *testing.T, text string) (one, more int) {
	t.Helper()
	for line := range strings.Lines(text) {
		var n int
		switch {
		case strings.Contains(line, "tried to send the canary"):
			one++
		case strings.HasPrefix(line, "egressd: ALARM: "):
			if _, err := fmt.Sscanf(line, "egressd: ALARM: %d ", &n); err != nil {
				t.Errorf("%v in %q", err, line)
			}
			more += n
		}
	}
	return one, more
}

// TestAStoppedTerminalHoldsUpNobody who has an alarm, and gets to know later of all that there were.
func TestAStoppedTerminalHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := new(heard)
		terminal := stoppedTerminal{said, make(chan struct{})}
		a := newAlarms(terminal)
		begun := time.Now()
		for range 10 {
			for range 100 {
				a.tell(egress.Alarm{Sandbox: "one", Canary: "key"})
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("the alarms took %v", took)
		}
		close(terminal.goOn)
		time.Sleep(10 * time.Second)
		if one, more := shown(t, said.String()); one == 0 || one > 20 || one+more != 1000 {
			t.Errorf("%d alarms one by one, %d in sums", one, more)
		}
		a.tell(egress.Alarm{Sandbox: "one", Canary: "key"})
		a.end()
		if one, more := shown(t, said.String()); one+more != 1001 {
			t.Errorf("after the end: %d alarms one by one, %d in sums", one, more)
		}
	})
}

// TestAFloodOfAlarmsIsSummed each second.
func TestAFloodOfAlarmsIsSummed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := new(heard)
		a := newAlarms(said)
		for range 1000 {
			a.tell(egress.Alarm{Sandbox: "one", Canary: "key"})
			time.Sleep(10 * time.Millisecond)
		}
		a.end()
		if one, more := shown(t, said.String()); one > 20 || one+more != 1000 || strings.Count(said.String(), " more\n") > 11 {
			t.Errorf("%d alarms one by one, %d in sums", one, more)
		}
	})
}
