package bundle

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// aged returns a feed in a bubble whose bundle was heard just now.
func aged(t *testing.T, valid time.Duration) *Feed {
	t.Helper()
	key := newSigner(t)
	from := Source{URL: "https://host.example/b", Key: Key{PEM: key.public}, Refresh: time.Minute, MaxAge: time.Hour}
	f := open(t, t.TempDir(), from)
	tarball := key.sign(t, "one", time.Now(), valid)
	b, err := Read(tarball, &from.Key, time.Now())
	must(t, err)
	must(t, f.Accept(&Update{Bundle: b, Newer: true, content: tarball}))
	return f
}

func TestABundleIsStaleWhenItsServerWasNotHeardForMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aged(t, 0)
		time.Sleep(time.Hour - time.Nanosecond)
		if why := f.Stale(); why != "" || time.Until(f.Lapse()) != time.Nanosecond {
			t.Errorf("just before: %q, until %v", why, f.Lapse())
		}
		must(t, f.Fail(errors.New("no answer")))
		time.Sleep(time.Nanosecond)
		if why := f.Stale(); !strings.Contains(why, "last heard") {
			t.Errorf("just after: %q", why)
		}
		good, err := f.Good()
		must(t, err)
		must(t, f.Accept(&Update{Bundle: good}))
		if why := f.Stale(); why != "" {
			t.Errorf("heard again: %q", why)
		}
	})
}

func TestABundleIsStaleWhenItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aged(t, time.Minute)
		time.Sleep(59 * time.Second)
		if why := f.Stale(); why != "" {
			t.Errorf("before: %q", why)
		}
		time.Sleep(time.Second)
		good, err := f.Good()
		must(t, err)
		must(t, f.Accept(&Update{Bundle: good})) // the server has nothing newer
		if why := f.Stale(); !strings.Contains(why, "it expired at ") {
			t.Errorf("after: %q", why)
		}
	})
}

// TestARestartMakesNothingYounger has the time on disk count, and where the clock
// was set back, that up to which the daemon ran.
func TestARestartMakesNothingYounger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aged(t, 0)
		time.Sleep(50 * time.Minute)
		must(t, f.Fail(errors.New("no answer")))
		folder := filepath.Dir(f.store.folder)
		again := open(t, folder, f.source)
		if left := time.Until(again.Lapse()); left != 10*time.Minute {
			t.Errorf("after a restart it has %s left", left)
		}
		setBack(t, f, 24*time.Hour)
		again = open(t, folder, f.source)
		if left := time.Until(again.Lapse()); left != 10*time.Minute {
			t.Errorf("after a restart with a clock a day behind it has %s left", left)
		}
		time.Sleep(10 * time.Minute)
		if again.Stale() == "" {
			t.Error("with a clock that was set back it is never stale")
		}
	})
}

// setBack has the times on disk be later by d, as they look to a clock that was set
// back.
func setBack(t *testing.T, f *Feed, d time.Duration) {
	t.Helper()
	s := f.State()
	s.Heard, s.Fetched, s.Tried, s.Seen = s.Heard.Add(d), s.Fetched.Add(d), s.Tried.Add(d), s.Seen.Add(d)
	text, err := json.Marshal(s)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(f.store.folder, stateName), text, 0o600))
}

func TestTheClockOfAFeedNeverGoesBack(t *testing.T) {
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := clock{base: base}
	for _, row := range []struct{ passed, wall, want time.Duration }{
		{time.Minute, time.Minute, time.Minute},
		{time.Minute, -time.Hour, time.Minute}, // set back
		{time.Minute, time.Hour, time.Hour},    // the machine slept
		{0, -time.Hour, 0},
	} {
		if got := c.at(row.passed, base.Add(row.wall)).Sub(base); got != row.want {
			t.Errorf("%s passed, and the wall says %s: %s", row.passed, row.wall, got)
		}
	}
	for _, row := range []struct{ at, want time.Duration }{{0, 0}, {time.Hour, time.Hour}, {time.Minute, time.Hour}, {2 * time.Hour, 2 * time.Hour}} {
		if got := c.reached(base.Add(row.at)).Sub(base); got != row.want {
			t.Errorf("at %s it says %s", row.at, got)
		}
	}
}

