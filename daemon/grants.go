package daemon

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/boottime"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
)

// Bounds of what is granted for a while.
const (
	grantsMost   = 256
	patternsMost = 64 // of one request
	grantLongest = 24 * time.Hour
)

// A grant is an allow or deny for a while, from [grantsAPI.newGrant] until it ends or is revoked. It is not changed.
type grant struct {
	admin.Grant               // what operators see of it
	rule        policy.Grant  // what the policy decides by: regrant compiles it into the next one
	end         time.Duration // by the clock of granting
	bounded     bool          // nobody asked for it: approve_within
	counts      func() bool   // nil, or whether it counts still: it ends with the run that asked
}

// over reports whether the grant has ended at a time of the clock of granting.
func (g *grant) over(at time.Duration) bool {
	return g.end <= at || g.counts != nil && !g.counts()
}

// text is the line for a person: "allow example.com to sandbox ci", "allow over deny example.com".
func (g *grant) text() string {
	return g.Does() + " " + g.Text() + toSandbox(g.Sandbox)
}

func toSandbox(name string) string {
	if name == "" {
		return ""
	}
	return " to sandbox " + name
}

// granting puts grants in force, and ends them. The list of grants belongs to the policy in force, which the reloading
// goroutine replaces. Operators change it through [grantsAPI].
type granting struct {
	daemon *Daemon
	clock  func() time.Duration       // nil for the kernel's
	turns  chan func(context.Context) // what that goroutine is to do
	failed bool                       // an end could not be put in force, which is said once; of that goroutine
	ends   endings
}

// now is the time by which grants end: it goes on while the machine sleeps, and nobody sets it.
func (gs *granting) now() time.Duration {
	if gs.clock != nil {
		return gs.clock()
	}
	return boottime.Now()
}

func (gs *granting) live() []*grant {
	now := gs.daemon.current.Load()
	if now == nil {
		return nil
	}
	at := gs.now()
	return slices.DeleteFunc(slices.Clone(now.grants), func(g *grant) bool { return g.over(at) })
}

// rulesOf are grants as a policy takes them, in an order that does not depend on theirs: the
// digest does.
func rulesOf(grants []*grant) []policy.Grant {
	all := make([]policy.Grant, len(grants))
	for i, g := range grants {
		all[i] = g.rule
	}
	slices.SortFunc(all, func(a, b policy.Grant) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// inTurn has the goroutine that reloads do something, and waits for that.
func (gs *granting) inTurn(ctx context.Context, do func(context.Context) error) error {
	told := make(chan error, 1)
	select {
	case gs.turns <- func(ctx context.Context) { told <- do(ctx) }:
	case <-gs.daemon.admin.ended:
		return &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "egressd is stopping", Hint: "egressd serve, which begins without grants"}
	case <-ctx.Done():
		return &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "egressd is busy with a reload", Hint: "the same command, once more"}
	}
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		return &admin.Unavailable{Status: http.StatusGatewayTimeout, Why: "it takes long, and goes on", Hint: "egressd allow --list, which says what came of it"}
	}
}

// regrant puts the policy in force once more, with grants in the place of those before. Open
// flows that it does not allow are cut by the time it returns. With an error, all is as before.
func (gs *granting) regrant(ctx context.Context, grants []*grant, note string) error {
	p, err := gs.daemon.Config.Granting(rulesOf(grants))
	if err != nil {
		return err
	}
	keys := gs.daemon.keys.forPolicy(gs.daemon.policy.Digest(), p.Digest())
	gs.daemon.keys.add(keys)
	if err := gs.daemon.Gate.SetPolicy(ctx, p, clipped("grants: "+note)); err != nil {
		gs.daemon.keys.drop(keys)
		return unrecorded(err)
	}
	gs.daemon.policy = p
	gs.daemon.keys.replace(keys)
	before := gs.daemon.current.Load()
	next := *before
	next.policy, next.since, next.source, next.grants = p, time.Now().UTC(), clipped("grants: "+note), grants
	gs.daemon.current.Store(&next)
	gs.failed = false
	gs.watch()
	gs.daemon.observing.watch()
	gs.daemon.audit.attest()
	gs.sayEnded(before.grants, grants)
	return nil
}

func unrecorded(err error) error {
	return &admin.Unavailable{Status: http.StatusServiceUnavailable, Why: "what cannot be recorded is not done: " + err.Error(), Hint: "free space for the audit log"}
}

