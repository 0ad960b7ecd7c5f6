package world

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// Promptly is the time within which every answer has to come. It is less than the
// deadlines that egressd has by default.
const Promptly = 8 * time.Second

// A Observation is everything that was seen of one case, on all sides.
type Observation struct {
	*Exchange
	to      string // the destination, empty for raw bytes
	asked   string // the address that was asked for, or ""
	claims  bool   // a host may have been named beside it
	Sandbox string // who asked, as records should name it

	Packets []lab.Packet // that opened a conversation, from anywhere in the gateway
	Queries []string     // that the name server got
	Arrived []Arrival
	Heard   string          // what reached the internet inside TLS
	Records []record.Record // of the client's connection
	Digest  string          // of the policy in force

	Asked Question // of the name server, and what it said
	Said  []byte

	Alive bool // the process still runs
	Held  int  // sockets that it still has
}

// Arrival is one connection that reached the internet.
type Arrival struct {
	to       netip.AddrPort
	Received string
}

// Judge is the oracle: it returns what is wrong with what was seen, given what
// was expected. A denial is proven by what did not happen; an allowance by
// data from the far host; both by exactly one record.
func Judge(e *Expectation, s *Observation) []string {
	j := &judgement{Observation: s, Expectation: e}
	j.leave()
	j.health()
	switch {
	case isCaptured(s.Way):
		j.judgeCaptured()
	case e.RCode != "":
		j.named()
	case e.Status != nil:
		j.statuses()
	case e.Reply != nil:
		j.reply()
	case e.Allow != nil:
		j.allowed()
	case e.Cut != nil || e.Ended:
		j.cut()
	case e.Fails != nil:
		j.failed()
	default:
		j.denied()
	}
	return j.problems
}

type judgement struct {
	*Observation
	*Expectation
	problems []string
}

// leave removes a tunnel to an address from what was seen, if egressd left that tunnel for the host that the client
// claimed: its records, its packet and its silent connection.
func (j *judgement) leave() {
	flow := ""
	if !j.claims {
		return
	}
	for _, r := range j.Records {
		if r.Kind == record.KindClose && (r.Outcome == "named" || r.Outcome == "http") && r.Dst != nil && r.Dst.Host == j.asked && r.Bytes != nil && r.Bytes.Up+r.Bytes.Down == 0 {
			flow = r.Flow
		}
	}
	if flow == "" {
		return
	}
	j.Records = slices.DeleteFunc(slices.Clone(j.Records), func(r record.Record) bool { return r.Flow == flow })
	at := func(a netip.Addr) bool { return a.Unmap().String() == j.asked }
	if i := slices.IndexFunc(j.Packets, func(p lab.Packet) bool { return at(p.To.Addr()) }); i >= 0 {
		j.Packets = slices.Delete(slices.Clone(j.Packets), i, i+1)
	}
	if i := slices.IndexFunc(j.Arrived, func(a Arrival) bool { return at(a.to.Addr()) && a.Received == "" }); i >= 0 {
		j.Arrived = slices.Delete(slices.Clone(j.Arrived), i, i+1)
	}
}

// askedFor checks dst.asked. A record has the address that was asked for if egressd took a host from the client's
// claim, and the host has other addresses.
func (j *judgement) askedFor(r *record.Record) {
	want := ""
	if j.claims && r.Dst.Host != j.asked && !slices.Contains(r.Dst.Addrs, j.asked) {
		want = j.asked
	}
	if r.Dst.Asked != want {
		j.wrong("dst.asked is %q, want %q", r.Dst.Asked, want)
	}
}

func (j *judgement) wrong(format string, args ...any) {
	j.problems = append(j.problems, fmt.Sprintf(format, args...))
}

func (j *judgement) health() {
	if !j.Alive {
		j.wrong("egressd is no longer running")
	}
	if j.Held > 0 {
		j.wrong("egressd still holds %d sockets", j.Held)
	}
	if j.Took > Promptly {
		j.wrong("the answer took %v", j.Took)
	}
}

// silence checks that nothing reached out: no packet at all, but queries to
// the configured name server where the name itself was allowed.
func (j *judgement) silence() {
	for _, p := range j.Packets {
		if p.To.String() != Resolver || !j.Asks {
			j.wrong("a packet was sent: %s", p)
		}
	}
	if !j.Asks && len(j.Queries) > 0 {
		j.wrong("the name server was asked for %q", j.Queries)
	}
	for _, a := range j.Arrived {
		j.wrong("a connection reached %s", a.to)
	}
}

func (j *judgement) denied() {
	j.silence()
	if len(j.Answers) != 1 {
		j.wrong("%d answers came, want 1 (%v)", len(j.Answers), j.Err)
		return
	}
	j.refusal(&j.Answers[0])
	if !j.closed {
		j.wrong("the connection stayed open")
	}
	if d := j.decisions(); len(d) != 1 {
		j.wrong("%d decisions are recorded, want 1: %+v", len(d), d)
	} else {
		j.refusalRecord(&d[0], &j.Answers[0])
	}
}

