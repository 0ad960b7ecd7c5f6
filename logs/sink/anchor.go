package sink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/policy"
)

// Anchors send the checkpoints of one log to where whoever takes the log over has no
// say, each as it is made: what a receiver has is what egressd log verify --checkpoint
// takes. Witnesses get them too, and sign them. Of the checkpoints that wait for a
// receiver only the newest is kept: it vouches for all that those before it do. Anchors
// are safe for concurrent use.
type Anchors struct {
	// Keys is the folder of the log's keys, in which the one for witnesses is; the usual
	// one where it is "". It is set before the first Apply.
	Keys string

	dir      string
	from     export.Origin
	complain func(error)
	tell     func(string)
	patience patience
	settle   time.Duration // how long a connection has to hold for it to work again

	mu      sync.Mutex
	newest  []byte
	running map[string]*anchoring
}

// anchoring is an anchor at work, and how to end it.
type anchoring struct {
	*anchor
	witness *Witness // where it is one
	cancel  context.CancelFunc
	drain   context.CancelFunc
	ended   chan struct{}
}

// offer leaves out for a witness a checkpoint of no record, in which there is nothing to
// vouch for.
func (r *anchoring) offer(note []byte) {
	if _, size, err := audit.CheckpointSize(note); r.witness != nil && err == nil && size == 0 {
		return
	}
	r.anchor.offer(note)
}

// NewAnchors returns Anchors without a receiver for the log in dir. The first of
// several failures in a row is handed to complain, that the receiver takes
// checkpoints again to tell; both may be called from several goroutines.
func NewAnchors(dir string, from export.Origin, complain func(error), tell func(string)) *Anchors {
	return &Anchors{dir: dir, from: from, complain: complain, tell: tell, patience: usualPatience, settle: 2 * time.Second, running: map[string]*anchoring{}}
}

// CheckAnchors reports whether places are what audit.anchors may hold.
func CheckAnchors(places []string) error {
	for _, place := range places {
		if _, err := newAnchorTarget(place, export.Origin{}); err != nil {
			return err
		}
	}
	return nil
}

func newAnchorTarget(place string, from export.Origin) (target, error) {
	kind, at, ok := policy.CutAnchor(place)
	if !ok {
		return nil, fmt.Errorf("anchor %q: it is not a place for checkpoints", place)
	}
	process := os.Getpid()
	message := func(b []byte, e export.Entry) []byte {
		return export.SyslogCheckpoint(b, e.Text, now(), from, process)
	}
	switch kind {
	case "file":
		return &file{path: at, notes: true}, nil
	case "unix", "tcp":
		return newStream(kind, at, nil, appendLine), nil
	case "syslog:unix":
		return newSyslogOf("unix:"+at, nil, message)
	case "syslog:udp":
		return newSyslogOf("udp:"+at, nil, message)
	default:
		return newSyslogOf("tcp:"+at, nil, message)
	}
}

// Send hands a checkpoint, a signed note, to all receivers. It waits for nothing and
// does not keep the bytes: it is what audit.Options.Anchor is for. One that is no
// checkpoint yet, nil, is none.
func (a *Anchors) Send(note []byte) {
	if len(note) == 0 {
		return
	}
	note = bytes.Clone(note)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newest = note
	for _, r := range a.running {
		r.offer(note)
	}
}

// Apply has checkpoints sent to exactly these places and witnesses, and the newest one
// to those that are new or have changed. An error changes nothing.
func (a *Anchors) Apply(places []string, witnesses []Witness) error {
	if err := errors.Join(CheckAnchors(places), CheckWitnesses(witnesses)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]*Witness{}
	for _, place := range places {
		wanted[place] = nil
	}
	for i := range witnesses {
		wanted[witnesses[i].URL] = &witnesses[i]
	}
	for place, r := range a.running {
		if w, ok := wanted[place]; !ok || w != nil && !w.same(r.witness) {
			r.drain()
			r.cancel()
			delete(a.running, place)
		}
	}
	for place, w := range wanted {
		if a.running[place] != nil {
			continue
		}
		r := &anchoring{anchor: a.newAnchor("anchor", place), ended: make(chan struct{})}
		if err := a.aim(r, w); err != nil {
			return err
		}
		a.start(place, r)
	}
	return nil
}

func (a *Anchors) newAnchor(kind, place string) *anchor {
	return &anchor{
		kind: kind, complain: a.complain, tell: a.tell, patience: a.patience, settle: a.settle,
		wake: make(chan struct{}, 1), record: loadAnchor(a.dir, place, a.complain),
	}
}

// aim makes the target of an anchor, of a witness where there is one.
func (a *Anchors) aim(r *anchoring, w *Witness) (err error) {
	if w == nil {
		r.target, err = newAnchorTarget(r.record.Place, a.from)
		return err
	}
	copied := *w
	t, err := newWitnessTarget(&copied, a.dir, a.Keys, a.from, a.tell)
	if err != nil {
		return err
	}
	t.known = r.record.Size
	r.target, r.kind, r.witness = t, "witness", &copied
	r.every, r.again = cmp.Or(w.Every, witnessEvery), cosignAgain
	return nil
}

