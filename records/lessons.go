package records

import (
	"cmp"
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// maxLessons bounds what a program can make a reader remember by ever new
// names.
const maxLessons = 10_000

// A Lesson is a destination that nobody's rule spoke of, and what went there
// while it was let pass.
type Lesson struct {
	Pattern  policy.Pattern // just this host and this port
	Count    int64          // connections, and of those that were looked into the requests
	Reached  int64          // of them, those that came to an upstream
	Up, Down int64          // payload bytes
	Programs []string       // some of those that asked, sorted
	Flow     string         // of the last
}

// Lessons gathers what passed by [policy.LearnRule]. Its zero value is empty.
type Lessons struct {
	Beyond int64 // decisions about destinations that were too many

	all map[string]*Lesson
}

// maxPrograms is how many programs a lesson names.
const maxPrograms = 5

// Add takes in one decision, as a [Tally] hands it on.
func (l *Lessons) Add(r *egress.Record) {
	if r.Decision == nil || r.Dst == nil || r.Decision.Rule != policy.LearnRule || r.Decision.Action != "allow" {
		return
	}
	lesson := l.lesson(Destination(r))
	if lesson == nil {
		return
	}
	lesson.Count++
	lesson.Flow = strings.Clone(r.Flow)
	if r.Dst.Addr != "" {
		lesson.Reached++
	}
	if r.Bytes != nil {
		lesson.Up, lesson.Down = lesson.Up+r.Bytes.Up, lesson.Down+r.Bytes.Down
	}
	program := Process(r)
	at, known := slices.BinarySearch(lesson.Programs, program)
	if program != "" && !known && len(lesson.Programs) < maxPrograms {
		lesson.Programs = slices.Insert(lesson.Programs, at, strings.Clone(program))
	}
}

// lesson returns that of a destination, or nil where there is no room for it, or no
// pattern.
func (l *Lessons) lesson(destination string) *Lesson {
	if known := l.all[destination]; known != nil {
		return known
	}
	pattern, err := policy.ParsePattern(destination)
	if err != nil || !pattern.OneHost() || len(l.all) >= maxLessons {
		l.Beyond++
		return nil
	}
	if l.all == nil {
		l.all = map[string]*Lesson{}
	}
	l.all[destination] = &Lesson{Pattern: pattern}
	return l.all[destination]
}

// All returns the lessons by their patterns.
func (l *Lessons) All() []*Lesson {
	all := make([]*Lesson, 0, len(l.all))
	for _, lesson := range l.all {
		all = append(all, lesson)
	}
	slices.SortFunc(all, func(a, b *Lesson) int { return cmp.Compare(a.Pattern.String(), b.Pattern.String()) })
	return all
}