// decisions are the records that decide something of this case.
func (j *judgement) decisions() []record.Record {
	var d []record.Record
	for _, r := range j.Records {
		if r.Kind == record.KindOpen || r.Kind == record.KindRequest || r.Kind == record.KindRefused {
			d = append(d, r)
		}
	}
	return d
}

func (j *judgement) refusal(a *Answer) {
	if a.Reply >= 0 {
		if want := repliesFor(j.Deny); !slices.Contains(want, a.Reply) {
			j.wrong("the SOCKS reply is %d, want one of %d", a.Reply, want)
		}
		return
	}
	p := a.Problem()
	class := policy.Class(p.Class)
	if !slices.Contains(j.Deny, class) {
		j.wrong("the answer's class is %q, want one of %q", class, j.Deny)
		return
	}
	want := statusFor(class)
	if !slices.Contains(want, a.Status) {
		j.wrong("the status for %s is %d, want one of %d", class, a.Status, want)
	}
	j.refusalHead(a, p)
}

// refusalHead checks the fields of a refusal, which are a contract.
func (j *judgement) refusalHead(a *Answer, p problem) {
	id := a.Header.Get("X-Egressd-Id")
	if id == "" || p.ID != id || !strings.Contains(a.Header.Get("Proxy-Status"), id) {
		j.wrong("the ids differ: field %q, body %q, Proxy-Status %q", id, p.ID, a.Header.Get("Proxy-Status"))
	}
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json", "Cache-Control": "no-store", "X-Proxy-Error": "blocked-by-allowlist",
	} {
		if got := a.Header.Get(name); got != want && a.Status == 403 {
			j.wrong("%s is %q, want %q", name, got, want)
		}
	}
	if a.Status == 403 && j.Way != WayInsideH2 && !strings.HasPrefix(a.phrase, "Blocked by egressd: ") {
		j.wrong("the reason phrase is %q", a.phrase)
	}
	if len(a.phrase) > 120 || !printable(a.phrase) {
		j.wrong("the reason phrase is not 120 bytes of ASCII: %q", a.phrase)
	}
	j.discretion(a)
	if p.Error != "egress_denied" && a.Status < 500 || p.Message == "" {
		j.wrong("the body is %q", a.Body)
	}
}

// discretion checks that a refusal does not tell the sandbox what it did not
// know: what a name resolved to, the gateway's network, the program's errors.
func (j *judgement) discretion(a *Answer) {
	said, asked := fmt.Sprint(a.phrase, a.Header, a.Body), string(j.Sent)
	if j.to != "" {
		host, _ := canonical(j.to)
		asked += host
	}
	for _, secret := range []string{
		"10.0.0.5", "169.254.169.254", "fd12::5", EvilIPv4, lab.RefusingHost, "93.184.216.", "9.9.9.53", "10.98.", "fd98:",
		"internal.corp", "dial tcp", "lookup", "i/o timeout", "connection refused", "goroutine", "hunter2",
	} {
		if strings.Contains(said, secret) && (!strings.Contains(asked, secret) || secret == "hunter2") {
			j.wrong("the answer says %q: %s", secret, said)
		}
	}
}

// failed checks what was allowed and did not come about.
func (j *judgement) failed() {
	for _, p := range j.Packets {
		if p.To.String() != Resolver && !slices.Contains(j.Dials, p.To.Addr().String()) {
			j.wrong("a packet was sent: %s", p)
		}
	}
	if len(j.Answers) != 1 {
		j.wrong("%d answers came, want 1 (%v)", len(j.Answers), j.Err)
		return
	}
	j.Deny = j.Fails
	j.refusal(&j.Answers[0])
	if d := j.decisions(); len(d) != 1 || d[0].Decision.Action != "allow" {
		j.wrong("want one decision that allows: %+v", d)
	}
	if last := j.last(); last == nil || last.Kind != record.KindClose || !slices.Contains(j.Fails, policy.Class(last.Outcome)) {
		j.wrong("the last record does not say %q: %+v", j.Fails, last)
	}
}

func (j *judgement) refusalRecord(r *record.Record, a *Answer) {
	d := r.Decision
	switch {
	case d == nil || d.Action != "deny":
		j.wrong("the record does not deny: %+v", d)
		return
	case !slices.Contains(j.Deny, policy.Class(d.Class)):
		j.wrong("the record's class is %q, want one of %q", d.Class, j.Deny)
	case a != nil && a.Reply < 0 && a.Problem().Class != d.Class:
		j.wrong("the record's class is %q, the answer's %q", d.Class, a.Problem().Class)
	case a != nil && a.Reply < 0 && r.Flow != a.Problem().ID:
		j.wrong("the record's flow is %q, the answer's %q", r.Flow, a.Problem().ID)
	}
	j.common(r)
	switch policy.Class(d.Class) {
	case policy.MalformedHost, policy.MalformedRequest:
		j.refusedRaw(r)
	default:
		j.destination(r)
	}
}

