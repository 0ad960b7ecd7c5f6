package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// agesName is the file that says how old sealed segments are, where retention asks for that.
// It is neither signed nor needed to verify a log.
const agesName = "ages"

const (
	agesMost   = 16 << 20         // bytes of the file
	jumpLeast  = time.Minute      // that is worth a word; clocks are set by less all the time
	unseenMost = 24 * time.Hour   // of the time before a boot that nothing but the clock tells of
	agesEvery  = time.Hour        // how often the file is written at least while there are records
	agesFirst  = "egressd ages 1" // line of the file
)

// A reading is what the clocks of a machine say.
type reading struct {
	wall time.Time     // by the clock that can be set
	up   time.Duration // since the boot, whether the machine was awake or not
	boot string        // which boot that was
}

// A ClockError says that the clock of the machine was set, or may have been: segments do not
// get older by that.
type ClockError struct {
	By      time.Duration // forward
	Counted time.Duration // of By, where the machine may have been off as well
	Off     bool          // it was started anew meanwhile
}

func (e *ClockError) Error() string {
	switch by := e.By.Round(time.Second); {
	case e.By < 0:
		return fmt.Sprintf("the clock of the machine was set back by %v; audit.retain counts the time that has really passed", -by)
	case e.Off:
		return fmt.Sprintf("the machine was off for %v, or its clock was set forward; of that, audit.retain counts %v", by, e.Counted)
	default:
		return fmt.Sprintf("the clock of the machine was set forward by %v; audit.retain counts the time that has really passed", by)
	}
}

// ages tells how old the sealed segments of a log are. While the machine runs, only elapsed time counts, never a clock
// that somebody can set.
type ages struct {
	last   reading
	passed time.Duration         // up to last, since the file was begun
	sealed map[int]time.Duration // passed when a segment was sealed; less than 0 for those of before
	known  bool                  // last was read
}

// of returns how old a segment is.
func (a *ages) of(number int) time.Duration { return a.passed - a.sealed[number] }

// advance takes a new reading. An error is a [*ClockError].
func (a *ages) advance(now reading) error {
	before := a.last
	known := a.known
	a.last, a.known = now, true
	if !known {
		return nil
	}
	gone := now.wall.Sub(before.wall)
	if now.boot == before.boot && now.up >= before.up {
		passed := now.up - before.up
		a.passed += passed
		if by := gone - passed; by.Abs() >= jumpLeast {
			return &ClockError{By: by}
		}
		return nil
	}
	unseen := gone - now.up
	counted := min(max(unseen, 0), unseenMost)
	a.passed += now.up + counted
	if unseen > counted || unseen <= -jumpLeast {
		return &ClockError{By: unseen, Counted: counted, Off: true}
	}
	return nil
}

// seen records the sealed segments, oldest first, with the times in their seals. A segment sealed after the last reading is
// not older than that reading.
func (a *ages) seen(numbers []int, since time.Duration, first bool, sealedAt func(number int) (time.Time, error)) error {
	kept := make(map[int]time.Duration, len(numbers))
	var latest time.Time
	for _, number := range numbers {
		at, ok := a.sealed[number]
		if !ok {
			when, err := sealedAt(number)
			if err != nil {
				return err
			}
			if when.After(latest) { // of two seals that contradict each other, the younger counts
				latest = when
			}
			at = a.passed - max(a.last.wall.Sub(latest), 0)
			if !first {
				at = max(at, since)
			}
		}
		kept[number] = at
	}
	a.sealed = kept
	return nil
}

func (a *ages) text() []byte {
	b := fmt.Appendf(nil, "%s\n%s %d %s %d\n", agesFirst, a.last.boot, a.last.up, a.last.wall.UTC().Format(format.TimeLayout), a.passed)
	for _, number := range slices.Sorted(maps.Keys(a.sealed)) {
		b = fmt.Appendf(b, "%d %d\n", number, a.sealed[number])
	}
	return b
}