// expire takes out what has ended, and says so. An allow opens nothing from that moment on, whenever this is called, and what it
// has let pass is cut (watch). Only the goroutine that reloads may call it.
func (gs *granting) expire(ctx context.Context) {
	now, at := gs.daemon.current.Load(), gs.now()
	if now == nil {
		return
	}
	var live, over []*grant
	for _, g := range now.grants {
		if g.over(at) {
			over = append(over, g)
		} else {
			live = append(live, g)
		}
	}
	if len(over) == 0 {
		return
	}
	err := gs.regrant(ctx, live, "ended "+idsOf(over))
	if err != nil && !gs.failed {
		gs.daemon.Complain(fmt.Errorf("put the end of a grant in force: %w", err))
	}
	gs.failed = err != nil
}

// sayEnded says which grants have ended of those that there were before.
func (gs *granting) sayEnded(before, after []*grant) {
	at := gs.now()
	for _, g := range before {
		if g.over(at) && !slices.ContainsFunc(after, func(other *grant) bool { return other.ID == g.ID }) {
			gs.ended(g, "has ended")
		}
	}
}

// ended says that there is a grant no longer.
func (gs *granting) ended(g *grant, how string) {
	note := "grant " + g.ID + " " + how + ": " + g.text()
	if err := gs.daemon.Gate.Records.NoteOperator(egress.OperatorNote{Note: clipped(note)}); err != nil {
		gs.daemon.Complain(fmt.Errorf("record the end of a grant: %w", err))
	}
	fmt.Fprintf(gs.daemon.Talk, "egressd: %s\n", printable.Text(note))
}

func idsOf(grants []*grant) string {
	ids := make([]string, len(grants))
	for i, g := range grants {
		ids[i] = g.ID
	}
	return strings.Join(ids, " ")
}

// beside adds the grants to p, which a configuration has just been compiled to. Those that it
// has no place for any more are dropped.
func (gs *granting) beside(ctx context.Context, c *config.Config, p *policy.Policy) (_ *policy.Policy, kept []*grant, dropped []droppedGrant) {
	kept = slices.DeleteFunc(gs.live(), func(g *grant) bool {
		why := ""
		if name := g.Sandbox; name != "" && checkSandbox(c, name) != nil {
			why = "there is no such sandbox any more"
			dropped = append(dropped, droppedGrant{g, why})
		}
		return why != ""
	})
	if len(kept) == 0 {
		return p, nil, dropped
	}
	with, err := c.Granting(rulesOf(kept))
	if err != nil {
		with, kept, dropped = oneByOne(c, p, kept, dropped)
	}
	effective, shut := opening(ctx, c, kept)
	if len(shut) == 0 {
		return with, kept, dropped
	}
	without, err := c.Granting(rulesOf(effective))
	if err != nil {
		return with, kept, dropped // lines that open nothing, and are there
	}
	return without, effective, append(dropped, shut...)
}

// opening separates grants that open something under a configuration from those that open nothing. Grants that deny are left
// out of the test: they may end before the grants that they override.
func opening(ctx context.Context, c *config.Config, grants []*grant) (effective []*grant, shut []droppedGrant) {
	undenied, err := c.Granting(rulesOf(only(policy.Allow, grants)))
	if err != nil {
		return grants, nil
	}
	undenied = undenied.Enforced()
	for _, g := range grants {
		if why := shutTo(ctx, c, undenied, g); why != nil {
			shut = append(shut, droppedGrant{g, why.Why.Text()})
			continue
		}
		effective = append(effective, g)
	}
	return effective, shut
}

// only are the grants that allow, or those that deny.
func only(effect policy.Verdict, grants []*grant) []*grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g *grant) bool { return g.rule.Effect != effect })
}

// A droppedGrant is one that a reload has no place for.
type droppedGrant struct {
	*grant
	why string
}

// oneByOne keeps the grants that the tests of the files stay green with.
func oneByOne(c *config.Config, p *policy.Policy, grants []*grant, dropped []droppedGrant) (*policy.Policy, []*grant, []droppedGrant) {
	var kept []*grant
	for _, g := range grants {
		with, err := c.Granting(rulesOf(append(slices.Clone(kept), g)))
		if err != nil {
			dropped = append(dropped, droppedGrant{g, err.Error()})
			continue
		}
		p, kept = with, append(kept, g)
	}
	return p, kept, dropped
}

