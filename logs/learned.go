package logs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// maxLearned bounds the memory that a program can fill by using new names.
const maxLearned = 10_000

// A LearnedDestination is a destination of requests for which there is no rule.
type LearnedDestination struct {
	Pattern     policy.Pattern // exactly this host and port
	Count       int64          // connections, or requests if the connection was inspected
	Reached     int64          // of Count, those that reached an upstream
	Up, Down    int64          // payload bytes
	Programs    []string       // up to maxPrograms programs that connected, sorted
	Sandboxes   []string       // up to maxPrograms sandboxes, sorted
	Logs        int            // in how many of several logs it is
	First, Last time.Time      // of the requests
	Flow        string         // id of the last flow
	Alarm       bool           // egressd blocked a canary on its way to this host

	host     string
	log      int                    // the last in which it is
	whole    bool                   // some connections showed no requests
	requests map[requested]struct{} // what was asked for, unless whole
}

// Openings returns the narrowest lines that allow what was asked for: the destination, or the methods and paths if egressd saw
// all requests.
func (l *LearnedDestination) Openings() []policy.Opening {
	if l.whole || len(l.requests) == 0 {
		return []policy.Opening{{Pattern: l.Pattern}}
	}
	return narrowest(l.Pattern, l.requests)
}

// Domain returns the registrable domain of the host, or the host.
func (l *LearnedDestination) Domain() string { return cmp.Or(policy.Registrable(l.host), l.host) }

// A NameFlood stands for many names below one registrable domain. A program that generates names can send
// data in them, so no rule is suggested for these names.
type NameFlood struct {
	Domain   string
	Names    int
	Count    int64
	Up, Down int64
	Flow     string // id of the last flow
}

// A Lesson is a kind of decisions that [Learned] collects.
type Lesson uint8

const (
	Observed       Lesson = iota // what [policy.LearnRule] let pass
	Denied                       // what was denied because no rule is about it
	DeniedRequests               // that, and requests of other methods and paths than a rule allows
	Allowed                      // whatever was allowed
)

// Learned collects decisions about destinations. Its zero value is empty, and collects what [policy.LearnRule] let pass.
type Learned struct {
	Of     Lesson
	Beyond int64 // decisions about destinations beyond maxLearned, and about destinations that no policy can allow

	all      map[string]*LearnedDestination
	alarms   map[string]struct{} // hosts to which a canary was sent
	requests int                 // that are remembered

	logs, newest int   // how many logs there were, and the last one with something new
	since        int64 // decisions after the last one with something new
	newestAt     time.Time
}

// NextLog tells that the decisions of another log follow.
func (l *Learned) NextLog() { l.logs++ }

// NothingNew counts the last logs without a new destination, method or path.
func (l *Learned) NothingNew() (logs int) { return l.logs - l.newest }

// Quiet counts the decisions after the last new destination, method or path. It also returns the time of that one.
func (l *Learned) Quiet() (decisions int64, since time.Time) { return l.since, l.newestAt }

func (l *Learned) noteCanary(r *record.Record) {
	refused := r.Decision != nil && r.Decision.Class == string(policy.Canary)
	if !refused && r.Kind != record.KindSignal || len(l.alarms) >= maxLearned {
		return
	}
	if l.alarms == nil {
		l.alarms = map[string]struct{}{}
	}
	l.alarms[strings.Clone(Host(r))] = struct{}{}
}

// maxPrograms is the number of programs listed for a destination.
const maxPrograms = 5

// Add counts one decision of a [DecisionJoiner], or several that are alike and have [record.Record.Count].
func (l *Learned) Add(r *record.Record) {
	l.noteCanary(r)
	if r.Decision == nil || r.Dst == nil || !l.collects(r.Decision) {
		return
	}
	learned := l.destination(Destination(r), Host(r))
	if learned == nil {
		return
	}
	fresh := learned.Count == 0
	learned.Count += r.Times()
	learned.Flow = strings.Clone(r.Flow)
	if learned.Last = r.Time; fresh {
		learned.First = r.Time
	}
	if fresh || learned.log != l.logs {
		learned.log = l.logs
		learned.Logs++
	}
	if fresh = l.addRequest(learned, r) || fresh; fresh {
		l.newest, l.since, l.newestAt = l.logs, 0, r.Time
	} else {
		l.since += r.Times()
	}
	if r.Dst.Addr != "" {
		learned.Reached += r.Times()
	}
	if r.Bytes != nil {
		learned.Up, learned.Down = learned.Up+r.Bytes.Up, learned.Down+r.Bytes.Down
	}
	learned.Programs = withOne(learned.Programs, Process(r))
	learned.Sandboxes = withOne(learned.Sandboxes, r.Sandbox)
}

// withOne adds a text to a sorted list, unless it is there or there are maxPrograms.
func withOne(all []string, text string) []string {
	at, known := slices.BinarySearch(all, text)
	if text == "" || known || len(all) >= maxPrograms {
		return all
	}
	return slices.Insert(all, at, strings.Clone(text))
}

