package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// A machine has clocks that a test sets.
type machine struct {
	t   *testing.T
	dir string // of a log

	mu   sync.Mutex
	at   reading
	said []error
}

func newMachine(t *testing.T) *machine {
	return &machine{
		t: t, dir: filepath.Join(t.TempDir(), "audit"),
		at: reading{wall: time.Now().Truncate(time.Microsecond), up: time.Hour, boot: "first"},
	}
}

func (m *machine) options(r Retain) Options {
	return Options{SegmentBytes: 300, Retain: r, clocks: m.clocks, Trouble: func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.said = append(m.said, err)
	}}
}

func (m *machine) clocks() reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

// pass has time pass, and the clock be set.
func (m *machine) pass(passed, set time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at.up += passed
	m.at.wall = m.at.wall.Add(passed + set)
}

// restart starts the machine anew, so long ago.
func (m *machine) restart(up time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at.up, m.at.boot = up, "next "+m.at.boot
}

// work seals a segment or two.
func (m *machine) work(l *Log) {
	m.t.Helper()
	for range 6 {
		appendTo(m.t, l, named("x"))
	}
	if _, err := l.Checkpoint(); err != nil {
		m.t.Fatal(err)
	}
}

// first is the oldest segment that is there.
func (m *machine) first() int {
	m.t.Helper()
	return format.FirstNumber(numbersOf(m.t, m.dir))
}

// heard returns the one thing that was said of the clock since the last call.
func (m *machine) heard() *ClockError {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	var set *ClockError
	if len(m.said) != 1 || !errors.As(m.said[0], &set) {
		m.t.Fatalf("said was %v", m.said)
	}
	m.said = nil
	return set
}

func (m *machine) quiet() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.said) > 0 {
		m.t.Errorf("said was %v", m.said)
	}
}

const year = 365 * 24 * time.Hour