func TestWaits(t *testing.T) {
	const far = 24 * time.Hour
	for _, row := range []struct {
		refresh, maxAge time.Duration
		failures        int
		left            time.Duration
		random          float64
		want            time.Duration
	}{
		{time.Minute, far, 0, far, 0.5, time.Minute},
		{time.Minute, far, 0, far, 0, 54 * time.Second},
		{time.Minute, far, 0, far, 1, 66 * time.Second},
		{time.Hour, far, 0, far, 0.5, time.Hour},
		{time.Hour, far, 1, far, 0.5, 10 * time.Minute}, // sooner than without a failure
		{time.Minute, far, 1, far, 0.5, time.Minute},
		{time.Minute, far, 3, far, 0.5, 4 * time.Minute},
		{time.Minute, far, 100, far, 0.5, 10 * time.Minute},
		{time.Second, 2 * time.Minute, 100, -time.Hour, 0.5, 2 * time.Minute},
		{time.Minute, far, 3, time.Minute, 0.5, 30 * time.Second}, // before it is stale
		{time.Minute, far, 3, time.Millisecond, 0.5, time.Second},
		{time.Second, far, 0, far, 0, time.Second},
	} {
		s := Source{Refresh: row.refresh, MaxAge: row.maxAge}
		if got := s.wait(row.failures, row.left, row.random); got != row.want {
			t.Errorf("%+v: %s", row, got)
		}
	}
}

// TestTimesAreNotWrittenEachTime: a bundle that is looked for each second must not
// be a write each second.
func TestTimesAreNotWrittenEachTime(t *testing.T) {
	key := newSigner(t)
	s := serve(t, httptest.NewServer, body(key.sign(t, "one", time.Now(), 0), `"1"`))
	f := open(t, t.TempDir(), s.source(key))
	take(t, f)
	path := filepath.Join(f.store.folder, stateName)
	before, err := os.ReadFile(path)
	must(t, err)
	take(t, f)
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("written again at once: %v", err)
	}
	f.written.Seen = f.written.Seen.Add(-time.Minute)
	take(t, f)
	if after, err := os.ReadFile(path); err != nil || string(after) == string(before) {
		t.Errorf("not written after a minute: %v", err)
	}
}

// TestATagThatIsSetBackMakesNothingStale has the server answer with an older bundle, one that has expired since, and one of
// another key. Only the first two say that the server was heard.
func TestATagThatIsSetBackMakesNothingStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, other := newSigner(t), newSigner(t)
		from := Source{URL: "https://host.example/b", Key: Key{PEM: key.public}, Refresh: time.Minute, MaxAge: time.Hour}
		f := open(t, t.TempDir(), from)
		began := time.Now()
		good := key.sign(t, "two", began, 0)
		b, err := Read(good, &from.Key, began)
		must(t, err)
		must(t, f.Accept(&Update{Bundle: b, Newer: true, content: good}))
		hears := func(tarball []byte, is error, heard bool) {
			t.Helper()
			time.Sleep(50 * time.Minute)
			state := f.State()
			_, err := f.judge(&fetched{body: tarball}, &state)
			if !errors.Is(err, is) {
				t.Fatalf("judged: %v, want %v", err, is)
			}
			must(t, f.Fail(err))
			if got := time.Since(f.State().Heard) < time.Second; got != heard || f.State().Error == "" || f.State().Revision != "two" {
				t.Errorf("%v: heard %v, %+v", err, got, f.State())
			}
		}
		hears(key.sign(t, "one", began.Add(-24*time.Hour), 0), ErrOlder, true)
		hears(key.sign(t, "one", began.Add(-24*time.Hour), time.Hour), ErrOlder, true)
		if why := f.Stale(); why != "" {
			t.Errorf("stale: %q", why)
		}
		hears(other.sign(t, "one", began.Add(-24*time.Hour), 0), ErrWrongKey, false)
		time.Sleep(10 * time.Minute)
		if f.Stale() == "" {
			t.Error("a bundle of another key makes the last good one younger")
		}
	})
}
