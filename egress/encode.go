package egress

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// recordOf is what a record says beyond its flow.
type recordOf struct {
	kind record.Kind
	end  End // of a close record
	took time.Duration
	raw  []byte // of a refused record
	note string

	// crowd is for a refusal that may be of any name, and come thousands of times a
	// second: only the first one is written by itself.
	crowd bool

	canary *sighting // that is why it is refused, or nil
}

const (
	rawMost  = 256
	pathMost = 1536

	methodMost = 64
	listMost   = 16
)

// append writes one record of f to the log.
func (f *Flow) append(r recordOf) (int64, error) { return f.gate.config.Log.Append(f.encode(r)) }

// encode counts and makes a record of f.
func (f *Flow) encode(r recordOf) []byte {
	f.note(r)
	e := encoder{b: make([]byte, 0, 640)}
	e.flow(f, r)
	f.gate.mask(e.b)
	return e.b
}

// note counts what a record says, for all who want to know.
func (f *Flow) note(r recordOf) {
	f.gate.counts.note(f, r)
	f.gate.config.Tally.note(f, r)
	f.gate.stays.of(f.request.Sandbox.Stay).note(f, r)
}

func (g *Gate) notePolicy(p *policy.Policy, note string) error {
	g.Settle()
	e := encoder{b: make([]byte, 0, 256)}
	e.open("")
	e.str("kind", string(record.KindPolicy))
	e.open("decision")
	e.str("policy", p.Digest())
	e.close()
	if s := p.Shadow(); s != nil {
		e.open("shadow")
		e.str("policy", s.Digest())
		e.close()
	}
	e.str("note", note)
	e.close()
	_, err := g.config.Log.Append(e.b)
	return err
}

// Note records what happened to egressd itself: a start, a stop, a recovery.
func (g *Gate) Note(kind record.Kind, note string) error {
	g.Settle()
	_, err := g.config.Log.Append(NoteRecord(kind, note))
	return err
}

// NoteRecord is the record of what happened to egressd itself. A note is cut at 1024 bytes.
func NoteRecord(kind record.Kind, note string) []byte {
	e := encoder{b: make([]byte, 0, 256)}
	e.open("")
	e.str("kind", string(kind))
	e.str("note", note)
	e.close()
	return e.b
}

// An encoder appends canonical JSON: members in a fixed order, absent parts
// left out, printable ASCII only.
type encoder struct {
	b []byte

	common bool // leave out what may differ among denials that repeat
	idAt   int  // where the id was left out
}

func (e *encoder) flow(f *Flow, r recordOf) {
	e.open("")
	e.str("kind", string(r.kind))
	src := f.src.addrPort()
	if e.common {
		e.idAt = len(e.b)
		src = withoutPort(src)
	} else {
		e.str("flow", f.id.String())
	}
	e.str("sandbox", f.request.Sandbox.Name)
	e.container(f.request.Sandbox.Container)
	e.str("via", string(f.request.Via))
	e.addrPort("src", src)
	if !e.common || !r.crowd {
		e.asked(f, r)
	}
	e.process(f.request.Process)
	e.decision(f.decision)
	e.shadow(f.decision.Shadow)
	if r.kind == record.KindClose {
		e.ended(r)
	}
	e.raw(r.raw)
	e.str("note", r.note+r.end.Note)
	e.close()
}

// summed writes what is recorded of the denials of one sum.
func (e *encoder) summed(by summedBy, f *Flow, r recordOf) {
	if by == byKind {
		e.flow(f, r)
		return
	}
	e.open("")
	e.str("kind", string(r.kind))
	e.idAt = len(e.b)
	e.str("sandbox", f.request.Sandbox.Name)
	if by == byDomain {
		e.container(f.request.Sandbox.Container)
	}
	e.str("via", string(f.request.Via))
	if by == byDomain {
		e.addrPort("src", withoutPort(f.src.addrPort()))
		e.domain(f)
		e.process(f.request.Process)
	} else if f.named() != "" {
		e.open("dst")
		e.str("host", "*")
		e.close()
	}
	e.open("decision")
	e.sumOf(by, f.decision)
	e.flag("log", f.decision.Log)
	e.str("policy", f.decision.Policy)
	e.close()
	if d := f.decision.Shadow; d != nil {
		e.open("shadow")
		e.sumOf(by, d)
		e.str("policy", d.Policy)
		e.close()
	}
	e.close()
}

