package egress

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// An Alarm says that a sandbox was about to send a canary: see [Gate.SetCanaries].
type Alarm struct {
	ID          record.ID
	Sandbox     string
	Program     string // path of its file, "" where it is not known
	Destination string // without the canary, where it was in that
	Canary      string // its name
	Where       string // "name", "path", "query", "header NAME", "body", "message", "first bytes"
	Encoding    string
}

// SetCanaries has everything refused from now on that holds one of the canaries, as
// far as it can be read: names, whatever way they come, the heads of requests, and what
// the ways in give to a [Guard]. nil is none, and costs nothing.
//
// Each refusal has a record of kind signal beside its own, which says which canary
// was found where, and Config.Alarm is told. No record holds a canary.
func (g *Gate) SetCanaries(c *secret.Canaries) { g.canaries.Store(c) }

var holdsCanary = policy.Decision{
	Class: policy.Canary, Rule: "canary", Layer: policy.Builtin,
	Reason: "it holds a text that nobody has a reason to send",
}

// A sighting is where a canary was found.
type sighting struct {
	secret.Finding
	where string
}

// searched is the refusal of what holds a canary, or nil. p is the policy in force. The search takes a turn: a sandbox can
// send any number of heads at once.
func (f *Flow) searched(ctx context.Context, p *policy.Policy, r *policy.Request) *policy.Decision {
	c := f.gate.canaries.Load()
	if c == nil {
		return nil
	}
	end, stopped := f.searchTurn(ctx, r)
	if stopped != nil {
		return stopped
	}
	defer end()
	if _, found := sightingIn(c, r); !found {
		return nil
	}
	refusal := holdsCanary
	refusal.Policy = p.Digest()
	return &refusal
}

// searching limits the searches of heads for canaries. It leaves one processor to all else if the machine has several.
// A head of 64 KiB takes up to 5 ms, and a sandbox can send hundreds at once.
var searching = fair.NewTurns(max(1, runtime.GOMAXPROCS(0)-1))

// searchTurn waits for the turn of a search. It returns a denial if egressd stops before. The caller calls end after the search.
func (f *Flow) searchTurn(ctx context.Context, r *policy.Request) (end func(), d *policy.Decision) {
	if searching.TakeNow() {
		return searching.Give, nil
	}
	ctx, cancel := f.gate.untilShut(context.WithoutCancel(ctx))
	defer cancel()
	if searching.Take(ctx, r.Sandbox.Holder(), r.Sandbox.Name) != nil {
		refusal := stopping
		return nil, &refusal
	}
	return searching.Give, nil
}

// sightingIn looks for a canary in what a way in has read.
func sightingIn(c *secret.Canaries, r *policy.Request) (s sighting, found bool) {
	look := func(where string, find func(string) (secret.Finding, bool), text string) bool {
		if text == "" || found {
			return found
		}
		s.Finding, found = find(text)
		s.where = where
		return found
	}
	look("name", c.FindName, r.Destination.Host)
	if r.TLS != nil {
		look("server name", c.FindName, r.TLS.ServerName)
		look("server name", c.FindName, r.TLS.NoName)
	}
	if h := r.HTTP; h != nil && !found {
		look("method", c.Find, h.Method)
		look("path", c.Find, h.Path)
		look("query", c.Find, h.Query)
		for name, values := range h.Header {
			look("header", c.Find, name)
			for _, value := range values {
				look("header "+name, c.Find, value)
			}
		}
	}
	return s, found
}

// sight records what was found and raises the alarm. The refusal itself is in a
// record of its own. It may wait for the log, so f.mu must not be held: others take that lock.
func (f *Flow) sight(s sighting) {
	line, alarm := f.signalOf(s)
	f.gate.Records.signal(line, alarm)
}

// signalOf encodes what was found. It does not wait.
func (f *Flow) signalOf(s sighting) (line []byte, a Alarm) {
	var e encoder
	e.Line = make([]byte, 0, 512)
	e.Open("")
	e.Text("kind", string(record.KindSignal))
	e.Text("flow", f.id.String())
	e.Text("sandbox", f.request.Sandbox.Name)
	e.Text("via", string(f.request.Via))
	e.AddrPort("src", f.src)
	e.destination(f)
	e.process(f.request.Process)
	e.Key("signal")
	e.canary(s)
	e.Close()
	f.gate.canaries.mask(e.Line)
	return e.Line, f.alarmOf(s)
}