// addRequest notes what a request was for, and reports whether that is new.
func (l *Learned) addRequest(to *LearnedDestination, r *record.Record) (fresh bool) {
	switch {
	case to.whole:
		return false
	case r.HTTP == nil || r.HTTP.Method == "" || !policy.PlainMethod(r.HTTP.Method), !policy.CanonicalMethod(r.HTTP.Method), l.requests >= maxLearned:
		fresh = len(to.requests) > 0
		l.requests -= len(to.requests)
		to.whole, to.requests = true, nil
		return fresh
	}
	one := requested{method: r.HTTP.Method, path: r.HTTP.Path, cut: r.HTTP.PathCut || len(to.requests) >= maxRequests}
	if _, known := to.requests[one]; known {
		return false
	}
	if to.requests == nil {
		to.requests = map[requested]struct{}{}
	}
	before := narrowest(to.Pattern, to.requests)
	to.requests[requested{strings.Clone(one.method), strings.Clone(one.path), one.cut}] = struct{}{}
	l.requests++
	return !slices.Equal(before, narrowest(to.Pattern, to.requests))
}

func (l *Learned) collects(d *record.Decision) bool {
	switch l.Of {
	case Denied:
		return d.Action == "deny" && d.Class == string(policy.DefaultDeny)
	case DeniedRequests:
		return d.Action == "deny" && (d.Class == string(policy.DefaultDeny) || d.Class == string(policy.MethodDenied) || d.Class == string(policy.PathDenied))
	case Allowed:
		return d.Action == "allow"
	}
	return d.Action == "allow" && d.Rule == policy.LearnRule
}

// Warnings is what a person should know before a rule allows the destination.
func (l *LearnedDestination) Warnings() (all []string) {
	text := l.Pattern.String()
	if l.Alarm {
		all = append(all, text+" was to get a canary, which was refused")
	}
	if sharing := l.Pattern.Sharing(); sharing != "" {
		all = append(all, text+" "+sharing)
	}
	host, _, _ := strings.Cut(text, ":")
	if policy.HandedOut(host) {
		all = append(all, text+" is a name that anyone can get")
	}
	if unicode := policy.Unicode(host); unicode != "" {
		all = append(all, text+" reads "+unicode+", whose letters may look like others")
	}
	return all
}

// Text describes the flood in one line.
func (f *NameFlood) Text() string {
	return fmt.Sprintf("%d names below %s are left out (%s, %s up, %s down): names that are made up can carry data; egressd log show %s",
		f.Names, f.Domain, quantity.Plural(int(f.Count), "request"), quantity.Bytes(f.Up), quantity.Bytes(f.Down), f.Flow)
}

// destination returns the entry for a destination. It returns nil if there are too many entries or if no
// rule can allow the destination.
func (l *Learned) destination(destination, host string) *LearnedDestination {
	if known := l.all[destination]; known != nil {
		return known
	}
	pattern, err := policy.ParsePattern(destination)
	if err != nil || !pattern.OneHost() || policy.CheckGrant(pattern) != nil || policy.InSpecialSpace(pattern) || len(l.all) >= maxLearned {
		l.Beyond++
		return nil
	}
	if l.all == nil {
		l.all = map[string]*LearnedDestination{}
	}
	l.all[destination] = &LearnedDestination{Pattern: pattern, host: strings.Clone(host)}
	return l.all[destination]
}

// All returns the destinations ordered by pattern and the name floods ordered by domain.
func (l *Learned) All() (all []*LearnedDestination, floods []*NameFlood) {
	domains := map[string][]*LearnedDestination{}
	for _, learned := range l.all {
		_, learned.Alarm = l.alarms[learned.host]
		domain := domainKey(GroupKey{}, learned.host, "", 0)
		domain, _, _ = strings.Cut(domain, "\xff")
		if domain == "" {
			all = append(all, learned)
		} else {
			domains[domain] = append(domains[domain], learned)
		}
	}
	for domain, below := range domains {
		if hosts(below) < manyNames {
			all = append(all, below...)
		} else {
			floods = append(floods, floodOf(domain, below))
		}
	}
	slices.SortFunc(all, func(a, b *LearnedDestination) int { return cmp.Compare(a.Pattern.String(), b.Pattern.String()) })
	slices.SortFunc(floods, func(a, b *NameFlood) int { return cmp.Compare(a.Domain, b.Domain) })
	return all, floods
}

// hosts counts the host names of all. A host has one entry for each port.
func hosts(all []*LearnedDestination) int {
	names := map[string]struct{}{}
	for _, l := range all {
		names[l.host] = struct{}{}
	}
	return len(names)
}

func floodOf(domain string, below []*LearnedDestination) *NameFlood {
	c := &NameFlood{Domain: domain, Names: hosts(below)}
	for _, l := range below {
		c.Count, c.Up, c.Down = c.Count+l.Count, c.Up+l.Up, c.Down+l.Down
		c.Flow = max(c.Flow, l.Flow)
	}
	return c
}
