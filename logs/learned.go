package logs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// maxLearned bounds the memory that a program can fill by using new names.
const maxLearned = 10_000

// A LearnedDestination is a destination that no rule mentions and that `learn` let pass.
type LearnedDestination struct {
	Pattern  policy.Pattern // exactly this host and port
	Count    int64          // connections, or requests if the connection was inspected
	Reached  int64          // of Count, those that reached an upstream
	Up, Down int64          // payload bytes
	Programs []string       // up to maxPrograms programs that connected, sorted
	Flow     string         // id of the last flow
	Alarm    bool           // egressd blocked a canary on its way to this host

	host string
}

// A NameFlood stands for many names below one registrable domain. A program that generates names can send
// data in them, so no rule is suggested for these names.
type NameFlood struct {
	Domain   string
	Names    int
	Count    int64
	Up, Down int64
	Flow     string // id of the last flow
}

// Learned collects the flows that [policy.LearnRule] let pass. Its zero value is empty.
type Learned struct {
	Denied bool  // collect the requests that were denied because no rule allows them, instead
	Beyond int64 // decisions about destinations beyond maxLearned, and about destinations that no policy can allow

	all    map[string]*LearnedDestination
	alarms map[string]struct{} // hosts to which a canary was sent
}

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
	learned.Count += r.Times()
	learned.Flow = strings.Clone(r.Flow)
	if r.Dst.Addr != "" {
		learned.Reached += r.Times()
	}
	if r.Bytes != nil {
		learned.Up, learned.Down = learned.Up+r.Bytes.Up, learned.Down+r.Bytes.Down
	}
	program := Process(r)
	at, known := slices.BinarySearch(learned.Programs, program)
	if program != "" && !known && len(learned.Programs) < maxPrograms {
		learned.Programs = slices.Insert(learned.Programs, at, strings.Clone(program))
	}
}

func (l *Learned) collects(d *record.Decision) bool {
	if l.Denied {
		return d.Action == "deny" && d.Class == string(policy.DefaultDeny)
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
