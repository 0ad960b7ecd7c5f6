package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/logs/export"
	policyfile "github.com/egressd/egressd/policy/file"
)

// Anchors sends the checkpoints of a log to receivers outside the control of an attacker on this machine.
// The command egressd log verify --checkpoint takes the received checkpoints. For each receiver only the newest unsent checkpoint is kept, since it vouches for all
// records of the earlier ones. Anchors is safe for concurrent use.
type Anchors struct {
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
	cancel context.CancelFunc
	drain  context.CancelFunc
	ended  chan struct{}
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

// Apply starts and stops receivers so that exactly the given anchors run. New receivers get the newest
// checkpoint. If Apply returns an error, nothing has changed.
func (a *Anchors) Apply(addresses []string) error {
	if err := CheckAnchors(addresses); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for address, r := range a.running {
		if !slices.Contains(addresses, address) {
			r.drain()
			r.cancel()
			delete(a.running, address)
		}
	}
	for _, address := range addresses {
		if a.running[address] != nil {
			continue
		}
		r := &runningAnchor{anchor: a.newAnchor(address), ended: make(chan struct{})}
		var err error
		if r.target, err = newAnchorTarget(address, a.from); err != nil {
			return err
		}
		a.start(address, r)
	}
	return nil
}

func (a *Anchors) newAnchor(address string) *anchor {
	return &anchor{
		onError: a.onError, onNotice: a.onNotice, backoff: a.backoff, settle: a.settle,
		wake: make(chan struct{}, 1), record: loadAnchor(a.dir, address, a.onError),
	}
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
	target   target
	onError  func(error)
	onNotice func(string)
	backoff  backoff
	settle   time.Duration
	draining context.Context // done when the anchor must send what waits and end
	wake     chan struct{}   // a checkpoint waits
	failures int             // consecutive
	last     []byte          // last note sent
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
	a.last = note
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
	life := a.target.life()
	select {
	case <-a.wake:
	case <-settled:
		a.works()
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
		a.onError(fmt.Errorf("anchor %s: %w; the newest checkpoint is sent when it takes it", a.record.Place, err))
	}
}

func (a *anchor) works() {
	a.failures = 0
	a.record.works()
	a.onNotice(fmt.Sprintf("anchor %s takes checkpoints again; it has that of %d records", a.record.Place, a.record.Size))
}
