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

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/logs/export"
	policyfile "github.com/egressd/egressd/policy/file"
)

// Anchors sends the checkpoints of a log to receivers outside the control of an attacker on this machine.
// The command egressd log verify --checkpoint takes the received checkpoints. Witnesses also receive them
// and sign them. For each receiver only the newest unsent checkpoint is kept, since it vouches for all
// records of the earlier ones. Anchors is safe for concurrent use.
type Anchors struct {
	// Keys is the folder with the log's keys, including the key for witnesses. The default folder is used
	// if it is "". Keys must be set before the first Apply.
	Keys string

	dir      string
	from     export.Origin
	onError  func(error)
	onNotice func(string)
	backoff  backoff
	settle   time.Duration // time without a failure after which a receiver counts as working again

	mu      sync.Mutex
	newest  []byte
	running map[string]*runningAnchor
}

// A runningAnchor is an anchor and the means to end it.
type runningAnchor struct {
	*anchor
	witness *Witness // nil unless the receiver is a witness
	cancel  context.CancelFunc
	drain   context.CancelFunc
	ended   chan struct{}
}

// put passes a checkpoint to the anchor. A witness gets no checkpoint of an empty log.
func (r *runningAnchor) put(note []byte) {
	if _, size, err := verify.CheckpointSize(note); r.witness != nil && err == nil && size == 0 {
		return
	}
	r.anchor.put(note)
}

// NewAnchors returns Anchors without receivers for the log in dir. It calls onError for the first of
// several consecutive failures of a receiver, and onNotice when the receiver works again. Both must be
// safe for concurrent use.
func NewAnchors(dir string, from export.Origin, onError func(error), onNotice func(string)) *Anchors {
	return &Anchors{dir: dir, from: from, onError: onError, onNotice: onNotice, backoff: usualBackoff, settle: 2 * time.Second, running: map[string]*runningAnchor{}}
}

// CheckAnchors returns an error if an address is not valid in audit.anchors.
func CheckAnchors(addresses []string) error {
	for _, address := range addresses {
		if _, err := newAnchorTarget(address, export.Origin{}); err != nil {
			return err
		}
	}
	return nil
}

