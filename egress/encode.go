package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/gitwire"
	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// An encoder appends canonical JSON: members in a fixed order, absent parts
// left out, printable ASCII only.
type encoder struct {
	record.Encoder

	common bool // leave out what may differ among denials that repeat
	idAt   int  // where the id was left out
}

func (e *encoder) flow(f *Flow, r recordOf) {
	e.Open("")
	e.Text("kind", string(r.kind))
	src := f.src
	if e.common {
		e.idAt = len(e.Line)
		src = withoutPort(src)
	} else {
		e.Text("flow", f.id.String())
		e.Flag("shared", r.shared)
	}
	e.Text("sandbox", f.request.Sandbox.Name)
	e.container(f.request.Sandbox.Container)
	e.Text("via", string(f.request.Via))
	e.AddrPort("src", src)
	if !e.common || !r.flood {
		e.asked(f, r)
	}
	e.process(f.request.Process)
	e.decision(&f.gate.known, f.decision)
	e.shadow(f.decision.Shadow)
	if r.kind == record.KindClose {
		e.ended(r)
	}
	e.Raw(r.raw)
	e.Text("note", r.note+r.end.Note)
	e.Close()
}

// summed writes what is recorded of the denials of one sum.
func (e *encoder) summed(by summedBy, f *Flow, r recordOf) {
	if by == byKind {
		e.flow(f, r)
		return
	}
	e.Open("")
	e.Text("kind", string(r.kind))
	e.idAt = len(e.Line)
	e.Text("sandbox", f.request.Sandbox.Name)
	if by == byDomain {
		e.container(f.request.Sandbox.Container)
	}
	e.Text("via", string(f.request.Via))
	if by == byDomain {
		e.AddrPort("src", withoutPort(f.src))
		e.domain(f)
		e.process(f.request.Process)
	} else if f.named() != "" {
		e.Open("dst")
		e.Text("host", "*")
		e.Close()
	}
	e.Open("decision")
	e.sumOf(by, f.decision)
	e.Flag("log", f.decision.Log)
	e.policy(&f.gate.known, f.decision.Policy)
	e.Close()
	if d := f.decision.Shadow; d != nil {
		e.Open("shadow")
		e.sumOf(by, d)
		e.Text("policy", d.Policy)
		e.Close()
	}
	e.Close()
}

// domain writes what the names of one registered domain have in common.
func (e *encoder) domain(f *Flow) {
	if q := f.request.DNS; q != nil {
		e.Open("dns")
		e.Text("name", domainOf(f.gate.canaries.without(q.Name)))
		e.Text("type", q.Type)
		e.Close()
		return
	}
	if dst := &f.request.Destination; dst.Host != "" {
		e.Open("dst")
		e.Text("host", domainOf(f.gate.canaries.without(dst.Host)))
		e.Number("port", int64(dst.Port))
		e.Text("class", f.decision.AddressClass)
		e.Close()
	}
	if h := f.request.HTTP; h != nil {
		e.Open("http")
		e.TextWithin("method", h.Method, record.MaxMethod)
		e.Close()
	}
}

// sumOf writes of a decision what the denials of a sum have in common. A reason names what was
// asked for, so there is none.
func (e *encoder) sumOf(by summedBy, d *policy.Decision) {
	e.Text("action", d.Verdict.Action())
	if by == byDomain {
		e.TextWithin("rule", d.Rule, record.MaxRaw)
	}
	e.Text("layer", string(d.Layer))
	e.Text("class", string(d.Class))
}

// asked writes what was to be reached or known.
func (e *encoder) asked(f *Flow, r recordOf) {
	e.destination(f)
	e.tls(f)
	e.http(f, r.end.Status)
	if !e.common && r.kind != record.KindClose {
		e.body(f)
	}
	if r.kind == record.KindRequest {
		e.git(f)
	}
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
	e.Open("dns")
	e.Text("name", f.gate.canaries.without(name))
	e.Text("type", kind)
	e.Close()
}

func (e *encoder) destination(f *Flow) {
	dst := &f.request.Destination
	asked := f.request.DNS != nil
	if dst.Host == "" || asked && f.decision.AddressClass == "" {
		return
	}
	e.Open("dst")
	e.Text("host", f.gate.canaries.without(dst.Host))
	if !asked { // which is about no port
		e.Number("port", int64(dst.Port))
	}
	e.Addrs("addrs", dst.Addrs)
	if dst.Local && len(dst.Addrs) > 0 {
		e.Text("from", "hosts")
	}
	e.Addr("addr", f.dialled.Addr())
	if !slices.Contains(dst.Addrs, dst.Asked) {
		e.Addr("asked", dst.Asked)
	}
	e.Text("class", f.decision.AddressClass)
	e.Close()
}

