package e2e

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// promptly is the time within which every answer has to come. It is less than the
// deadlines that egressd has by default.
const promptly = 8 * time.Second

// A sight is everything that was seen of one case, on all sides.
type sight struct {
	*exchange
	to      string // the destination, empty for raw bytes
	sandbox string // who asked, as records should name it

	packets []lab.Packet // that opened a conversation, from anywhere in the gateway
	queries []string     // that the name server got
	arrived []arrived
	heard   string          // what reached the internet inside TLS
	records []record.Record // of the client's connection
	digest  string          // of the policy in force

	asked question // of the name server, and what it said
	said  []byte

	alive bool // the process still runs
	held  int  // sockets that it still has
}

// arrived is one connection that reached the internet.
type arrived struct {
	to       netip.AddrPort
	received string
}

// judge is the oracle: it returns what is wrong with what was seen, given what
// was expected. A denial is proven by what did not happen; an allowance by
// data from the far host; both by exactly one record.
func judge(e *expectation, s *sight) []string {
	j := &judgement{sight: s, expectation: e}
	j.health()
	switch {
	case isCaptured(s.way):
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
	*sight
	*expectation
	problems []string
}

func (j *judgement) wrong(format string, args ...any) {
	j.problems = append(j.problems, fmt.Sprintf(format, args...))
}

func (j *judgement) health() {
	if !j.alive {
		j.wrong("egressd is no longer running")
	}
	if j.held > 0 {
		j.wrong("egressd still holds %d sockets", j.held)
	}
	if j.took > promptly {
		j.wrong("the answer took %v", j.took)
	}
}

// silence checks that nothing reached out: no packet at all, but queries to
// the configured name server where the name itself was allowed.
func (j *judgement) silence() {
	for _, p := range j.packets {
		if p.To.String() != resolver || !j.Asks {
			j.wrong("a packet was sent: %s", p)
		}
	}
	if !j.Asks && len(j.queries) > 0 {
		j.wrong("the name server was asked for %q", j.queries)
	}
	for _, a := range j.arrived {
		j.wrong("a connection reached %s", a.to)
	}
}

func (j *judgement) denied() {
	j.silence()
	if len(j.answers) != 1 {
		j.wrong("%d answers came, want 1 (%v)", len(j.answers), j.err)
		return
	}
	j.refusal(&j.answers[0])
	if !j.closed {
		j.wrong("the connection stayed open")
	}
	if d := j.decisions(); len(d) != 1 {
		j.wrong("%d decisions are recorded, want 1: %+v", len(d), d)
	} else {
		j.refusalRecord(&d[0], &j.answers[0])
	}
}

// decisions are the records that decide something of this case.
func (j *judgement) decisions() []record.Record {
	var d []record.Record
	for _, r := range j.records {
		if r.Kind == record.KindOpen || r.Kind == record.KindRequest || r.Kind == record.KindRefused {
			d = append(d, r)
		}
	}
	return d
}

func (j *judgement) refusal(a *answer) {
	if a.reply >= 0 {
		if want := repliesFor(j.Deny); !slices.Contains(want, a.reply) {
			j.wrong("the SOCKS reply is %d, want one of %d", a.reply, want)
		}
		return
	}
	p := a.problem()
	class := policy.Class(p.Class)
	if !slices.Contains(j.Deny, class) {
		j.wrong("the answer's class is %q, want one of %q", class, j.Deny)
		return
	}
	want := statusFor(class)
	if !slices.Contains(want, a.status) {
		j.wrong("the status for %s is %d, want one of %d", class, a.status, want)
	}
	j.refusalHead(a, p)
}

// refusalHead checks the fields of a refusal, which are a contract.
func (j *judgement) refusalHead(a *answer, p problem) {
	id := a.header.Get("X-Egressd-Id")
	if id == "" || p.ID != id || !strings.Contains(a.header.Get("Proxy-Status"), id) {
		j.wrong("the ids differ: field %q, body %q, Proxy-Status %q", id, p.ID, a.header.Get("Proxy-Status"))
	}
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json", "Cache-Control": "no-store", "X-Proxy-Error": "blocked-by-allowlist",
	} {
		if got := a.header.Get(name); got != want && a.status == 403 {
			j.wrong("%s is %q, want %q", name, got, want)
		}
	}
	if a.status == 403 && j.way != wayInsideH2 && !strings.HasPrefix(a.phrase, "Blocked by egressd: ") {
		j.wrong("the reason phrase is %q", a.phrase)
	}
	if len(a.phrase) > 120 || !printable(a.phrase) {
		j.wrong("the reason phrase is not 120 bytes of ASCII: %q", a.phrase)
	}
	j.discretion(a)
	if p.Error != "egress_denied" && a.status < 500 || p.Message == "" {
		j.wrong("the body is %q", a.body)
	}
}