// domain writes what the names of one registered domain have in common.
func (e *encoder) domain(f *Flow) {
	if q := f.request.DNS; q != nil {
		e.open("dns")
		e.str("name", domainOf(f.shown(q.Name)))
		e.str("type", q.Type)
		e.close()
		return
	}
	if dst := &f.request.Destination; dst.Host != "" {
		e.open("dst")
		e.str("host", domainOf(f.shown(dst.Host)))
		e.num("port", int64(dst.Port))
		e.str("class", f.decision.AddressClass)
		e.close()
	}
	if h := f.request.HTTP; h != nil {
		e.open("http")
		e.cut("method", h.Method, methodMost)
		e.close()
	}
}

// sumOf writes of a decision what the denials of a sum have in common. A reason names what was
// asked for, so there is none.
func (e *encoder) sumOf(by summedBy, d *policy.Decision) {
	e.str("action", d.Verdict.Action())
	if by == byDomain {
		e.cut("rule", d.Rule, rawMost)
	}
	e.str("layer", string(d.Layer))
	e.str("class", string(d.Class))
}

// asked writes what was to be reached or known.
func (e *encoder) asked(f *Flow, r recordOf) {
	e.destination(f)
	e.tls(f)
	e.http(f, r.end.Status)
	if r.kind == record.KindDNS {
		e.question(f)
	}
}

// question writes what a sandbox asked a name server, or what the gate asks one
// for a flow.
func (e *encoder) question(f *Flow) {
	name, kind := f.request.Destination.Host, "A AAAA"
	if q := f.request.DNS; q != nil {
		name, kind = q.Name, q.Type
	}
	e.open("dns")
	e.str("name", f.shown(name))
	e.str("type", kind)
	e.close()
}

func (e *encoder) destination(f *Flow) {
	dst := &f.request.Destination
	asked := f.request.DNS != nil
	if dst.Host == "" || asked && f.decision.AddressClass == "" {
		return
	}
	e.open("dst")
	e.str("host", f.shown(dst.Host))
	if !asked { // which is about no port
		e.num("port", int64(dst.Port))
	}
	e.addrs(dst.Addrs)
	if dialled := f.dialled.addrPort(); dialled.IsValid() {
		e.key("addr")
		e.b = append(e.b, '"')
		e.b = dialled.Addr().AppendTo(e.b)
		e.b = append(e.b, '"')
	}
	e.str("class", f.decision.AddressClass)
	e.close()
}

func (e *encoder) addrs(addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	e.key("addrs")
	e.b = append(e.b, '[')
	for i, a := range addrs[:min(len(addrs), listMost)] {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		e.b = append(e.b, '"')
		e.b = a.AppendTo(e.b)
		e.b = append(e.b, '"')
	}
	e.b = append(e.b, ']')
}

func (e *encoder) tls(f *Flow) {
	h := f.request.TLS
	if h == nil {
		return
	}
	e.open("tls")
	name := h.ServerName
	if name == "" {
		name = h.NoName
	}
	e.cut("sni", f.shown(name), rawMost)
	e.list("alpn", h.ALPN)
	e.flag("ech", h.ECH)
	e.str("ja4", h.JA4)
	e.flag("inspected", h.Inspected)
	e.close()
}

func (e *encoder) http(f *Flow, status int) {
	h := f.request.HTTP
	if h == nil {
		return
	}
	e.open("http")
	e.cut("method", h.Method, methodMost)
	e.cut("path", h.Path, pathMost)
	if h.Authority != f.request.Destination.String() {
		e.cut("authority", f.shown(h.Authority), rawMost)
	}
	if status != 0 {
		e.num("status", int64(status))
	}
	e.close()
}

// Lengths of what an engine says of containers, in bytes.
const (
	containerID   = 12 // as docker ps shows it
	containerText = 128
	imageText     = rawMost
)

func (e *encoder) container(c *policy.Container) {
	if c == nil {
		return
	}
	e.open("container")
	e.str("id", c.ID[:min(len(c.ID), containerID)])
	e.cut("name", c.Name, containerText)
	e.cut("image", c.Image, imageText)
	e.cut("project", c.Project, containerText)
	e.cut("service", c.Service, containerText)
	e.close()
}

