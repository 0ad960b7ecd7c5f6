package replay

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// A Course is what a program of a sandbox did with a destination: a host, all names below a domain, or a host with the
// beginning of a path.
type Course struct{ Sandbox, Program, Destination string }

// A Stop is the narrowest Tried that would have stopped a course, and wider ones.
type Stop struct {
	Tried
	Wider []Tried `json:"wider,omitempty"` // each wider than the one before

	// Refused counts the requests of the course that were refused. Why is the reason for the last one. If nothing passed,
	// there is nothing to deny.
	Refused int64  `json:"refused"`
	Why     string `json:"why,omitempty"`
}

// A Tried is lines for deny, tried on the log.
type Tried struct {
	Deny    []string `json:"deny"`
	Stopped int64    `json:"stopped"`       // requests of the course that passed, and would have been denied
	Left    int64    `json:"left"`          // requests of the course that would still have passed
	Others  int64    `json:"others"`        // requests of others that passed, and would have been denied
	Who     []string `json:"who,omitempty"` // a few of these others
}

// Bounds of what is remembered of a course.
const (
	mostHosts  = 3 // that are denied one by one; more are denied by their domain
	mostOthers = 3
)

// writes are the methods that change something at a server (RFC 9110 section 9.2.1).
var writes = []string{"POST", "PUT", "PATCH", "DELETE"}

// Stops finds for each course the narrowest rule that would have stopped it. It calls read twice, which passes all requests
// of the log. A course without any request has no Stop.
func Stops(ctx context.Context, courses []Course, read func(func(*record.Record)) error) (map[Course]*Stop, error) {
	all := map[string][]*course{} // by host or domain
	for _, c := range courses {
		domain, path, _ := strings.Cut(c.Destination, "/")
		all[domain] = append(all[domain], &course{Course: c, domain: domain, path: path, hosts: map[string]bool{}, methods: map[string]bool{}})
	}
	each := func(do func(*course, *record.Record)) error {
		return read(func(r *record.Record) {
			if !logs.Decides(r) {
				return
			}
			for host, more := logs.Host(r), true; more; _, host, more = strings.Cut(host, ".") {
				for _, c := range all[host] {
					do(c, r)
				}
			}
		})
	}
	if err := each((*course).learn); err != nil {
		return nil, err
	}
	for _, of := range all {
		for _, c := range of {
			c.propose()
		}
	}
	if err := each(func(c *course, r *record.Record) { c.try(ctx, r) }); err != nil {
		return nil, err
	}
	found := map[Course]*Stop{}
	for _, of := range all {
		for _, c := range of {
			if s := c.stop(); s.Stopped+s.Refused > 0 {
				found[c.Course] = s
			}
		}
	}
	return found, nil
}

// A course is a Course with what is known of it.
type course struct {
	Course
	domain, path string          // of Destination; the path is without its first slash
	hosts        map[string]bool // with port, of connections and requests
	methods      map[string]bool // that write
	up, written  int64           // bytes, and those of requests that write
	opaque, many bool            // some of it are tunnels or names; there are too many hosts
	refused      int64
	why          string
	trials       []*trial // the narrowest first
}

// stop returns what came of the trial.
func (c *course) stop() *Stop {
	s := &Stop{Tried: Tried{Deny: []string{}}}
	for _, t := range c.trials {
		switch {
		case t.Stopped == 0:
		case len(s.Deny) == 0:
			s.Tried = t.Tried
		default:
			s.Wider = append(s.Wider, t.Tried)
		}
	}
	s.Refused, s.Why = c.refused, c.why
	return s
}

func (c *course) has(r *record.Record) bool {
	return r.Sandbox == c.Sandbox && (c.Program == "" || logs.Process(r) == c.Program) &&
		(c.path == "" || r.HTTP != nil && (r.HTTP.Path == "/"+c.path || strings.HasPrefix(r.HTTP.Path, "/"+c.path+"/")))
}