// discretion checks that a refusal does not tell the sandbox what it did not
// know: what a name resolved to, the gateway's network, the program's errors.
func (j *judgement) discretion(a *answer) {
	said, asked := fmt.Sprint(a.phrase, a.header, a.body), string(j.sent)
	if j.to != "" {
		host, _ := canonical(j.to)
		asked += host
	}
	for _, secret := range []string{
		"10.0.0.5", "169.254.169.254", "fd12::5", evilIPv4, lab.RefusingHost, "93.184.216.", "9.9.9.53", "10.98.", "fd98:",
		"internal.corp", "dial tcp", "lookup", "i/o timeout", "connection refused", "goroutine", "hunter2",
	} {
		if strings.Contains(said, secret) && (!strings.Contains(asked, secret) || secret == "hunter2") {
			j.wrong("the answer says %q: %s", secret, said)
		}
	}
}

// failed checks what was allowed and did not come about.
func (j *judgement) failed() {
	for _, p := range j.packets {
		if p.To.String() != resolver && !slices.Contains(j.Dials, p.To.Addr().String()) {
			j.wrong("a packet was sent: %s", p)
		}
	}
	if len(j.answers) != 1 {
		j.wrong("%d answers came, want 1 (%v)", len(j.answers), j.err)
		return
	}
	j.Deny = j.Fails
	j.refusal(&j.answers[0])
	if d := j.decisions(); len(d) != 1 || d[0].Decision.Action != "allow" {
		j.wrong("want one decision that allows: %+v", d)
	}
	if last := j.last(); last == nil || last.Kind != record.KindClose || !slices.Contains(j.Fails, policy.Class(last.Outcome)) {
		j.wrong("the last record does not say %q: %+v", j.Fails, last)
	}
}

