package replay

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A Course is what a program of a sandbox did with a destination: a host, all names below a domain, or a host with the
// beginning of a path. Without a destination it is all that was refused to the program.
type Course struct{ Sandbox, Program, Destination string }

// A Stop is the narrowest Tried that would have stopped a course, and others.
type Stop struct {
	Tried
	Wider []Tried `json:"wider,omitempty"` // each denies as much of others as the one before, or more

	// Refused counts the requests of the course that were refused. Why is the reason for the last one. If nothing passed,
	// there is nothing to deny.
	Refused int64  `json:"refused"`
	Why     string `json:"why,omitempty"`
}

// A Tried is a part of a policy file, tried on the log.
type Tried struct {
	Policy  string   `json:"policy"`            // the part, as the file has it, or the entry of the sandbox
	Deny    []string `json:"deny"`              // its lines under deny; empty if it bounds bytes instead
	Sandbox string   `json:"sandbox,omitempty"` // the sandbox whose own list it is in; "" for that of all sandboxes
	Rule    string   `json:"rule,omitempty"`    // the rule that lets it pass now, which has to give way; or ""
	Stopped int64    `json:"stopped"`           // requests of the course that passed, and would have been denied
	Left    int64    `json:"left"`              // requests of the course that would still have passed
	LeftUp  int64    `json:"left_up"`           // bytes that these sent
	Others  int64    `json:"others"`            // requests of others that passed, and would have been denied
	Who     []string `json:"who,omitempty"`     // a few of these others
}

// String says what it is, what it stops, and what else it denies.
func (t Tried) String() string {
	text := t.Policy
	if t.Sandbox != "" {
		text += " of sandbox " + t.Sandbox + " alone"
	}
	if t.Rule != "" {
		text += " where " + t.Rule + " lets it pass now"
	}
	text += ", which denies " + quantity.Plural(int(t.Stopped), "request") + " of it"
	if t.Left > 0 {
		text += " (" + quantity.Bytes(t.LeftUp) + " in " + strconv.FormatInt(t.Left, 10) + " others still pass)"
	}
	if t.Others == 0 {
		return text + " and nothing else in this log"
	}
	return text + " and " + quantity.Plural(int(t.Others), "request") + " of others"
}

// Bounds of what is remembered of a course.
const (
	mostHosts  = 3 // that are denied one by one; more are denied by their domain
	mostOthers = 3
	mostTried  = 5 // that a Stop has
)

