package logs

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
	Alarm    bool           // a canary was to be sent to that host, which was refused

	host string
}

// A Crowd is many names below one registered domain, of which none is a lesson: a
// program that makes up names writes something with them.
type Crowd struct {
	Domain   string
	Names    int
	Count    int64
	Up, Down int64
	Flow     string // of the last
}

// Lessons gathers what passed by [policy.LearnRule]. Its zero value is empty.
type Lessons struct {
	Beyond int64 // decisions about destinations that were too many, or that no policy opens

	all    map[string]*Lesson
	alarms map[string]struct{} // hosts to which a canary was to be sent
}

// note takes note of canaries.
func (l *Lessons) note(r *egress.Record) {
	refused := r.Decision != nil && r.Decision.Class == string(policy.Canary)
	if !refused && r.Kind != egress.KindSignal || len(l.alarms) >= maxLessons {
		return
	}
	if l.alarms == nil {
		l.alarms = map[string]struct{}{}
	}
	l.alarms[strings.Clone(Host(r))] = struct{}{}
}

// maxPrograms is how many programs a lesson names.
const maxPrograms = 5

// Add takes in one decision, as a [Tally] hands it on.
func (l *Lessons) Add(r *egress.Record) {
	l.note(r)
	if r.Decision == nil || r.Dst == nil || r.Decision.Rule != policy.LearnRule || r.Decision.Action != "allow" {
		return
	}
	lesson := l.lesson(Destination(r), Host(r))
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
func (l *Lessons) lesson(destination, host string) *Lesson {
	if known := l.all[destination]; known != nil {
		return known
	}
	pattern, err := policy.ParsePattern(destination)
	if err != nil || !pattern.OneHost() || policy.CheckGrant(pattern) != nil || policy.InSpecialSpace(pattern) || len(l.all) >= maxLessons {
		l.Beyond++
		return nil
	}
	if l.all == nil {
		l.all = map[string]*Lesson{}
	}
	l.all[destination] = &Lesson{Pattern: pattern, host: strings.Clone(host)}
	return l.all[destination]
}

// All returns the lessons by their patterns, and the crowds by their domains.
func (l *Lessons) All() (all []*Lesson, crowds []*Crowd) {
	domains := map[string][]*Lesson{}
	for _, lesson := range l.all {
		_, lesson.Alarm = l.alarms[lesson.host]
		domain := domainKey(GroupKey{}, lesson.host, "", 0)
		domain, _, _ = strings.Cut(domain, "\xff")
		if domain == "" {
			all = append(all, lesson)
		} else {
			domains[domain] = append(domains[domain], lesson)
		}
	}
	for domain, below := range domains {
		if hosts(below) < foldFrom {
			all = append(all, below...)
		} else {
			crowds = append(crowds, crowdOf(domain, below))
		}
	}
	slices.SortFunc(all, func(a, b *Lesson) int { return cmp.Compare(a.Pattern.String(), b.Pattern.String()) })
	slices.SortFunc(crowds, func(a, b *Crowd) int { return cmp.Compare(a.Domain, b.Domain) })
	return all, crowds
}

// hosts counts the names in lessons: a host has one for each port.
func hosts(lessons []*Lesson) int {
	names := map[string]struct{}{}
	for _, l := range lessons {
		names[l.host] = struct{}{}
	}
	return len(names)
}

func crowdOf(domain string, below []*Lesson) *Crowd {
	c := &Crowd{Domain: domain, Names: hosts(below)}
	for _, l := range below {
		c.Count, c.Up, c.Down = c.Count+l.Count, c.Up+l.Up, c.Down+l.Down
		c.Flow = max(c.Flow, l.Flow)
	}
	return c
}