// TestAClockThatIsSetMakesNothingOld, nor young: while the log is open, and between two times
// that it is.
func TestAClockThatIsSetMakesNothingOld(t *testing.T) {
	for says, set := range map[string]time.Duration{"forward": 10 * year, "back": -10 * year} {
		for _, closed := range []bool{false, true} {
			t.Run(says, func(t *testing.T) {
				m := newMachine(t)
				o := m.options(Retain{Age: time.Hour})
				l := create(t, m.dir, o)
				m.work(l)
				m.quiet()
				if closed {
					closeLog(t, l)
					m.pass(0, set)
					l = open(t, m.dir, o)
				} else {
					m.pass(0, set)
				}
				m.work(l)
				if n := m.first(); n != 1 {
					t.Fatalf("the log begins with segment %d", n)
				}
				if e := m.heard(); e.By != set || e.Off {
					t.Errorf("said was %v, and the clock was set by %v", e, set)
				}
				young := format.LastNumber(numbersOf(t, m.dir))
				m.pass(59*time.Minute, 0)
				m.work(l)
				if n := m.first(); n != 1 {
					t.Errorf("after 59 minutes the log begins with segment %d", n)
				}
				m.pass(2*time.Minute, -set) // and the clock is put right
				m.work(l)
				if n := m.first(); n < 2 || n < young {
					t.Errorf("after 61 minutes the log begins with segment %d of %d", n, young)
				}
				m.heard()
				_, key := l.Origin()
				closeLog(t, l)
				if r, err := verify.Log(m.dir, key, nil); err != nil || r.Code != verify.Good {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
}

// TestAMachineThatWasOff: nothing but its clock tells for how long, so that at most a day of it counts.
func TestAMachineThatWasOff(t *testing.T) {
	for _, row := range []struct {
		says     string
		off, age time.Duration
		removed  bool
		said     bool
	}{
		{"an hour", time.Hour, time.Hour, true, false},
		{"not yet an hour", time.Hour, 67 * time.Minute, false, false},
		{"ten years", 10 * year, 25 * time.Hour, false, true},
		{"ten years, and a day is enough", 10 * year, 24 * time.Hour, true, true},
		{"back", -year, 6 * time.Minute, false, true},
		{"back, and what it is on is enough", -year, 4 * time.Minute, true, true},
	} {
		t.Run(row.says, func(t *testing.T) {
			m := newMachine(t)
			o := m.options(Retain{Age: row.age})
			l := create(t, m.dir, o)
			m.work(l)
			closeLog(t, l)
			m.pass(0, row.off+5*time.Minute)
			m.restart(5 * time.Minute)
			l = open(t, m.dir, o)
			if n := m.first(); n > 1 != row.removed {
				t.Errorf("the log begins with segment %d", n)
			}
			if row.said {
				if e := m.heard(); e.By != row.off || !e.Off {
					t.Errorf("said was %v, and it was off for %v", e, row.off)
				}
			}
			m.quiet()
			closeLog(t, l)
		})
	}
}

// TestWhatPassedBeforeTheEndCounts where the machine was on, and the log had nothing to record.
func TestWhatPassedBeforeTheEndCounts(t *testing.T) {
	m := newMachine(t)
	o := m.options(Retain{Age: 29 * time.Hour})
	l := create(t, m.dir, o)
	m.work(l)
	m.pass(30*time.Hour, 0)
	closeLog(t, l)
	m.pass(0, 5*time.Minute)
	m.restart(5 * time.Minute)
	l = open(t, m.dir, o)
	if n := m.first(); n < 2 {
		t.Error("nothing was removed")
	}
	m.quiet()
	closeLog(t, l)
}

// TestAJumpBeforeTheEndIsSaid when the log is opened.
func TestAJumpBeforeTheEndIsSaid(t *testing.T) {
	m := newMachine(t)
	o := m.options(Retain{Age: time.Hour})
	l := create(t, m.dir, o)
	m.work(l)
	m.quiet()
	m.pass(time.Minute, 10*year)
	closeLog(t, l)
	m.pass(time.Minute, 0)
	l = open(t, m.dir, o)
	if e := m.heard(); e.By != 10*year || e.Off {
		t.Errorf("said was %v", e)
	}
	closeLog(t, l)
}

// TestAgesThatCannotBeWritten are said to be, a jump of the clock once, and nothing is removed until they are.
func TestAgesThatCannotBeWritten(t *testing.T) {
	m := newMachine(t)
	l := create(t, m.dir, m.options(Retain{Age: time.Hour}))
	m.work(l)
	m.quiet()
	path := filepath.Join(m.dir, agesName)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	m.pass(0, 10*year)
	for range 3 {
		m.pass(2*time.Hour, 0)
		m.work(l)
	}
	jumps, others := 0, 0
	for _, err := range m.said {
		if set := (*ClockError)(nil); errors.As(err, &set) {
			jumps++
		} else if strings.Contains(err.Error(), path) {
			others++
		}
	}
	if jumps != 1 || others < 3 || m.first() != 1 {
		t.Errorf("the log begins with segment %d, said was %v", m.first(), m.said)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	m.said = nil
	m.work(l)
	if n := m.first(); n < 2 {
		t.Error("nothing was removed")
	}
	m.quiet()
	closeLog(t, l)
}

// TestAnEphemeralLogHasNoAges on the disk: nobody opens it again.
func TestAnEphemeralLogHasNoAges(t *testing.T) {
	m := newMachine(t)
	o := m.options(Retain{Age: time.Hour})
	o.Ephemeral = true
	l := create(t, m.dir, o)
	m.work(l)
	m.pass(2*time.Hour, 0)
	m.work(l)
	if n := m.first(); n < 2 {
		t.Error("nothing was removed")
	}
	closeLog(t, l)
	if _, err := os.Stat(filepath.Join(m.dir, agesName)); err == nil {
		t.Error("ages are written that nobody reads")
	}
}

// TestAnOldSegmentDoesNotWaitForTheNextOne to be sealed: a record is enough.
func TestAnOldSegmentDoesNotWaitForTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		o := m.options(Retain{Age: 3 * time.Hour})
		o.clocks = ownClocks
		l := create(t, m.dir, o)
		m.work(l)
		segments := len(numbersOf(t, m.dir))
		for range 4 {
			time.Sleep(59 * time.Minute)
		}
		appendTo(t, l, named("x"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n, last := m.first(), format.LastNumber(numbersOf(t, m.dir)); n < 2 || last > segments {
			t.Errorf("the log has segments %d to %d, and had %d", n, last, segments)
		}
		m.quiet()
		closeLog(t, l)
	})
}

// TestAgesBeginWithTheClock where retention has not asked for them before.
func TestAgesBeginWithTheClock(t *testing.T) {
	m := newMachine(t)
	l := create(t, m.dir, m.options(Retain{}))
	m.work(l)
	closeLog(t, l)
	if _, err := os.Stat(filepath.Join(m.dir, agesName)); err == nil {
		t.Error("ages are written that nobody asks for")
	}
	m.pass(0, 2*time.Hour)
	l = open(t, m.dir, m.options(Retain{Age: time.Hour}))
	if n := m.first(); n < 2 {
		t.Error("nothing was removed")
	}
	m.quiet()
	closeLog(t, l)
}

// TestTwoSealsThatContradictEachOther count as the younger: one of the two was made by a
// clock that was wrong.
func TestTwoSealsThatContradictEachOther(t *testing.T) {
	now := time.Now()
	seals := map[int]time.Time{1: now.Add(-5 * time.Hour), 2: now.Add(-3 * time.Hour), 3: now.Add(-year), 4: now.Add(year)}
	a := &ages{sealed: map[int]time.Duration{}}
	a.advance(reading{wall: now, boot: "a"})
	if err := a.seen([]int{1, 2, 3, 4}, 0, true, func(n int) (time.Time, error) { return seals[n], nil }); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]time.Duration{1: 5 * time.Hour, 2: 3 * time.Hour, 3: 3 * time.Hour, 4: 0} {
		if got := a.of(n); got != want {
			t.Errorf("segment %d is %v old, want %v", n, got, want)
		}
	}
	a.advance(reading{wall: now.Add(2 * year), up: time.Minute, boot: "a"})
	seals[5] = now.Add(-year)
	if err := a.seen([]int{2, 5}, 0, false, func(n int) (time.Time, error) { return seals[n], nil }); err != nil {
		t.Fatal(err)
	}
	if a.of(5) != time.Minute || len(a.sealed) != 2 {
		t.Errorf("a segment that was sealed within the last minute is %v old, and %d are known", a.of(5), len(a.sealed))
	}
}

// TestAgesThatCannotBeRead remove nothing for its age, and say so; other bounds count.
func TestAgesThatCannotBeRead(t *testing.T) {
	for says, text := range map[string]string{
		"empty": "", "another first line": "x\nfirst 1 2026-01-01T00:00:00.000000Z 1\n", "no reading": agesFirst + "\n",
		"no time": agesFirst + "\nfirst 1 yesterday 1\n", "no number": agesFirst + "\nfirst 1 2026-01-01T00:00:00.000000Z 1\n1\n",
	} {
		t.Run(says, func(t *testing.T) {
			m := newMachine(t)
			l := create(t, m.dir, m.options(Retain{Age: time.Hour}))
			m.work(l)
			m.work(l)
			closeLog(t, l)
			path := filepath.Join(m.dir, agesName)
			writeFile(t, path, []byte(text))
			m.pass(2*time.Hour, 0)
			l = open(t, m.dir, m.options(Retain{Age: time.Hour}))
			if n := m.first(); n != 1 {
				t.Errorf("the log begins with segment %d", n)
			}
			if len(m.said) != 1 || !strings.Contains(m.said[0].Error(), path) {
				t.Errorf("said was %v", m.said)
			}
			closeLog(t, l)
			l = open(t, m.dir, m.options(Retain{Age: time.Hour, Segments: 2}))
			if n := m.first(); n < 2 {
				t.Error("nothing was removed")
			}
			closeLog(t, l)
		})
	}
}

// TestTheClocksOfThisMachine go on.
func TestTheClocksOfThisMachine(t *testing.T) {
	before, own := readClocks(), ownClocks()
	time.Sleep(time.Millisecond)
	after := readClocks()
	if before.boot == "" || before.boot != after.boot || after.up <= before.up || !after.wall.After(before.wall) {
		t.Errorf("%+v, and then %+v", before, after)
	}
	if later := ownClocks(); later.boot != own.boot || later.up <= own.up || strings.ContainsAny(own.boot+before.boot, " \n") {
		t.Errorf("%+v, and then %+v", own, later)
	}
}
