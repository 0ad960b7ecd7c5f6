package signals

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A program holds the denials of one program of a sandbox, for all destinations.
type program struct {
	flows         int64
	first, last   time.Time // times of denials
	denied        int64
	targets       distinct // denied destinations with ports
	hour          int64    // current hour, in hours since 1970
	current       distinct // destinations denied in this hour
	atOnce        float64  // maximum of current over all hours
	addressDenied int64    // of denied, addresses that no policy opens
	summed        int64    // of denied, those beyond the budget of records of the sandbox
	domains       int64    // of summed, maximum in one sum
	repeated      string   // the domain of the largest sum that has one domain
	repeats       int64    // of repeated, in that sum
	ways          ways     // since the last pause without denials
	most          ways     // maximum between two pauses
	ids           []string

	// refused holds the last two denials of different destinations.
	refused [2]refusal
}

// A refusal is the last denial of a destination.
type refusal struct {
	to string
	at time.Time
}

// soon is the time after a denial during which a flow may be a reaction to it.
const soon = 2 * time.Minute

// deniedBefore returns the time when a destination other than to was denied last. It is zero if there was
// none.
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

// ways is a set of methods that a program tries one after the other.
type ways uint8

const (
	byName ways = 1 << iota
	byAddress
	byPort
	bySOCKS
	bySSH
	overDNS
	byType
)

// afterwards is the longest pause between attempts that belong together.
const afterwards = time.Minute

var wayNames = []string{"a name", "an address", "another port", "SOCKS", "ssh", "names over HTTPS", "another type of name record"}

func wayOf(r *record.Record) ways {
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

// add counts a decision about the destination to.
func (p *program) add(seed uint64, r *record.Record, to string) {
	if r.Decision.Action == "allow" || strings.HasPrefix(r.Decision.Class, "network-") {
		return
	}
	if r.Time.Sub(p.last) > afterwards {
		p.ways = 0
	}
	p.first, p.last = earliest(p.first, r.Time), latest(p.last, r.Time)
	p.denied += r.Times()
	if r.Names != nil {
		p.summed += r.Times()
		p.domains = max(p.domains, r.Names.Domains)
		if host := logs.Host(r); host != "*" && r.Times() > p.repeats {
			p.repeated, p.repeats = strings.Clone(host), r.Times()
		}
	}
	p.remember(to, r.Time)
	target := to + ":" + logs.Port(r) // names below one domain count once
	p.targets.add(seed, target)
	if hour := r.Time.Unix() / 3600; hour != p.hour {
		p.hour, p.current = hour, distinct{}
	}
	if p.current.add(seed, target) {
		p.atOnce = max(p.atOnce, p.current.count())
	}
	if r.Decision.Class == string(policy.AddressDenied) {
		p.addressDenied += r.Times()
	}
	p.ways |= wayOf(r)
	if bits.OnesCount8(uint8(p.ways)) > bits.OnesCount8(uint8(p.most)) {
		p.most = p.ways
		p.ids = append(p.ids, strings.Clone(r.Flow))
		p.ids = p.ids[max(0, len(p.ids)-maxIDs):]
	}
}

func (p *program) judge() (int, []Signal) {
	return together([]Signal{p.searches(), p.fallsBack(), p.floods()})
}

// searches scores denials of many different targets. A program that reads the web meets many in days; a
// program that looks for a way out meets as many within an hour.
func (p *program) searches() Signal {
	n := p.targets.count()
	score := max(scaled(p.atOnce, 10, 200, 60), scaled(n, 10, 200, 60)/2)
	evidence := fmt.Sprintf("%d denials for %s different destinations, %s of them within an hour", p.denied, about(n), about(p.atOnce))
	if p.addressDenied > 0 {
		score += 15
		evidence += fmt.Sprintf("; %d for addresses that no allow rule opens", p.addressDenied)
	}
	return Signal{"search", score, evidence, nil}
}

// floods scores denials beyond the budget of records, among which a single one is hard to find.
func (p *program) floods() Signal {
	if p.summed == 0 {
		return Signal{}
	}
	most := ""
	if p.repeats > 0 {
		most = fmt.Sprintf(", up to %d of them of %s", p.repeats, p.repeated)
	}
	return Signal{"flood", scaled(float64(p.summed), 1, 10_000, 60),
		fmt.Sprintf("%d denials came too fast for a record each, of up to %d domains in a second%s: look for what the flood may hide", p.summed, max(1, p.domains), most), nil}
}

// fallsBack scores a program that tries other methods after a denial.
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
	return Signal{"fallback", min(70, 20*(n-1)), "denied one after the other: " + strings.Join(names, ", "), nil}
}