func (e *encoder) process(p *policy.Process) {
	if p == nil {
		return
	}
	e.open("process")
	if !e.common {
		e.num("pid", int64(p.PID))
	}
	e.cut("exe", p.Exe, rawMost)
	if !e.common {
		e.list("argv", p.Argv)
	}
	e.close()
}

func (e *encoder) decision(d *policy.Decision) {
	e.open("decision")
	e.verdict(d)
	if d.Class != "" {
		e.list("allowed_if", d.AllowedIf)
	}
	e.flag("log", d.Log)
	e.str("policy", d.Policy)
	e.list("question", strings.Fields(d.Question))
	e.close()
}

func (e *encoder) verdict(d *policy.Decision) {
	e.str("action", d.Verdict.Action())
	e.cut("rule", d.Rule, rawMost)
	e.str("layer", string(d.Layer))
	e.cut("reason", d.Reason, 2*rawMost)
	e.str("class", string(d.Class))
}

// shadow is what the policy's shadow would have decided; nil where it agrees.
func (e *encoder) shadow(d *policy.Decision) {
	if d == nil {
		return
	}
	e.open("shadow")
	e.verdict(d)
	e.flag("inspect", d.Verdict == policy.Inspect)
	e.str("policy", d.Policy)
	e.close()
}

func (e *encoder) ended(r recordOf) {
	e.open("bytes")
	e.num("up", r.end.Up)
	e.num("down", r.end.Down)
	e.close()
	e.num("duration_ms", r.took.Milliseconds())
	e.str("outcome", r.end.Outcome)
}

func (e *encoder) raw(b []byte) {
	if len(b) > 0 {
		e.key("raw")
		e.quote(string(b[:min(len(b), rawMost)]), escapeMost*rawMost)
	}
}

func (e *encoder) open(name string) {
	if name != "" {
		e.key(name)
	}
	e.b = append(e.b, '{')
}

func (e *encoder) close() { e.b = append(e.b, '}') }

func (e *encoder) key(name string) {
	if e.b[len(e.b)-1] != '{' {
		e.b = append(e.b, ',')
	}
	e.b = append(e.b, '"')
	e.b = append(e.b, name...)
	e.b = append(e.b, '"', ':')
}

// str writes a member that is left out when empty.
func (e *encoder) str(name, value string) { e.cut(name, value, 1024) }

func (e *encoder) cut(name, value string, most int) {
	if value == "" {
		return
	}
	e.key(name)
	e.quote(value, most)
}

func (e *encoder) num(name string, n int64) {
	e.key(name)
	e.b = strconv.AppendInt(e.b, n, 10)
}

func (e *encoder) flag(name string, set bool) {
	if set {
		e.key(name)
		e.b = append(e.b, "true"...)
	}
}

func (e *encoder) addrPort(name string, a netip.AddrPort) {
	if !a.IsValid() {
		return
	}
	e.key(name)
	e.b = append(e.b, '"')
	e.b = a.AppendTo(e.b)
	e.b = append(e.b, '"')
}

// list writes at most [listMost] strings of at most 128 bytes, and no more
// once they fill half a kilobyte: a record has to stay under 8 KiB.
func (e *encoder) list(name string, values []string) {
	if len(values) == 0 {
		return
	}
	e.key(name)
	e.b = append(e.b, '[')
	start := len(e.b)
	for i, v := range values[:min(len(values), listMost)] {
		if len(e.b)-start > 512 {
			break
		}
		if i > 0 {
			e.b = append(e.b, ',')
		}
		e.quote(v, 128)
	}
	e.b = append(e.b, ']')
}

// escapeMost is the length of a byte that is escaped.
const escapeMost = len(`\u0000`)

const hexDigits = "0123456789abcdef"

// quote writes a JSON string byte by byte: what is not printable ASCII
// becomes \u00XX with the byte's value, so that a reader gets every byte back
// and no sandbox can write into a terminal or start a line of its own.
//
// What is written is cut at most bytes, so that a record stays below what the
// log takes, whatever had to be escaped.
func (e *encoder) quote(s string, most int) {
	e.b = append(e.b, '"')
	for i, end := 0, len(e.b)+most; i < len(s) && len(e.b)+escapeMost <= end; i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			e.b = append(e.b, '\\', c)
		case c < 0x20 || c > 0x7e:
			e.b = append(e.b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			e.b = append(e.b, c)
		}
	}
	e.b = append(e.b, '"')
}
