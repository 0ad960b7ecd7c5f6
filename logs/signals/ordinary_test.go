package signals_test

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// A trace is a log in the making: what software does in sandboxes over some days, and
// what is planted among it. It was written by who had not seen how the ranking works.
type trace struct {
	*rand.Rand
	start time.Time
	days  int
	out   []*record.Record
	flows int

	fourth bool        // other hosts, sizes and ways than those of the third world
	covers [][2]string // hosts that are allowed, and by which program they are used; nil for those of the third or fourth

	names     map[string]string // what is one name for the whole trace, by what it is for
	processes map[string]*record.Process
	verdicts  map[string]*record.Decision
}

// A box is a sandbox: how its traffic is seen, and when it works.
type box struct {
	name     string
	captured bool // it asks for names by itself, and programs are known
	inspects []string
	llm      string
	night    float64 // how much it works at night and at weekends, against 1 by day
}

func newTrace(seed uint64) *trace {
	t := &trace{
		Rand:  rand.New(rand.NewPCG(seed, 0x5eed)),
		names: map[string]string{}, processes: map[string]*record.Process{}, verdicts: map[string]*record.Decision{},
	}
	t.start = time.Date(2026, 3, 2+t.IntN(7), 0, 0, 0, 0, time.UTC)
	t.days = 2 + t.IntN(4)
	return t
}

// finish returns the records in the order of their times.
func (t *trace) finish() []*record.Record {
	slices.SortStableFunc(t.out, func(a, b *record.Record) int { return a.Time.Compare(b.Time) })
	out := t.out
	t.out = nil
	return out
}

// between is log-uniform: sizes and gaps of traffic are spread over orders of magnitude.
func (t *trace) between(low, high float64) float64 {
	return low * math.Exp(t.Float64()*math.Log(high/low))
}

func (t *trace) bytes(low, high float64) int64 { return int64(t.between(low, high)) }

func (t *trace) seconds(low, high float64) time.Duration {
	return time.Duration(t.between(low, high) * float64(time.Second))
}

func (t *trace) chance(p float64) bool { return t.Float64() < p }

// host is one of those of the world that t is.
func (t *trace) host(third, fourth []string) string {
	if t.fourth {
		return pick(t, fourth...)
	}
	return pick(t, third...)
}

// vary has sizes and numbers of the fourth world differ from those of the third.
func vary[N int | float64](t *trace, n N) N {
	if t.fourth {
		return N(float64(n) * t.between(0.6, 1.8))
	}
	return n
}

func pick[E any](t *trace, of ...E) E { return of[t.IntN(len(of))] }

const (
	hexDigits = "0123456789abcdef"
	base32    = "abcdefghijklmnopqrstuvwxyz234567"
)

func (t *trace) letters(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[t.IntN(len(alphabet))]
	}
	return string(b)
}

func (t *trace) word() string {
	return pick(t, "core", "web", "data", "cloud", "edge", "fast", "open", "meta", "node", "test", "blue", "hub", "kit", "flow", "grid", "lab", "map", "net", "ops", "run") +
		pick(t, "ly", "er", "io", "sync", "base", "stack", "link", "works", "point", "way", "", "tools", "bits", "box")
}

// always is one draw of what is the same throughout the trace.
func (t *trace) always(what string, draw func() string) string {
	if t.names[what] == "" {
		t.names[what] = draw()
	}
	return t.names[what]
}

// when is a moment at which b works.
func (t *trace) when(b *box) time.Time {
	for {
		at := t.start.Add(time.Duration(t.Float64() * float64(t.days) * 24 * float64(time.Hour)))
		h := float64(at.Hour()) + float64(at.Minute())/60
		w := b.night
		if day := at.Weekday(); h > 7.5 && h < 19.5 && day != time.Saturday && day != time.Sunday {
			w = 1 - 0.5*math.Exp(-(h-12.75)*(h-12.75)) // less at noon
		}
		if t.chance(w) {
			return at
		}
	}
}

func (t *trace) process(b *box, program string) *record.Process {
	if !b.captured || program == "" {
		return nil
	}
	if p := t.processes[program]; p != nil {
		return p
	}
	p := &record.Process{PID: 100 + t.IntN(30000), Exe: "/usr/bin/" + program, Argv: []string{program}}
	switch program {
	case "npm", "claude", "vercel", "playwright":
		p.Exe, p.Argv = "/usr/local/bin/node", []string{program, "run"}
	case "python3":
		p.Exe, p.Argv = "/usr/bin/python3.12", []string{"python3", "-m", "work"}
	}
	t.processes[program] = p
	return p
}

func (t *trace) decision(action, rule, class string) *record.Decision {
	key := action + rule + class
	if d := t.verdicts[key]; d != nil {
		return d
	}
	d := &record.Decision{Action: action, Rule: rule, Layer: "user", Class: class, Policy: "sha256:00"}
	if action == "deny" {
		d.Layer = "builtin"
	}
	t.verdicts[key] = d
	return d
}

func (t *trace) allow(host string) *record.Decision {
	return t.decision("allow", fmt.Sprintf("allow[%d]", len(host)%7), "")
}

// add appends a record as egressd writes it.
func (t *trace) add(b *box, program string, at time.Time, kind record.Kind, flow, via string, d *record.Decision) *record.Record {
	r := &record.Record{V: 1, Time: at, Kind: kind, Flow: flow, Sandbox: b.name, Via: via, Process: t.process(b, program), Decision: d}
	t.out = append(t.out, r)
	return r
}

func (t *trace) flow() string {
	t.flows++
	return fmt.Sprintf("F%09d", t.flows)
}

func (b *box) via() string {
	if b.captured {
		return "transparent"
	}
	return "connect"
}