// signal records what signalOf has encoded, and raises the alarm.
func (w *Records) signal(line []byte, a Alarm) {
	_, _ = w.gate.config.Log.Append(line) // where that fails, so does whatever comes next
	if tell := w.gate.config.Alarm; tell != nil {
		tell(a)
	}
}

// canary writes what was found.
func (e *encoder) canary(s sighting) {
	e.Line = append(e.Line, '{')
	e.Text("what", "canary")
	e.Text("name", s.Name)
	e.TextWithin("where", s.where, 128)
	e.Text("encoding", s.Encoding)
	e.Close()
}

func (f *Flow) alarmOf(s sighting) Alarm {
	a := Alarm{ID: f.id, Sandbox: f.request.Sandbox.Name, Canary: s.Name, Where: s.where, Encoding: s.Encoding}
	a.Destination = f.gate.canaries.without(f.request.Destination.Host)
	if p := f.request.Process; p != nil {
		a.Program = p.Exe
	}
	return a
}

// sighted is what was found where searched has refused, or nil.
func (f *Flow) sighted() *sighting {
	if c := f.gate.canaries.Load(); c != nil && f.decision.Class == policy.Canary {
		if s, found := sightingIn(c, f.request); found {
			return &s
		}
	}
	return nil
}

// canaries are those that a gate looks for; nil: none.
type canaries struct {
	atomic.Pointer[secret.Canaries]
}

// without returns a name for records: without the labels that hold a canary.
func (all *canaries) without(name string) string {
	c := all.Load()
	if c == nil {
		return name
	}
	if _, found := c.FindName(name); !found {
		return name
	}
	registered := policy.Registrable(name)
	if _, found := c.FindName(registered); found || registered == "" {
		return "*"
	}
	return "*." + registered
}

// mask overwrites the canaries in a record. A canary may be in any member, such as the arguments of a program.
func (all *canaries) mask(record []byte) {
	if c := all.Load(); c != nil {
		c.Mask(record)
	}
}

// masks is mask, and reports whether there was anything to mask.
func (all *canaries) masks(text []byte) bool {
	before := string(text)
	all.mask(text)
	return string(text) != before
}

// A Guard looks for canaries in what a flow carries to its upstream. It is for one
// goroutine at a time.
type Guard struct {
	flow  *Flow
	where string
	watch *secret.Watch
	seen  int64
	held  []byte // what was seen and not let go
}

// HeldMost bounds what waits for a canary to be complete: any number of bytes that
// do not count may stand in one.
const HeldMost = 64 << 10

// See takes the next bytes, which are not to go on before Free says so. Its error is
// that of Pass. A nil Guard finds nothing.
func (u *Guard) See(p []byte) error {
	if u == nil {
		return nil
	}
	if f, _, found := u.watch.See(p); found {
		return u.flow.Caught(f, u.where)
	}
	u.seen += int64(len(p))
	return nil
}

// Seen is how many bytes See was given, and Free how many of them may go on.
func (u *Guard) Seen() int64 { return u.seen }

// Free is described at Seen.
func (u *Guard) Free() int64 { return u.watch.Free() }

// Pass takes the next bytes and returns those that may go on, which are valid until
// the next call. Once a canary was found the error is a [*Refusal]: nothing more may
// go up, and the flow can only be closed. A nil Guard passes everything.
func (u *Guard) Pass(p []byte) ([]byte, error) {
	if u == nil || len(p) == 0 {
		return p, nil
	}
	if err := u.See(p); err != nil {
		return nil, err
	}
	return u.Release(p), nil
}

// Release returns what may go on of p, which are all bytes that See was given since
// the last time, and of what was held back before; it is valid until the next call.
func (u *Guard) Release(p []byte) []byte {
	wait := int(u.seen - u.watch.Free())
	if len(u.held) == 0 && wait == 0 {
		return p
	}
	all := slices.Concat(u.held, p)
	wait = min(wait, len(all), HeldMost)
	u.held = slices.Clone(all[len(all)-wait:]) // or all of it stays, which may be long
	return all[:len(all)-wait]
}

// Rest returns what was held back, when no more comes.
func (u *Guard) Rest() []byte {
	if u == nil {
		return nil
	}
	rest := u.held
	u.held = nil
	return rest
}
