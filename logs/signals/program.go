package signals

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
)

// A program is what one program of a sandbox was denied, wherever that was.
type program struct {
	flows       int64
	first, last time.Time // of what was denied
	denied      int64
	targets     distinct // that were denied
	hour        int64    // since 1970, that is now
	now         distinct // what was denied in it
	atOnce      float64  // the most in an hour
	guarded     int64    // of them, addresses that no policy opens
	ways        ways     // since the last time that nothing was denied for a while
	most        ways     // the most in such a time
	ids         []string

	// The last two denials of different destinations.
	refused [2]refusal
}

// A refusal is when a destination was denied last.
type refusal struct {
	to string
	at time.Time
}

// soon is how long after a refusal what is done may be done because of it.
const soon = 2 * time.Minute

// deniedBefore is when another destination was denied last; zero for never.
func (p *program) deniedBefore(to string) time.Time {
	if p.refused[0].to != to {
		return p.refused[0].at
	}
	return p.refused[1].at
}

func (p *program) remember(to string, at time.Time) {
	if p.refused[0].to != to {
		p.refused[1] = p.refused[0]
		p.refused[0].to = strings.Clone(to)
	}
	p.refused[0].at = at
}

// ways are the kinds of ways that somebody tries one after the other.
type ways uint8

const (
	byName ways = 1 << iota
	byAddress
	byPort
	bySOCKS
	bySSH
	overDNS
	byType
	afterwards = time.Minute // in which the next try belongs to the last
)

var wayNames = []string{"a name", "an address", "another port", "SOCKS", "ssh", "names over HTTPS", "another type of name record"}

func wayOf(r *egress.Record) ways {
	port := logs.Port(r)
	host := logs.Host(r)
	switch {
	case r.Decision.Class == string(policy.DNSTypeDenied):
		return byType
	case below(overHTTPS, host) != "":
		return overDNS
	case port == "22":
		return bySSH
	case r.Via == string(policy.ViaSOCKS5):
		return bySOCKS
	case isAddress(host):
		return byAddress
	case port != "" && port != "0" && port != "443" && port != "80":
		return byPort
	}
	return byName
}

func (p *program) add(r *egress.Record) {
	if r.Decision.Action == "allow" || strings.HasPrefix(r.Decision.Class, "network-") {
		return
	}
	if r.Time.Sub(p.last) > afterwards {
		p.ways = 0
	}
	p.first, p.last = earliest(p.first, r.Time), latest(p.last, r.Time)
	p.denied += r.Times()
	to := destination(r)
	p.remember(to, r.Time)
	place := to + ":" + logs.Port(r) // names below one domain are one place
	p.targets.add(place)
	if hour := r.Time.Unix() / 3600; hour != p.hour {
		p.hour, p.now = hour, distinct{}
	}
	if p.now.add(place) {
		p.atOnce = max(p.atOnce, p.now.count())
	}
	if r.Decision.Class == string(policy.AddressDenied) {
		p.guarded += r.Times()
	}
	p.ways |= wayOf(r)
	if bits.OnesCount8(uint8(p.ways)) > bits.OnesCount8(uint8(p.most)) {
		p.most = p.ways
		p.ids = append(p.ids, strings.Clone(r.Flow))
		p.ids = p.ids[max(0, len(p.ids)-maxIDs):]
	}
}

func (p *program) judge() (int, []Signal) {
	return together([]Signal{p.searches(), p.fallsBack()})
}

// searches is about denials whose targets change: who reads what the web has to say meets many in
// days, who looks for an open door as many in an hour.
func (p *program) searches() Signal {
	n := p.targets.count()
	score := max(scaled(p.atOnce, 10, 200, 60), scaled(n, 10, 200, 60)/2)
	evidence := fmt.Sprintf("%d denials of %.0f different places, %.0f within an hour", p.denied, n, p.atOnce)
	if p.guarded > 0 {
		score += 15
		evidence += fmt.Sprintf("; %d of addresses that no policy opens", p.guarded)
	}
	return Signal{"search", score, evidence}
}

// fallsBack is about other ways that are tried when one was denied.
func (p *program) fallsBack() Signal {
	n := bits.OnesCount8(uint8(p.most))
	if n < 2 {
		return Signal{}
	}
	var names []string
	for i, name := range wayNames {
		if p.most&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return Signal{"fallback", min(70, 20*(n-1)), "denied one after the other: " + strings.Join(names, ", ")}
}
