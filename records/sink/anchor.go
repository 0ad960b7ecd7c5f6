package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/records/export"
)

// Anchors send the checkpoints of one log to where whoever takes the log over has no
// say, each as it is made: what a receiver has is what egressd log verify --checkpoint
// takes. Of the checkpoints that wait for a receiver only the newest is kept: it
// vouches for all that those before it do. Anchors are safe for concurrent use.
type Anchors struct {
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
	cancel context.CancelFunc
	drain  context.CancelFunc
	ended  chan struct{}
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

// Apply has checkpoints sent to exactly these places, and the newest one to those
// that are new. An error changes nothing.
func (a *Anchors) Apply(places []string) error {
	if err := CheckAnchors(places); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]bool{}
	for _, place := range places {
		wanted[place] = true
	}
	for place, r := range a.running {
		if !wanted[place] {
			r.drain()
			r.cancel()
			delete(a.running, place)
		}
	}
	for _, place := range places {
		if a.running[place] == nil {
			if err := a.start(place); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Anchors) start(place string) error {
	t, err := newAnchorTarget(place, a.from)
	if err != nil {
		return err
	}
	r := &anchoring{
		anchor: &anchor{target: t, complain: a.complain, tell: a.tell, patience: a.patience, settle: a.settle, wake: make(chan struct{}, 1)},
		ended:  make(chan struct{}),
	}
	r.draining, r.drain = context.WithCancel(context.Background())
	r.record = loadAnchor(a.dir, place, a.complain)
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
	return nil
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
	target   target
	complain func(error)
	tell     func(string)
	patience patience
	settle   time.Duration
	draining context.Context // done once no more is to be waited for
	wake     chan struct{}   // something waits
	failures int             // in a row
	last     []byte          // that was sent
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

// again puts back what was not sent, unless there is something newer.
func (a *anchor) again(note []byte) {
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
			a.pause(ctx)
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
	a.last = note
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
	life := a.target.life()
	select {
	case <-a.wake:
	case <-settled:
		a.works()
	case <-life.Done():
		a.target.close()
		if err := context.Cause(life); errors.Is(err, errReset) {
			a.failed(a.last, err)
			a.pause(ctx)
		}
	case <-a.draining.Done():
	case <-ctx.Done():
	}
}

// failed takes note of an error, and tells the operator of the first in a row.
func (a *anchor) failed(note []byte, err error) {
	a.again(note)
	a.failures++
	a.since = time.Time{}
	if a.record.failed(err); a.failures == 1 {
		a.complain(fmt.Errorf("anchor %s: %w; the newest checkpoint is sent when it takes it", a.record.Place, err))
	}
}

func (a *anchor) works() {
	a.failures = 0
	a.record.works()
	a.tell(fmt.Sprintf("anchor %s takes checkpoints again; it has that of %d records", a.record.Place, a.record.Size))
}

// pause waits after a failure.
func (a *anchor) pause(ctx context.Context) {
	timer := time.NewTimer(a.patience.wait(a.failures))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.draining.Done():
	case <-ctx.Done():
	}
}
