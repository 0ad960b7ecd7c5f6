package world

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

func (j *judgement) allowed() {
	if len(j.Answers) != 1 || j.Err != nil {
		j.wrong("no data came, but %d answers and %v: %s", len(j.Answers), j.Err, j.explain())
		return
	}
	a := &j.Answers[0]
	if a.Reply > 0 || a.Reply < 0 && a.Status != 200 {
		j.wrong("not allowed: status %d, SOCKS reply %d, %s", a.Status, a.Reply, a.phrase)
		return
	}
	if a.Reply == 0 && hex.EncodeToString(a.raw) != "05000001000000000000" {
		j.wrong("the SOCKS reply is %x: it must not name an address", a.raw)
	}
	if j.Data == "" || RefusedBy(j.Data) {
		j.wrong("no data came from the far host: %q", j.Data)
	}
	j.reached(j.Allow)
	j.allowRecords()
}

func (j *judgement) explain() string {
	if len(j.Answers) == 0 {
		return "no answer"
	}
	return fmt.Sprintf("%d %s", j.Answers[0].Status, j.Answers[0].phrase)
}

// reached checks that nobody but the given addresses was spoken to.
func (j *judgement) reached(addrs []string) {
	host, port := "", ""
	if j.to != "" {
		host, port = canonical(j.to)
	}
	for _, p := range j.Packets {
		expected := slices.Contains(addrs, p.To.Addr().String()) && p.Protocol == lab.ProtocolTCP && (port == "" || fmt.Sprint(p.To.Port()) == port)
		if p.To.String() != Resolver && !expected {
			j.wrong("a packet was sent: %s", p)
		}
	}
	for _, q := range j.Queries {
		if host != "" && q != cmp.Or(j.Host, host) {
			j.wrong("the name server was asked for %q", q)
		}
	}
}

// allowRecords checks that one decision allows, and that the address which the
// flow's record names is the one that was seen on the wire and in the data.
func (j *judgement) allowRecords() {
	d := j.decisions()
	want := 1
	if (!j.claims || isCaptured(j.Way)) && j.Opened && len(d) > 0 && d[len(d)-1].Kind == record.KindRequest {
		want = 2 // plain HTTP in a tunnel: the tunnel, and the request in it
	}
	if len(d) != want {
		j.wrong("%d decisions are recorded, want %d: %+v", len(d), want, j.Records)
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
	if !slices.Contains(j.Allow, at) || !slices.ContainsFunc(j.Packets, seen) {
		j.wrong("the records say %q was dialled, the wire saw %v, want %v", at, j.Packets, j.Allow)
	}
	if host, _ := canonical(j.to); j.Host == "" && net.ParseIP(host) != nil && host != at {
		j.wrong("%s was asked for, %s dialled", host, at)
	}
	if j.first != "" && (len(j.Arrived) != 1 || j.Arrived[0].Received != j.first) {
		j.wrong("upstream did not receive what was sent: %+v", j.Arrived)
	}
	j.speaker(at)
}

// speaker checks that what came back names the address that was dialled.
func (j *judgement) speaker(dialled string) {
	_, port := canonical(j.to)
	if from := net.JoinHostPort(dialled, port); strings.HasPrefix(j.Data, "origin ") && !strings.HasPrefix(j.Data, "origin "+from+" ") {
		j.wrong("the data is not from %s: %q", from, j.Data)
	}
}
