package logs

import (
	"testing"
	"time"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/record"
)

// TestAPrintedTimeIsAFilter gives each form in which a time is printed back as a filter, as it stands: also without quotes.
func TestAPrintedTimeIsAFilter(t *testing.T) {
	zone := time.FixedZone("CET", 3600)
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, zone)
	then := time.Date(2026, 11, 19, 22, 30, 15, 0, time.UTC) // 23:30:15 of the same day in the zone
	for _, row := range []struct {
		name, text string
		exact      time.Time
	}{
		{"quantity.Clock of another day", then.In(zone).Format(time.DateOnly + " " + time.TimeOnly), then},
		{"with milliseconds", then.In(zone).Format(time.DateTime + ".000"), then},
		{"log summary --markdown", then.Format("2006-01-02 15:04:05Z"), then},
		{"with the name of a zone", then.Format(time.DateTime + " MST"), then},
		{"a record", then.Format("2006-01-02T15:04:05.000000Z"), then},
		{"log by hour", then.Format("2006-01-02T15Z"), then.Truncate(time.Hour)},
		{"the name of a run", then.In(zone).Format("20060102-150405.000"), then},
		{"RFC 3339 with an offset", then.In(zone).Format(time.RFC3339), then},
		{"a form of a browser", "2026-11-19T23:30", then.Truncate(time.Minute)},
		{"a clock that has not come to it today", "23:30:15", then},
		{"a clock of UTC", "22:30:15 UTC", then},
	} {
		for _, key := range []string{"since", "until"} {
			f, err := ParseFilter(SplitFilter("host:a.test "+key+":"+row.text+" -sandbox:b"), now)
			if err != nil {
				t.Errorf("%s: %s:%s: %v", row.name, key, row.text, err)
				continue
			}
			again, err := ParseFilter(SplitFilter(f.String()), now)
			if err != nil {
				t.Errorf("%s: %q is not read again: %v", row.name, f, err)
				continue
			}
			for _, d := range []time.Duration{-time.Millisecond, 0} {
				r := &record.Record{Time: row.exact.Add(d), Dst: &record.Destination{Host: "a.test"}}
				if want := (d == 0) == (key == "since"); f.Match(r) != want || again.Match(r) != want {
					t.Errorf("%s: %s:%s takes %s: %v and %v, want %v", row.name, key, row.text, r.Time, f.Match(r), again.Match(r), want)
				}
			}
		}
	}
	today := time.Date(2026, 11, 20, 9, 30, 0, 0, time.Local)
	if got, err := ParseMoment(quantity.Clock(today, today.Add(time.Hour)), today.Add(time.Hour)); err != nil || !got.Equal(today) {
		t.Errorf("the clock of today: %s, %v", got, err)
	}
	for _, words := range [][]string{{"since:2026-11-19", "now"}, {"host:2026-11-19", "09:30"}, {"since:2026-11-19", "25:30:15"}, {"since:1h", "09:30"}} {
		if joined := joinTimes(words); len(joined) != 2 {
			t.Errorf("%q became %q", words, joined)
		}
	}
}

// TestNothingMatchesNothing is the filter of somebody whose filter is wrong.
func TestNothingMatchesNothing(t *testing.T) {
	shared, own := Nothing().Split()
	if r := sample(); Nothing().Match(r) || shared.Match(r) && own.Match(r) || Nothing().Empty() {
		t.Error("a record matches")
	}
}
