package operator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/record"
)

// granted are the grants in force, by what they are about.
func granted(t *testing.T, d *world.Daemon) map[string]admin.Grant {
	t.Helper()
	all := map[string]admin.Grant{}
	for line := range strings.Lines(answers(t, d, "allow", "--list", "--json").Out) {
		var g admin.Grant
		if err := json.Unmarshal([]byte(line), &g); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all[g.Text()] = g
	}
	return all
}

// TestNoClockMovesWhatTheBoundaryGrants: somebody sets the wall clock back or forward between a question and its answer, after it, beside
// a reload, before an end and before a restart. The time since the machine's start counts, and what is beyond the boundary waits.
func TestNoClockMovesWhatTheBoundaryGrants(t *testing.T) {
	const (
		day, year = 24 * time.Hour, 365 * 24 * time.Hour
		boundary  = "version: 1\nallow: [{host: \"*.allowed.test:80\", methods: [GET], paths: [\"/in/**\"]}]\n"
	)
	for _, by := range []time.Duration{-10 * year, -day - time.Hour, -30 * time.Minute, 61 * time.Minute, day + time.Hour, 10 * year} {
		t.Run(by.String(), func(t *testing.T) {
			var clock world.Clock
			d := world.NewDaemon(t, world.WithAdmin(world.AdminSocket, "allow: [tool.test]\napprove_within: boundary.yaml\n"))
			d.PutFile(t, "boundary.yaml", boundary)
			clock.Start(t, d, 0)
			t.Cleanup(func() { d.Stop(t) })
			asks := func(path string) (a egress.Access) {
				t.Helper()
				inquires(t, d, "", asksFor("a.allowed.test:80", fmt.Sprintf(`,"method":"GET","path":%q`, path), "x"), &a)
				if a.State == "pending" && strings.HasPrefix(path, "/in/") {
					inquires(t, d, "", requestsURL+"/"+a.ID+"?wait=60", &a)
				}
				return a
			}
			inForce := func(when string, by time.Duration, paths ...string) {
				t.Helper()
				got := granted(t, d)
				for text, g := range got {
					if off := time.Until(g.Until) - by - time.Duration(g.Seconds*float64(time.Second)); off.Abs() > time.Minute {
						t.Errorf("%s: egressd's clock is off by %s", when, off)
					}
					if g.Seconds <= 0 || g.Seconds > 3600 {
						t.Errorf("%s: %s counts for %g seconds more", when, text, g.Seconds)
					}
				}
				if slices.Sort(paths); len(got) != len(paths) {
					t.Errorf("%s: granted is %v, want %v", when, slices.Sorted(maps.Keys(got)), paths)
				}
				for _, path := range []string{"/in/1", "/in/2", "/in/3", "/out", "/"} {
					want := "403"
					if slices.Contains(paths, path) {
						want = "200"
					}
					if got := statusOf(t, d, "http://a.allowed.test"+path); got != want {
						t.Errorf("%s: %s gets %s, want %s", when, path, got, want)
					}
				}
			}
			began := time.Now()
			if a := asks("/in/1"); a.State != "approved" {
				t.Fatalf("within the boundary: %+v", a)
			}
			beyond := asks("/out")
			if beyond.State != "pending" {
				t.Fatalf("beyond it: %+v", beyond)
			}
			world.Must(t, clock.Set(by))
			inForce("after the move", by, "/in/1")
			if a := asks("/out"); a.State != "pending" || a.ID != beyond.ID {
				t.Errorf("what waits became %+v", a)
			}

			moving, moved := make(chan struct{}), make(chan struct{})
			go func() { // while it is asked, proved and answered
				defer close(moved)
				for i := 0; ; i++ {
					select {
					case <-moving:
						return
					case <-time.After(time.Millisecond):
						if err := clock.Set([]time.Duration{by, 0, -by}[i%3]); err != nil {
							t.Error(err)
							return
						}
					}
				}
			}()
			if a := asks("/in/2"); a.State != "approved" {
				t.Errorf("while the clock moves: %+v", a)
			}
			d.PutFile(t, "boundary.yaml", "version: 1\nallow: [other.test]\n")
			d.ExpectPolicy(t, func(p record.Record) bool { return strings.HasPrefix(p.Note, "reloaded") })
			late := asks("/out2")
			close(moving)
			<-moved
			world.Must(t, clock.Set(-by))
			if late.State != "pending" {
				t.Errorf("beyond the boundary: %+v", late)
			}
			inForce("after a reload", -by, "/in/1", "/in/2")

			answers(t, d, "answer", beyond.ID, "yes", "--for", "1h")
			answers(t, d, "allow", "b.allowed.test:80", "--for", "1s")
			world.Must(t, clock.Set(by))
			if !world.Eventually(world.Settling, func() bool { return statusOf(t, d, "http://b.allowed.test/") == "403" }) {
				t.Error("what was granted for a second does not end")
			}
			inForce("after a person's answer", by, "/in/1", "/in/2", "/out")
			if passed := time.Since(began).Seconds(); granted(t, d)["GET /in/1 of a.allowed.test:80"].Seconds < 3600-passed-1 {
				t.Errorf("%g seconds have passed, and left are %+v", passed, granted(t, d))
			}

			d.Stop(t)
			d.PutFile(t, "boundary.yaml", boundary)
			clock.Start(t, d, -by)
			inForce("after a restart", -by)
			if e := d.RunCommand(t, nil, "answer", late.ID, "yes", "--config", d.Config); e.Code == 0 || len(questions(t, d)) != 0 {
				t.Errorf("a question from before is answered: %s", e.Talk)
			}
			if a := asks("/in/3"); a.State != "approved" {
				t.Errorf("after a restart: %+v", a)
			}
			inForce("asked after a restart", -by, "/in/3")
		})
	}
}

// TestNoClockFillsTheBudgetOfQuestions: a sandbox that may not ask for now is not let ask because the wall clock was set forward.
func TestNoClockFillsTheBudgetOfQuestions(t *testing.T) {
	var clock world.Clock
	d := world.NewDaemon(t, world.WithAdmin(world.AdminSocket, "allow: [tool.test]\n"))
	clock.Start(t, d, 0)
	t.Cleanup(func() { d.Stop(t) })
	began := time.Now()
	statuses := func() (all []string) {
		for i := range 12 {
			all = append(all, inquires(t, d, "", asksFor(fmt.Sprintf("h%d.test:80", i%2), "", "x"), nil))
		}
		return all
	}
	first := statuses()
	world.Must(t, clock.Set(365*24*time.Hour))
	second := statuses()
	if passed := int(time.Since(began).Minutes()); slices.Index(first, "429") != 10 || len(slices.DeleteFunc(second, func(s string) bool { return s == "429" })) > passed+1 {
		t.Errorf("it gets %v, and a year later %v", first, second)
	}
	if all := questions(t, d); len(all) != 2 {
		t.Errorf("asked is %+v", all)
	}
}