// question is one that the sandbox asked of the name server.
func (t *trace) question(b *box, program, name, kind string, at time.Time, d *record.Decision) {
	t.add(b, program, at, record.KindDNS, t.flow(), "dns", d).DNS = &record.DNS{Name: name, Type: kind}
}

// resolve is what a sandbox asks before it connects.
func (t *trace) resolve(b *box, program, host string, at time.Time, d *record.Decision) {
	if b.captured && !strings.ContainsAny(host[len(host)-1:], "0123456789") {
		t.question(b, program, host, "A", at, d)
		t.question(b, program, host, "AAAA", at.Add(300*time.Microsecond), d)
	}
}

// tunnel is a connection that nobody looks into: the beginning is of the handshake.
func (t *trace) tunnel(b *box, program, host string, at time.Time, took time.Duration, up, down int64) {
	if t.chance(0.6) {
		t.resolve(b, program, host, at.Add(-5*time.Millisecond), t.allow(host))
	}
	flow, d, dst := t.flow(), t.allow(host), &record.Destination{Host: host, Port: 443}
	t.add(b, program, at, record.KindDNS, flow, b.via(), d).DNS = &record.DNS{Name: host, Type: "A AAAA"}
	t.add(b, program, at.Add(time.Millisecond), record.KindOpen, flow, b.via(), d).Dst = dst
	end := t.add(b, program, at.Add(took+2*time.Millisecond), record.KindClose, flow, b.via(), d)
	end.Dst, end.TLS = dst, &record.TLS{SNI: host}
	end.Bytes = &record.Bytes{Up: up + t.bytes(700, 1200), Down: down + t.bytes(3000, 6000)}
	end.Duration, end.Outcome = took.Milliseconds(), "closed"
	if t.chance(0.02) {
		end.Outcome = record.Outcome(pick(t, "idle", "upstream-reset", "client-reset"))
	}
}

// request is one inside an inspected tunnel, or in clear.
func (t *trace) request(b *box, program, host, method, path string, at time.Time, took time.Duration, up, down int64) {
	flow, d, dst := t.flow(), t.allow(host), &record.Destination{Host: host, Port: 443}
	begin := t.add(b, program, at, record.KindRequest, flow, b.via(), d)
	begin.Dst, begin.HTTP = dst, &record.HTTP{Method: method, Path: path}
	end := t.add(b, program, at.Add(took), record.KindClose, flow, b.via(), d)
	end.Dst, end.HTTP = dst, &record.HTTP{Method: method, Path: path, Status: 200}
	end.Bytes = &record.Bytes{Up: up + t.bytes(150, 900), Down: down + t.bytes(200, 600)}
	end.Duration, end.Outcome = took.Milliseconds(), "closed"
	if t.chance(0.01) {
		end.HTTP.Status = pick(t, 304, 404, 429, 500, 502)
	}
}

// call is a request where b looks into what goes to host, else a tunnel.
func (t *trace) call(b *box, program, host, method, path string, at time.Time, took time.Duration, up, down int64) {
	if slices.Contains(b.inspects, host) {
		t.request(b, program, host, method, path, at, took, up, down)
		return
	}
	t.tunnel(b, program, host, at, took, up, down)
}

// denied is a refusal that is repeated: ten within a second are recorded, the rest summed.
func (t *trace) denied(b *box, program, host string, port uint16, at time.Time, times int) {
	d := t.decision("deny", "default", "default-deny")
	t.resolve(b, program, host, at.Add(-4*time.Millisecond), d)
	flow := ""
	for i := range min(times, 10) {
		flow = t.flow()
		t.add(b, program, at.Add(time.Duration(i)*20*time.Millisecond), record.KindOpen, flow, b.via(), d).Dst = &record.Destination{Host: host, Port: port}
	}
	if times > 10 {
		r := t.add(b, program, at.Add(time.Second), record.KindOpen, flow, b.via(), d)
		r.Dst, r.Count = &record.Destination{Host: host, Port: port}, int64(times-10)
		if r.Process != nil {
			r.Process = &record.Process{Exe: r.Process.Exe}
		}
	}
}

// reverse is the name under which an address is looked up.
func (t *trace) reverse() string {
	if t.chance(0.3) {
		digits := t.letters(hexDigits, 28)
		return strings.Join(strings.Split(digits, ""), ".") + ".8.b.d.0.ip6.arpa"
	}
	return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", t.IntN(256), t.IntN(256), t.IntN(256), 1+t.IntN(222))
}

// contentHost is a name of a content network, that no person would write.
func (t *trace) contentHost() string {
	switch t.IntN(6) {
	case 0:
		return "d" + t.letters("0123456789abcdefghijklmnopqrstuvwxyz", 13) + ".cloudfront.net"
	case 1:
		return "rr" + fmt.Sprint(1+t.IntN(8)) + "---sn-" + t.letters("abcdefghijklmnopqrstuvwxyz0123456789", 8) + ".googlevideo.com"
	case 2:
		return t.letters(hexDigits, 32) + ".r2.cloudflarestorage.com"
	case 3:
		return fmt.Sprintf("ec2-%d-%d-%d-%d.eu-central-1.compute.amazonaws.com", 3+t.IntN(50), t.IntN(256), t.IntN(256), t.IntN(256))
	case 4:
		return "prod-registry-k8s-io-eu-west-" + fmt.Sprint(1+t.IntN(3)) + ".s3.dualstack.eu-west-1.amazonaws.com"
	}
	var id [16]byte
	for i := range id {
		id[i] = byte(t.IntN(256))
	}
	return "cdn-" + hex.EncodeToString(id[:4]) + "-" + hex.EncodeToString(id[4:6]) + ".azureedge.net"
}