// readAges reads the file of a log; there may be none.
func readAges(dir string) (*ages, error) {
	a := &ages{sealed: map[int]time.Duration{}}
	path := filepath.Join(dir, agesName)
	text, err := durable.Plain(path, agesMost)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	bad := fmt.Errorf("%s is not as egressd writes it; remove it, and ages are those of the clock once", path)
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	line, rest, _ := bytes.Cut(rest, []byte("\n"))
	var wall string
	n, err := fmt.Sscanf(string(line), "%s %d %s %d", &a.last.boot, &a.last.up, &wall, &a.passed)
	if string(first) != agesFirst || n != 4 || err != nil {
		return nil, bad
	}
	if a.last.wall, err = time.Parse(format.TimeLayout, wall); err != nil {
		return nil, bad
	}
	for line := range bytes.Lines(rest) {
		var number int
		var at time.Duration
		if _, err := fmt.Sscanf(string(line), "%d %d\n", &number, &at); err != nil {
			return nil, bad
		}
		a.sealed[number] = at
	}
	a.known = true
	return a, nil
}

// byAge reports whether retention asks how old segments are.
func (r Retain) byAge() bool { return r.Age > 0 || r.OwedAge > 0 }

// age brings the ages up to date. It is called with signing held. Where they cannot be told,
// it says so and returns nil: then nothing is removed for its age.
func (l *Log) age(numbers []int) *ages {
	if !l.options.Retain.byAge() {
		return nil
	}
	a, set, err := l.ageAll(numbers)
	if set != nil {
		l.trouble(set)
	}
	if err != nil {
		l.trouble(fmt.Errorf("tell how old the parts of the audit log are: %w", err))
		return nil
	}
	return a
}

// ageAll returns the ages, and besides what advance has said of the clock.
func (l *Log) ageAll(numbers []int) (_ *ages, set, err error) {
	l.aged = time.Now()
	a := l.ages
	if a == nil {
		if a, err = readAges(l.dir); err != nil {
			return nil, nil, err
		}
	}
	since, first := a.passed, !a.known
	set = a.advance(l.clocks())
	for len(numbers) > 0 && numbers[len(numbers)-1] >= l.notary.segment {
		numbers = numbers[:len(numbers)-1]
	}
	err = a.seen(numbers, since, first, func(number int) (time.Time, error) {
		c, err := l.past.SealOf(number)
		if err != nil {
			return time.Time{}, err
		}
		return time.Parse(format.TimeLayout, c.Time)
	})
	if err == nil || !first {
		l.ages = a // whether it comes to the file or not, so that a jump is said once
	}
	if err == nil {
		err = l.writeAges(a)
	}
	if err != nil {
		return nil, set, err
	}
	return a, set, nil
}

// agesDue reports whether the ages were not brought up to date for long.
func (l *Log) agesDue() bool {
	return l.options.Retain.byAge() && time.Since(l.aged) >= agesEvery
}

// keepAges stores the log's time for an Open after the next boot. That Open finds and reports a jump of the clock. The
// caller holds signing.
func (l *Log) keepAges() {
	if l.ages == nil {
		return
	}
	if l.ages.advance(l.clocks()) != nil {
		return
	}
	if err := l.writeAges(l.ages); err != nil {
		l.trouble(fmt.Errorf("note how old the parts of the audit log are: %w", err))
	}
}

// writeAges writes the file, unless nobody is to open the log again.
func (l *Log) writeAges(a *ages) error {
	if l.options.Ephemeral {
		return nil
	}
	return durable.Replace(filepath.Join(l.dir, agesName), a.text(), format.FileRW)
}

func (l *Log) clocks() reading {
	if l.options.clocks != nil {
		return l.options.clocks()
	}
	return readClocks()
}

func (l *Log) trouble(err error) {
	if l.options.Trouble != nil {
		l.options.Trouble(err)
	}
}

// ownClocks are those of this process, where nothing tells of the machine's.
func ownClocks() reading {
	now := time.Now()
	return reading{wall: now.Round(0), up: now.Sub(processBegan), boot: processName}
}

var (
	processBegan = time.Now()
	processName  = fmt.Sprintf("process-%d-%d", os.Getpid(), processBegan.UnixNano())
)