func (j *judgement) refusalRecord(r *record.Record, a *answer) {
	d := r.Decision
	switch {
	case d == nil || d.Action != "deny":
		j.wrong("the record does not deny: %+v", d)
		return
	case !slices.Contains(j.Deny, policy.Class(d.Class)):
		j.wrong("the record's class is %q, want one of %q", d.Class, j.Deny)
	case a != nil && a.reply < 0 && a.problem().Class != d.Class:
		j.wrong("the record's class is %q, the answer's %q", d.Class, a.problem().Class)
	case a != nil && a.reply < 0 && r.Flow != a.problem().ID:
		j.wrong("the record's flow is %q, the answer's %q", r.Flow, a.problem().ID)
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
	if j.way == waySOCKS || j.way == wayInsideH2 || j.Reply != nil || j.Passes > 0 {
		return // of SOCKS the host alone is recorded, of a body nothing
	}
	line, _, _ := strings.Cut(r.Raw, "[redacted]")
	line, _, _ = strings.Cut(line, "\r")
	if r.Raw == "" || !strings.HasPrefix(latin1(j.sent), line) {
		j.wrong("raw is %q, sent was %q", r.Raw, j.sent[:min(len(j.sent), 256)])
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
	if r.Sandbox != j.sandbox {
		j.wrong("the record's sandbox is %q, want %q", r.Sandbox, j.sandbox)
	}
	via := map[string]string{wayConnect: "connect", wayHTTP: "http", waySOCKS: "socks5", waySOCKSIP: "socks5", wayInside: "connect", wayInsideH2: "connect", wayRedirect: "transparent", wayTProxy: "transparent"}[j.way]
	if j.way != wayRaw && r.Kind != record.KindRefused && r.Via != via && !(j.opened && r.Kind == record.KindRequest) {
		j.wrong("the record's via is %q, want %q", r.Via, via)
	}
	if r.Decision.Policy != j.digest || j.digest == "" {
		j.wrong("the record's policy is %q, in force is %q", r.Decision.Policy, j.digest)
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

func (j *judgement) allowed() {
	if len(j.answers) != 1 || j.err != nil {
		j.wrong("no data came, but %d answers and %v: %s", len(j.answers), j.err, j.explain())
		return
	}
	a := &j.answers[0]
	if a.reply > 0 || a.reply < 0 && a.status != 200 {
		j.wrong("not allowed: status %d, SOCKS reply %d, %s", a.status, a.reply, a.phrase)
		return
	}
	if a.reply == 0 && hex.EncodeToString(a.raw) != "05000001000000000000" {
		j.wrong("the SOCKS reply is %x: it must not name an address", a.raw)
	}
	if j.data == "" || refusedBy(j.data) {
		j.wrong("no data came from the far host: %q", j.data)
	}
	j.reached(j.Allow)
	j.allowRecords()
}

func (j *judgement) explain() string {
	if len(j.answers) == 0 {
		return "no answer"
	}
	return fmt.Sprintf("%d %s", j.answers[0].status, j.answers[0].phrase)
}

// reached checks that nobody but the given addresses was spoken to.
func (j *judgement) reached(addrs []string) {
	host, port := "", ""
	if j.to != "" {
		host, port = canonical(j.to)
	}
	for _, p := range j.packets {
		expected := slices.Contains(addrs, p.To.Addr().String()) && p.Protocol == lab.ProtocolTCP && (port == "" || fmt.Sprint(p.To.Port()) == port)
		if p.To.String() != resolver && !expected {
			j.wrong("a packet was sent: %s", p)
		}
	}
	for _, q := range j.queries {
		if host != "" && q != host {
			j.wrong("the name server was asked for %q", q)
		}
	}
}

// allowRecords checks that one decision allows, and that the address which the
// flow's record names is the one that was seen on the wire and in the data.
func (j *judgement) allowRecords() {
	d := j.decisions()
	want := 1
	if j.opened && len(d) > 0 && d[len(d)-1].Kind == record.KindRequest {
		want = 2 // plain HTTP in a tunnel: the tunnel, and the request in it
	}
	if len(d) != want {
		j.wrong("%d decisions are recorded, want %d: %+v", len(d), want, j.records)
	}
	for i := range d {
		if d[i].Decision.Action != "allow" {
			j.wrong("a record denies: %+v", d[i].Decision)
		}
		j.common(&d[i])
		j.destination(&d[i])
	}
	j.dialled()
}

// dialled checks the address that the last record names against what was seen
// on the wire and in the data.
func (j *judgement) dialled() {
	last := j.last()
	if last == nil || last.Kind != record.KindClose || last.Outcome == "" || last.Decision.Action != "allow" || last.Dst == nil {
		j.wrong("the last record does not end the flow: %+v", last)
		return
	}
	at := last.Dst.Addr
	seen := func(p lab.Packet) bool { return p.Protocol == lab.ProtocolTCP && p.To.Addr().String() == at }
	if !slices.Contains(j.Allow, at) || !slices.ContainsFunc(j.packets, seen) {
		j.wrong("the records say %q was dialled, the wire saw %v, want %v", at, j.packets, j.Allow)
	}
	if host, _ := canonical(j.to); net.ParseIP(host) != nil && host != at {
		j.wrong("%s was asked for, %s dialled", host, at)
	}
	if j.first != "" && (len(j.arrived) != 1 || j.arrived[0].received != j.first) {
		j.wrong("upstream did not receive what was sent: %+v", j.arrived)
	}
	j.speaker(at)
}

// speaker checks that what came back names the address that was dialled.
func (j *judgement) speaker(dialled string) {
	_, port := canonical(j.to)
	if from := net.JoinHostPort(dialled, port); strings.HasPrefix(j.data, "origin ") && !strings.HasPrefix(j.data, "origin "+from+" ") {
		j.wrong("the data is not from %s: %q", from, j.data)
	}
}

// cut checks a tunnel that was opened and then refused.
func (j *judgement) cut() {
	if !j.opened {
		j.wrong("the tunnel was not opened: %s (%v)", j.explain(), j.err)
		return
	}
	if !j.closed {
		j.wrong("the tunnel stayed open, with %q", j.data)
	}
	if j.data != "" && !refusedBy(j.data) {
		j.wrong("data came: %q", j.data)
	}
	j.reached([]string{allowedIPv4, allowedIPv6})
	for _, a := range j.arrived {
		if a.received != "" {
			j.wrong("%s received %q", a.to, a.received)
		}
	}
	j.cutRecords()
}

func (j *judgement) cutRecords() {
	var refusals []record.Record
	for _, r := range j.records {
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
		j.wrong("%d records refuse the tunnel, want 1: %+v", len(refusals), j.records)
		return
	}
	if r := refusals[0]; !j.Ended && !slices.Contains(j.Cut, policy.Class(r.Decision.Class)) {
		j.wrong("the record's class is %q, want one of %q", r.Decision.Class, j.Cut)
	} else if r.Bytes != nil && r.Bytes.Up != 0 {
		j.wrong("the record says that %d bytes went up", r.Bytes.Up)
	}
}

func (j *judgement) last() *record.Record {
	if len(j.records) == 0 {
		return nil
	}
	return &j.records[len(j.records)-1]
}
