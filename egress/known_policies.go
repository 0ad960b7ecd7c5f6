package egress

import (
	"slices"
	"sync/atomic"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// knownPolicies are what records say of the policies that were in force last. A record may be about a decision by an earlier
// one. The zero value knows none; it is safe for concurrent use.
type knownPolicies struct{ atomic.Pointer[[]knownPolicy] }

type knownPolicy struct{ digest, rules, revision string }

const maxKnownPolicies = 32

// add adds a policy. Only one goroutine may call it at a time.
func (k *knownPolicies) add(p *policy.Policy) {
	var before []knownPolicy
	if all := k.Load(); all != nil {
		before = *all
	}
	one := knownPolicy{p.Digest(), p.RulesID(), p.Revision()}
	if len(before) > 0 && before[0] == one {
		return
	}
	all := append([]knownPolicy{one}, slices.DeleteFunc(slices.Clone(before), func(b knownPolicy) bool { return b.digest == one.digest })...)
	all = all[:min(len(all), maxKnownPolicies)]
	k.Store(&all)
}

// policy writes the digest of a policy, the id of its rules and the revisions of its bundles.
func (e *encoder) policy(known *knownPolicies, digest string) {
	e.Text("policy", digest)
	all := known.Load()
	if all == nil {
		return
	}
	for i := range *all {
		if one := &(*all)[i]; one.digest == digest {
			e.Text("rules", one.rules)
			e.TextWithin("revision", one.revision, record.MaxRaw)
			return
		}
	}
}