// Stops finds for each course the narrowest rule or bound that would have stopped it. It calls read twice, which passes all requests
// of the log. A course without any request has no Stop.
func Stops(ctx context.Context, courses []Course, read func(func(*record.Record)) error) (map[Course]*Stop, error) {
	all := map[string][]*course{} // by host or domain
	for _, c := range courses {
		domain, path, _ := strings.Cut(c.Destination, "/")
		all[domain] = append(all[domain], &course{Course: c, domain: domain, path: path, hosts: map[string]bool{}, rules: map[string]bool{}, sent: newSentBy()})
	}
	each := func(do func(*course, *record.Record)) error {
		return read(func(r *record.Record) {
			if !logs.Decides(r) {
				return
			}
			if r.Decision.Action != "allow" {
				for _, c := range all[""] {
					do(c, r)
				}
			}
			for host, more := logs.Host(r), true; more && host != ""; _, host, more = strings.Cut(host, ".") {
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
	up           int64           // bytes
	sent         sentBy
	opaque, many bool // some of it are tunnels or names; there are too many hosts
	rules        map[string]bool
	refused      int64
	why          string
	trials       []trial
}

// stop returns what came of the trials, those first that deny the least of others. It leaves out what would have let most of the bytes pass.
func (c *course) stop() *Stop {
	var all []Tried
	for _, t := range c.trials {
		for _, tried := range t.results() {
			if tried.Stopped > 0 && (tried.LeftUp*2 <= c.up || len(all) == 0 && t == c.trials[len(c.trials)-1]) {
				all = append(all, tried)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Tried) int {
		return cmp.Or(cmp.Compare(a.Others, b.Others), cmp.Compare(a.Stopped, b.Stopped))
	})
	s := &Stop{Tried: Tried{Deny: []string{}}, Refused: c.refused, Why: c.why}
	if len(all) > 0 {
		s.Tried, s.Wider = all[0], all[1:min(len(all), mostTried)]
	}
	return s
}

func (c *course) has(r *record.Record) bool {
	return r.Sandbox == c.Sandbox && (c.Program == "" || logs.Process(r) == c.Program) &&
		(c.path == "" || r.HTTP != nil && (r.HTTP.Path == "/"+c.path || strings.HasPrefix(r.HTTP.Path, "/"+c.path+"/")))
}

func (c *course) learn(r *record.Record) {
	if !c.has(r) {
		if r.Decision.Action == "allow" {
			c.sent.another(r)
		}
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
	c.up += upOf(r)
	c.opaque = c.opaque || r.HTTP == nil
	c.sent.add(r)
	if len(c.rules) <= 1 {
		c.rules[strings.Clone(r.Decision.Rule)] = true
	}
	if len(c.hosts) <= mostHosts {
		c.hosts[logs.Destination(r)] = true
	}
}

func upOf(r *record.Record) int64 {
	if r.Bytes == nil {
		return 0
	}
	return r.Bytes.Up
}

// propose lists what would have stopped the course: the methods and paths of one host that most bytes were sent by, its methods, bounds of
// bytes, the hosts unless they are too many, and the domain.
func (c *course) propose() {
	hosts := slices.Sorted(maps.Keys(c.hosts))
	if len(hosts) == 0 && !c.many {
		return
	}
	few := !c.many && len(hosts) <= mostHosts
	if few && len(hosts) == 1 && !c.opaque {
		methods, paths := c.sent.by(c.path)
		if len(methods) > 0 {
			if len(paths) > 0 {
				c.deny(false, "{host: "+strconv.Quote(hosts[0])+", methods: ["+strings.Join(methods, ", ")+"], paths: ["+quoted(paths)+"]}")
			}
			if c.path == "" {
				c.deny(false, "{host: "+strconv.Quote(hosts[0])+", methods: ["+strings.Join(methods, ", ")+"]}")
			}
		}
	}
	if few && c.path == "" {
		c.bound(hosts)
	}
	if few {
		c.deny(false, quotedEach(hosts)...)
	}
	lines := []string{strconv.Quote(c.domain), strconv.Quote("*." + c.domain)}
	if _, err := policy.ParsePattern("*." + c.domain); err != nil {
		lines = lines[:1]
	}
	c.deny(true, lines...)
}

func quotedEach(texts []string) (all []string) {
	for _, text := range texts {
		all = append(all, strconv.Quote(text))
	}
	return all
}

func quoted(texts []string) string { return strings.Join(quotedEach(texts), ", ") }

// deny adds lines under deny to those that are tried.
func (c *course) deny(names bool, lines ...string) {
	f, err := file.Parse("deny", []byte("version: 1\ndefault: allow\ndeny:\n  - "+strings.Join(lines, "\n  - ")+"\n"))
	if err != nil {
		return // a name or a path that no rule can have
	}
	p, err := f.Compile(file.Environment{Inspection: true})
	if err != nil {
		return
	}
	c.trials = append(c.trials, &deniedLines{lines: lines, by: New(&config.Config{File: f}, p), names: names, sandbox: c.Sandbox})
}

func (c *course) try(ctx context.Context, r *record.Record) {
	if r.Decision.Action != "allow" {
		return
	}
	for _, t := range c.trials {
		t.try(ctx, r, c.has(r))
	}
}

// A trial tries a part of a policy on the log.
type trial interface {
	// try judges a request that passed, of the course or of others.
	try(ctx context.Context, r *record.Record, own bool)
	// results returns what came of it; several if the part may stand in several places.
	results() []Tried
}

// count counts a request that passed.
func (t *Tried) count(r *record.Record, own, denied bool) {
	switch {
	case own && denied:
		t.Stopped += r.Times()
	case own:
		t.Left, t.LeftUp = t.Left+r.Times(), t.LeftUp+upOf(r)
	case denied:
		t.Others += r.Times()
		if who := logs.Who(r); len(t.Who) < mostOthers && !slices.Contains(t.Who, who) {
			t.Who = append(t.Who, strings.Clone(who))
		}
	}
}

// A deniedLines is lines under deny, of all sandboxes and of the course's own.
type deniedLines struct {
	lines    []string
	by       *Replay
	names    bool // all names of the domain are denied, also to name servers
	sandbox  string
	all, own Tried
}

func (t *deniedLines) try(ctx context.Context, r *record.Record, own bool) {
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
	t.all.count(r, own, denied)
	if r.Sandbox == t.sandbox {
		t.own.count(r, own, denied)
	}
}

// results returns the lines for the sandbox alone, too, if those for all sandboxes deny something of another one.
func (t *deniedLines) results() (all []Tried) {
	t.all.Deny, t.own.Deny = t.lines, t.lines
	t.all.Policy = "deny: [" + strings.Join(t.lines, ", ") + "]"
	if t.own.Others < t.all.Others && t.sandbox != "" && t.sandbox != sandbox.Default {
		t.own.Sandbox = t.sandbox
		t.own.Policy = t.all.Policy
		all = append(all, t.own)
	}
	return append(all, t.all)
}