func (c *course) learn(r *record.Record) {
	if !c.has(r) {
		return
	}
	if r.Decision.Action != "allow" {
		c.refused, c.why = c.refused+r.Times(), logs.Why(r)
		return
	}
	if r.DNS != nil || r.Dst == nil {
		c.opaque, c.many = true, true
		return
	}
	up := int64(0)
	if r.Bytes != nil {
		up = r.Bytes.Up
	}
	c.up += up
	switch {
	case r.HTTP == nil:
		c.opaque = true
	case slices.Contains(writes, r.HTTP.Method):
		c.methods[strings.Clone(r.HTTP.Method)] = true
		c.written += up
	}
	if len(c.hosts) <= mostHosts {
		c.hosts[logs.Destination(r)] = true
	}
}

// propose lists lines that would have stopped the course, the narrowest first: methods of one host, if most of what was sent was sent
// by these; the hosts, unless they are too many; the domain.
func (c *course) propose() {
	hosts := slices.Sorted(maps.Keys(c.hosts))
	if len(hosts) == 0 && !c.many {
		return
	}
	if len(hosts) == 1 && !c.opaque && c.written > 0 && c.written*10 >= c.up*9 {
		c.add(false, "{host: "+strconv.Quote(hosts[0])+", methods: ["+strings.Join(slices.Sorted(maps.Keys(c.methods)), ", ")+"]"+c.paths()+"}")
	}
	if !c.many && len(hosts) <= mostHosts {
		var lines []string
		for _, host := range hosts {
			lines = append(lines, strconv.Quote(host))
		}
		c.add(false, lines...)
	}
	lines := []string{strconv.Quote(c.domain), strconv.Quote("*." + c.domain)}
	if _, err := policy.ParsePattern("*." + c.domain); err != nil {
		lines = lines[:1]
	}
	c.add(true, lines...)
}

// add adds lines to those that are tried.
func (c *course) add(names bool, lines ...string) {
	f, err := file.Parse("deny", []byte("version: 1\ndefault: allow\ndeny:\n  - "+strings.Join(lines, "\n  - ")+"\n"))
	if err != nil {
		return // a name that no rule can have
	}
	p, err := f.Compile(file.Environment{Inspection: true})
	if err != nil {
		return
	}
	c.trials = append(c.trials, &trial{Tried: Tried{Deny: lines}, by: New(&config.Config{File: f}, p), names: names})
}

// paths is the condition of the path.
func (c *course) paths() string {
	if c.path == "" {
		return ""
	}
	return ", paths: [" + strconv.Quote("/"+c.path) + ", " + strconv.Quote("/"+c.path+"/**") + "]"
}

// A trial tries lines on the log.
type trial struct {
	Tried
	by    *Replay
	names bool // all names of the domain are denied, also to name servers
}

func (c *course) try(ctx context.Context, r *record.Record) {
	if r.Decision.Action != "allow" {
		return
	}
	for _, t := range c.trials {
		c.tryLines(ctx, t, r)
	}
}

func (c *course) tryLines(ctx context.Context, t *trial, r *record.Record) {
	denied := t.names
	if r.DNS == nil {
		was := r.Clone()
		was.Decision.Class, was.Sandbox = "", ""
		if was.Dst != nil {
			was.Dst.Addrs = nil // the lines are about names, and another rule may have opened the addresses
		}
		d, ok := t.by.Decide(ctx, was)
		denied = ok && ActionOf(d, was) == "deny" && strings.HasPrefix(d.Rule, "deny[")
	}
	switch {
	case c.has(r) && denied:
		t.Stopped += r.Times()
	case c.has(r):
		t.Left += r.Times()
	case denied:
		t.Others += r.Times()
		if who := logs.Who(r); len(t.Who) < mostOthers && !slices.Contains(t.Who, who) {
			t.Who = append(t.Who, strings.Clone(who))
		}
	}
}