func (j *judgement) refusedRaw(r *record.Record) {
	if r.Kind != record.KindRefused {
		j.wrong("what could not be parsed is recorded as %q", r.Kind)
	}
	if j.Way == WaySOCKS || j.Way == WayInsideH2 || j.Reply != nil || j.Passes > 0 {
		return // of SOCKS the host alone is recorded, of a body nothing
	}
	line, _, _ := strings.Cut(r.Raw, "[redacted]")
	line, _, _ = strings.Cut(line, "\r")
	if r.Raw == "" || !strings.HasPrefix(latin1(j.Sent), line) {
		j.wrong("raw is %q, sent was %q", r.Raw, j.Sent[:min(len(j.Sent), 256)])
	}
}

// latin1 makes a character of each byte, as records do.
func latin1(b []byte) string {
	runes := make([]rune, len(b))
	for i, c := range b {
		runes[i] = rune(c)
	}
	return string(runes)
}

// common checks what every record of a case says.
func (j *judgement) common(r *record.Record) {
	if r.Sandbox != j.Sandbox {
		j.wrong("the record's sandbox is %q, want %q", r.Sandbox, j.Sandbox)
	}
	via := map[string]string{WayConnect: "connect", WayHTTP: "http", WaySOCKS: "socks5", WaySOCKSIP: "socks5", WayInside: "connect", WayInsideH2: "connect", WayRedirect: "transparent", WayTProxy: "transparent"}[j.Way]
	if j.Way != WayRaw && r.Kind != record.KindRefused && r.Via != via && !(j.Opened && r.Kind == record.KindRequest) {
		j.wrong("the record's via is %q, want %q", r.Via, via)
	}
	if r.Decision.Policy != j.Digest || j.Digest == "" {
		j.wrong("the record's policy is %q, in force is %q", r.Decision.Policy, j.Digest)
	}
}

func (j *judgement) destination(r *record.Record) {
	if j.to == "" {
		return
	}
	host := j.Host
	if host == "" {
		host, _ = canonical(j.to)
	}
	switch {
	case r.Dst == nil:
		j.wrong("the record names no destination")
	case r.Dst.Host != host:
		j.wrong("dst.host is %q, want %q", r.Dst.Host, host)
	case j.DstClass != "" && r.Dst.Class != j.DstClass:
		j.wrong("dst.class is %q, want %q", r.Dst.Class, j.DstClass)
	case r.Decision.Class == string(policy.AddressDenied) && r.Dst.Class == "":
		j.wrong("dst.class is missing")
	default:
		j.askedFor(r)
	}
}

// canonical returns the host and port of a destination.
func canonical(to string) (host, port string) {
	colon := max(0, strings.LastIndexByte(to, ':'))
	host, port = strings.Trim(to[:colon], "[]"), strings.TrimPrefix(to[colon:], ":")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String(), port
	}
	return strings.TrimSuffix(strings.ToLower(host), "."), port
}

// cut checks a tunnel that was opened and then refused.
func (j *judgement) cut() {
	if !j.Opened {
		j.wrong("the tunnel was not opened: %s (%v)", j.explain(), j.Err)
		return
	}
	if !j.closed {
		j.wrong("the tunnel stayed open, with %q", j.Data)
	}
	if j.Data != "" && !RefusedBy(j.Data) {
		j.wrong("data came: %q", j.Data)
	}
	j.reached(append([]string{AllowedIPv4, AllowedIPv6}, j.Dials...))
	for _, a := range j.Arrived {
		if a.Received != "" {
			j.wrong("%s received %q", a.to, a.Received)
		}
	}
	j.cutRecords()
}

func (j *judgement) cutRecords() {
	var refusals []record.Record
	for _, r := range j.Records {
		if r.Decision != nil && r.Decision.Action == "deny" {
			refusals = append(refusals, r)
		}
	}
	if j.Ended && len(refusals) == 0 {
		if last := j.last(); last == nil || last.Kind != record.KindClose || last.Outcome == "" {
			j.wrong("no record says why the tunnel ended: %+v", last)
		}
		return
	}
	if len(refusals) != 1 {
		j.wrong("%d records refuse the tunnel, want 1: %+v", len(refusals), j.Records)
		return
	}
	if j.claims && !isCaptured(j.Way) {
		j.destination(&refusals[0])
	}
	if r := refusals[0]; !j.Ended && !slices.Contains(j.Cut, policy.Class(r.Decision.Class)) {
		j.wrong("the record's class is %q, want one of %q", r.Decision.Class, j.Cut)
	} else if r.Bytes != nil && r.Bytes.Up != 0 {
		j.wrong("the record says that %d bytes went up", r.Bytes.Up)
	}
}

func (j *judgement) last() *record.Record {
	if len(j.Records) == 0 {
		return nil
	}
	return &j.Records[len(j.Records)-1]
}