func newAnchorTarget(address string, from export.Origin) (target, error) {
	kind, at, ok := policyfile.CutAnchor(address)
	if !ok {
		return nil, fmt.Errorf("anchor %q: it is not a place for checkpoints", address)
	}
	process := os.Getpid()
	message := func(b []byte, e export.EncodedRecord) []byte {
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

// Send queues a checkpoint, which is a signed note, for all receivers. It does not block and copies note.
// It implements audit.Options.Anchor. A nil note is ignored.
func (a *Anchors) Send(note []byte) {
	if len(note) == 0 {
		return
	}
	note = bytes.Clone(note)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newest = note
	for _, r := range a.running {
		r.put(note)
	}
}

// Apply starts and stops receivers so that exactly the given anchors and witnesses run. New and changed
// receivers get the newest checkpoint. If Apply returns an error, nothing has changed.
func (a *Anchors) Apply(addresses []string, witnesses []Witness) error {
	if err := errors.Join(CheckAnchors(addresses), CheckWitnesses(witnesses)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]*Witness{}
	for _, address := range addresses {
		wanted[address] = nil
	}
	for i := range witnesses {
		wanted[witnesses[i].URL] = &witnesses[i]
	}
	for address, r := range a.running {
		if w, ok := wanted[address]; !ok || w != nil && !w.same(r.witness) {
			r.drain()
			r.cancel()
			delete(a.running, address)
		}
	}
	for address, w := range wanted {
		if a.running[address] != nil {
			continue
		}
		r := &runningAnchor{anchor: a.newAnchor("anchor", address), ended: make(chan struct{})}
		if err := a.setTarget(r, w); err != nil {
			return err
		}
		a.start(address, r)
	}
	return nil
}

func (a *Anchors) newAnchor(kind, address string) *anchor {
	return &anchor{
		kind: kind, onError: a.onError, onNotice: a.onNotice, backoff: a.backoff, settle: a.settle,
		wake: make(chan struct{}, 1), record: loadAnchor(a.dir, address, a.onError),
	}
}

// setTarget sets the target of an anchor; w is nil unless the receiver is a witness.
func (a *Anchors) setTarget(r *runningAnchor, w *Witness) (err error) {
	if w == nil {
		r.target, err = newAnchorTarget(r.record.Place, a.from)
		return err
	}
	copied := *w
	t, err := newWitnessTarget(&copied, a.dir, a.Keys, a.from, a.onNotice)
	if err != nil {
		return err
	}
	t.known = r.record.Size
	r.target, r.kind, r.witness = t, "witness", &copied
	r.every, r.again = cmp.Or(w.Every, witnessEvery), cosignAgain
	return nil
}

func (a *Anchors) start(address string, r *runningAnchor) {
	r.draining, r.drain = context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	a.running[address] = r
	if a.newest != nil {
		r.put(a.newest)
	}
	go func() {
		defer close(r.ended)
		r.run(ctx)
	}()
}

// Stop ends all anchors. Each tries to send its waiting checkpoint once and is cancelled after within.
// Stop does not wait for a receiver that blocks in the kernel.
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
	await(all, cancelWithin)
	clear(a.running)
}

// cancelWithin is the time that a send may take to return after it was cancelled.
const cancelWithin = 200 * time.Millisecond

// An anchor is one receiver of checkpoints.
type anchor struct {
	kind     string // "anchor" or "witness", for messages
	target   target
	onError  func(error)
	onNotice func(string)
	backoff  backoff
	settle   time.Duration
	every    time.Duration   // minimum time between two checkpoints; 0 for none
	again    time.Duration   // time after which the last checkpoint is sent again; 0 for never
	draining context.Context // done when the anchor must send what waits and end
	wake     chan struct{}   // a checkpoint waits
	failures int             // consecutive
	last     []byte          // last note sent
	sent     time.Time       // time of last
	since    time.Time       // start of the period without failures; zero after a failure

	mu      sync.Mutex
	waiting []byte // newest unsent checkpoint, or nil

	record anchorRecord
}

// put replaces the waiting checkpoint.
func (a *anchor) put(note []byte) {
	a.mu.Lock()
	a.waiting = note
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// putBack queues note again unless a newer checkpoint waits.
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

// run sends checkpoints until ctx is done. When draining is done, run tries the waiting checkpoint once
// and returns.
func (a *anchor) run(ctx context.Context) {
	defer a.target.close()
	defer a.record.save()
	for ctx.Err() == nil {
		last := a.draining.Err() != nil
		if early := a.every - time.Since(a.sent); early > 0 && !last {
			rest(ctx, a.draining, early)
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
			rest(ctx, a.draining, a.backoff.after(a.failures, err))
		}
	}
}

func (a *anchor) send(ctx context.Context, note []byte) error {
	within, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	if a.target.life().Err() != nil { // the connection ended meanwhile
		a.target.close()
	}
	err := a.target.send(within, &batch{entries: []export.EncodedRecord{{Text: note}}})
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

// idle waits for a checkpoint. If the receiver resets the connection with unread data, idle queues the
// last checkpoint again.
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
			rest(ctx, a.draining, a.backoff.after(a.failures, err))
		}
	case <-a.draining.Done():
	case <-ctx.Done():
	}
}

// failed records an error. The operator is told about the first of several consecutive errors.
func (a *anchor) failed(note []byte, err error) {
	a.putBack(note)
	a.failures++
	a.since = time.Time{}
	if a.record.failed(err); a.failures == 1 {
		a.onError(fmt.Errorf("%s %s: %w; the newest checkpoint is sent when it takes it", a.kind, a.record.Place, err))
	}
}

func (a *anchor) works() {
	a.failures = 0
	a.record.works()
	a.onNotice(fmt.Sprintf("%s %s takes checkpoints again; it has that of %d records", a.kind, a.record.Place, a.record.Size))
}