// shutTo returns why an allow opens nothing to anybody by p, or nil.
func shutTo(ctx context.Context, c *config.Config, p *policy.Policy, g *grant) (why *policy.Reach) {
	if g.rule.Effect != policy.Allow {
		return nil
	}
	for _, who := range sandboxesOf(c, g.Sandbox) {
		opens, r := p.Opens(ctx, g.rule.Opening, who)
		if opens {
			return nil
		}
		why = &r
	}
	return why
}

// settle notes the grants that a reload has kept, and says which it has not.
func (gs *granting) settle(next *change) {
	now := *gs.daemon.current.Load()
	if len(now.grants) == 0 {
		return
	}
	before := now.grants
	now.grants = next.grants
	gs.daemon.current.Store(&now)
	gs.watch()
	gs.sayEnded(before, next.grants)
	for _, g := range next.dropped {
		gs.ended(g.grant, "counts no longer with the new policy ("+g.why+")")
	}
}

func (gs *granting) endGrants() {
	gs.ends.stop()
	for _, g := range gs.live() {
		gs.ended(g, "ends with egressd")
	}
}

func (gs *granting) shown(g *grant) admin.Grant {
	left := max(0, g.end-gs.now())
	v := g.Grant
	v.Until, v.Seconds = time.Now().Add(left).UTC().Truncate(time.Second), left.Seconds()
	return v
}

func (gs *granting) collectGrants(m *admin.Metrics, now *inForce) {
	by := map[string]int{}
	for _, g := range gs.live() {
		by[g.Verdict]++
	}
	m.Family("egressd_grants", admin.Gauge, "Lines that count for a while.")
	for _, verdict := range []string{"allow", "deny"} {
		m.Sample(float64(by[verdict]), "verdict", verdict)
	}
	m.Only("egressd_granted_total", admin.Counter, "Lines that were granted for a while.", float64(now.granted))
}

// endings wait for the ends of what counts for a while. A timer cuts what is open because of that alone, and tells the goroutine that
// reloads, which puts the end in force or records it. That goroutine may be busy for minutes with a reload that fetches.
type endings struct {
	come chan struct{} // something has ended: for the goroutine that reloads

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	seen    time.Duration // up to when ends were looked at, by the clock of granting
	stopped bool
}

// retryEnd is the time until egressd tries again to put the end of a grant in force, or to record it.
const retryEnd = time.Second

// watch cuts what is open only because of grants that have ended by now, and is called again when the next one ends. It is to be
// called when other grants are in force; any goroutine may.
func (gs *granting) watch() {
	e := &gs.ends
	e.mu.Lock()
	cut, over, wait := e.look(gs.daemon.current.Load().grants, gs.now()) // with the lock: the last look is at what is in force
	e.wake(wait, gs.watch)
	e.mu.Unlock()
	if cut {
		gs.daemon.Gate.Recheck(context.Background())
	}
	if over {
		e.tell()
	}
}

// look reports whether an allow has ended since the last look, whether a grant has ended and is still there, and when to look
// again; 0 where there is none. e.mu is held.
func (e *endings) look(grants []*grant, at time.Duration) (cut, over bool, wait time.Duration) {
	if len(grants) == 0 {
		return false, false, 0
	}
	wait = lookEvery // timers stand still while the machine sleeps
	for _, g := range grants {
		switch {
		case g.over(at):
			cut = cut || g.rule.Effect == policy.Allow && g.end <= at && g.end > e.seen // else its run has ended, which cuts by itself
			over, wait = true, min(wait, retryEnd)
		default:
			wait = min(wait, g.end-at)
		}
	}
	e.seen = max(e.seen, at)
	return cut, over, wait
}

// tell tells the goroutine that reloads.
func (e *endings) tell() {
	select {
	case e.come <- struct{}{}:
	default: // it is told already
	}
}

// wake has look called after wait, in the place of what was to be called before. e.mu is held.
func (e *endings) wake(wait time.Duration, look func()) {
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.timer = nil; wait > 0 && !e.stopped {
		e.timer = time.AfterFunc(wait, look)
	}
}

// stop has nothing looked at any more.
func (e *endings) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	e.wake(0, nil)
}