func (a *Anchors) start(place string, r *anchoring) {
	r.draining, r.drain = context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	a.running[place] = r
	if a.newest != nil {
		r.offer(a.newest)
	}
	go func() {
		defer close(r.ended)
		r.run(ctx)
	}()
}

// Stop ends all anchors. What they have not sent is tried once more, and given up
// when within is over. A receiver that hangs in the kernel is not waited for.
func (a *Anchors) Stop(within time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []<-chan struct{}
	for _, r := range a.running {
		r.drain()
		all = append(all, r.ended)
	}
	await(all, within)
	for _, r := range a.running {
		r.cancel()
	}
	await(all, letGo)
	clear(a.running)
}

// letGo is how long a send may take to notice that it was cancelled.
const letGo = 200 * time.Millisecond

// An anchor is one receiver of checkpoints.
type anchor struct {
	kind     string // for people
	target   target
	complain func(error)
	tell     func(string)
	patience patience
	settle   time.Duration
	every    time.Duration   // from one checkpoint to the next, at least; 0 for at once
	again    time.Duration   // after which the last one is sent once more; 0 for never
	draining context.Context // done once no more is to be waited for
	wake     chan struct{}   // something waits
	failures int             // in a row
	last     []byte          // that was sent
	sent     time.Time       // when
	since    time.Time       // sending has worked; zero where it does not

	mu      sync.Mutex
	waiting []byte // the newest that was not sent, or nil

	record anchorRecord
}

// offer puts a checkpoint in the place of one that waits.
func (a *anchor) offer(note []byte) {
	a.mu.Lock()
	a.waiting = note
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// putBack has sent again what was not sent, or is to be sent once more, unless there is
// something newer.
func (a *anchor) putBack(note []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = note
	}
}

func (a *anchor) take() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	note := a.waiting
	a.waiting = nil
	return note
}

// run sends until ctx is done, or until all is sent, or was tried once more, when
// draining is done.
func (a *anchor) run(ctx context.Context) {
	defer a.target.close()
	defer a.record.save()
	for ctx.Err() == nil {
		last := a.draining.Err() != nil
		if early := a.every - time.Since(a.sent); early > 0 && !last {
			a.rest(ctx, early)
			continue
		}
		note := a.take()
		if note == nil && last {
			return
		}
		if note == nil {
			a.idle(ctx)
			continue
		}
		if err := a.send(ctx, note); err != nil {
			a.failed(note, err)
			if last {
				return
			}
			a.pause(ctx, err)
		}
	}
}

func (a *anchor) send(ctx context.Context, note []byte) error {
	within, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	if a.target.life().Err() != nil { // it has ended since
		a.target.close()
	}
	err := a.target.send(within, &batch{entries: []export.Entry{{Text: note}}})
	if err != nil {
		return err
	}
	a.last, a.sent = note, time.Now()
	if a.since.IsZero() {
		a.since = time.Now()
	}
	a.record.sent(note)
	return nil
}

// idle waits for something to send. A receiver that broke off without having read
// all that its kernel had for it gets the last checkpoint again.
func (a *anchor) idle(ctx context.Context) {
	wait := time.NewTimer(max(0, a.settle-time.Since(a.since)))
	defer wait.Stop()
	settled := wait.C
	if a.failures == 0 {
		settled = nil
	}
	var again <-chan time.Time
	if a.again > 0 && a.last != nil {
		repeat := time.NewTimer(time.Until(a.sent.Add(a.again)))
		defer repeat.Stop()
		again = repeat.C
	}
	life := a.target.life()
	select {
	case <-a.wake:
	case <-settled:
		a.works()
	case <-again:
		a.putBack(a.last)
	case <-life.Done():
		a.target.close()
		if err := context.Cause(life); errors.Is(err, errReset) {
			a.failed(a.last, err)
			a.pause(ctx, err)
		}
	case <-a.draining.Done():
	case <-ctx.Done():
	}
}

// failed takes note of an error, and tells the operator of the first in a row.
func (a *anchor) failed(note []byte, err error) {
	a.putBack(note)
	a.failures++
	a.since = time.Time{}
	if a.record.failed(err); a.failures == 1 {
		a.complain(fmt.Errorf("%s %s: %w; the newest checkpoint is sent when it takes it", a.kind, a.record.Place, err))
	}
}

func (a *anchor) works() {
	a.failures = 0
	a.record.works()
	a.tell(fmt.Sprintf("%s %s takes checkpoints again; it has that of %d records", a.kind, a.record.Place, a.record.Size))
}

// pause waits after a failure.
func (a *anchor) pause(ctx context.Context, err error) {
	wait := a.patience.wait(a.failures)
	var later *laterError
	if errors.As(err, &later) {
		wait = max(wait, min(later.after, 2*a.patience.most))
	}
	a.rest(ctx, wait)
}

func (a *anchor) rest(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.draining.Done():
	case <-ctx.Done():
	}
}