func (e *encoder) tls(f *Flow) {
	h := f.request.TLS
	if h == nil {
		return
	}
	e.Open("tls")
	name := h.ServerName
	if name == "" {
		name = h.NoName
	}
	e.TextWithin("sni", f.gate.canaries.without(name), record.MaxRaw)
	e.List("alpn", h.ALPN)
	e.Flag("ech", h.ECH)
	e.Text("ja4", h.JA4)
	e.Flag("inspected", h.Inspected)
	e.Close()
}

func (e *encoder) http(f *Flow, status int) {
	h := f.request.HTTP
	if h == nil {
		return
	}
	e.Open("http")
	e.TextWithin("method", h.Method, record.MaxMethod)
	e.Flag("path_cut", e.TextWithin("path", h.Path, record.MaxPath))
	if len(h.Query) > 0 {
		e.Number("query_bytes", int64(len(h.Query)))
	}
	if h.Authority != f.request.Destination.String() {
		e.TextWithin("authority", f.gate.canaries.without(h.Authority), record.MaxRaw)
	}
	if status != 0 {
		e.Number("status", int64(status))
	}
	e.Flag("own", h.Own)
	e.Close()
}

// body writes what was read of the body of a request. The digest proves later what was in it.
func (e *encoder) body(f *Flow) {
	if f.request.HTTP == nil || f.request.HTTP.Body == nil {
		return
	}
	b := f.request.HTTP.Body
	e.Open("body")
	e.Number("bytes", int64(len(b.Bytes)))
	if b.Ended {
		sum := sha256.Sum256(b.Bytes)
		e.Text("sha256", hex.EncodeToString(sum[:]))
	}
	e.List("says", b.Says())
	e.Close()
}

// git writes what the request asks of a git server. All commands of a push fit in: one with more is refused.
func (e *encoder) git(f *Flow) {
	if f.request.HTTP == nil {
		return
	}
	asked := f.request.HTTP.Git()
	if asked == nil {
		return
	}
	e.Open("git")
	e.TextWithin("repo", asked.Repo, record.MaxRaw)
	e.Text("op", asked.Name)
	if asked.Push != nil {
		e.refs(asked.Push.Commands)
	}
	e.Close()
}

func (e *encoder) refs(commands []gitwire.Command) {
	if len(commands) == 0 {
		return
	}
	e.Key("refs")
	e.Line = append(e.Line, '[')
	for i, c := range commands {
		if i > 0 {
			e.Line = append(e.Line, ',')
		}
		e.Quote(c.String(), record.MaxNote)
	}
	e.Line = append(e.Line, ']')
}

// Lengths of what an engine says of containers, in bytes.
const (
	containerID   = 12 // as docker ps shows it
	containerText = 128
	imageText     = record.MaxRaw
)

func (e *encoder) container(c *policy.Container) {
	if c == nil {
		return
	}
	e.Open("container")
	e.Text("id", c.ID[:min(len(c.ID), containerID)])
	e.TextWithin("name", c.Name, containerText)
	e.TextWithin("image", c.Image, imageText)
	e.TextWithin("project", c.Project, containerText)
	e.TextWithin("service", c.Service, containerText)
	e.Close()
}

func (e *encoder) process(p *policy.Process) {
	if p == nil {
		return
	}
	e.Open("process")
	if !e.common {
		e.Number("pid", int64(p.PID))
	}
	e.TextWithin("exe", p.Exe, record.MaxRaw)
	if !e.common {
		e.List("argv", p.Argv)
	}
	e.Close()
}

func (e *encoder) decision(known *knownPolicies, d *policy.Decision) {
	e.Open("decision")
	e.verdict(d)
	if d.Class != "" {
		e.List("allowed_if", d.AllowedIf)
	}
	e.Flag("log", d.Log)
	e.policy(known, d.Policy)
	e.List("question", strings.Fields(d.Question))
	e.Close()
}

func (e *encoder) verdict(d *policy.Decision) {
	e.Text("action", d.Verdict.Action())
	e.TextWithin("rule", d.Rule, record.MaxRaw)
	e.Text("layer", string(d.Layer))
	e.TextWithin("reason", d.ReasonAndCause(), record.MaxReason)
	e.Text("class", string(d.Class))
}

// shadow is what the policy's shadow would have decided; nil where it agrees.
func (e *encoder) shadow(d *policy.Decision) {
	if d == nil {
		return
	}
	e.Open("shadow")
	e.verdict(d)
	e.Flag("inspect", d.Verdict == policy.Inspect)
	e.Text("policy", d.Policy)
	e.Close()
}

func (e *encoder) ended(r recordOf) {
	e.Open("bytes")
	e.Number("up", r.end.Up)
	e.Number("down", r.end.Down)
	e.Close()
	e.Number("duration_ms", r.took.Milliseconds())
	e.Text("outcome", string(r.end.Outcome))
	e.Text("credential", r.end.Credential)
}
