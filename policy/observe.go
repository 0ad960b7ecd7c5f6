package policy

import (
	"context"
	"slices"
	"time"
)

// LearnRule is the rule of what passed only because of an [Observation].
const LearnRule = "learn"

// An Observation lets requests pass that no rule of any layer is about, by the rule [LearnRule]. If it is for one sandbox, it
// also lets pass what the sandbox's own list of allows does not mention, except special addresses. Nothing else is loosened:
// denials, questions, Rego of sandboxes, ceilings and the baseline hold.
type Observation struct {
	Sandbox string    `json:"sandbox,omitempty"` // whom it is for: a listed sandbox, or a template; empty: everybody
	Until   time.Time `json:"until,omitzero"`    // when it ends; zero: it has no end

	// Left returns how long it still lasts; 0 when it has ended. Every decision that it may change calls Left. A nil Left
	// means that it has no end.
	Left func() time.Duration `json:"-"`
}

// Lasts reports whether the observation has not ended. A nil observation does not last.
func (o *Observation) Lasts() bool { return o != nil && (o.Left == nil || o.Left() > 0) }

// Text names the observation: "everybody until 2026-12-31T18:00:00Z", "sandbox ci".
func (o *Observation) Text() string {
	text := "everybody"
	if o.Sandbox != "" {
		text = "sandbox " + o.Sandbox
	}
	if !o.Until.IsZero() {
		text += " until " + o.Until.Format(time.RFC3339)
	}
	return text
}

// observations are those of a policy. The zero value has none.
type observations struct {
	all   []Observation
	every *Observation // of all, the one for everybody, or nil
	lists sandboxLayer
}

func newObservations(all []Observation, lists sandboxLayer) observations {
	o := observations{all: all, lists: lists}
	if i := slices.IndexFunc(all, func(one Observation) bool { return one.Sandbox == "" }); i >= 0 {
		o.every = &all[i]
	}
	return o
}

// byName returns the observations of single sandboxes and templates.
func byName(all []Observation) listedSandboxes[*Observation] {
	named := map[string]*Observation{}
	for i := range all {
		if all[i].Sandbox != "" {
			named[all[i].Sandbox] = &all[i]
		}
	}
	return newListed(named)
}

// counts reports whether what no rule is about passes for a sandbox.
func (o *observations) counts(name string) bool {
	return o.every.Lasts() || o.lists.observed.of(name).Lasts()
}

// any reports whether it does for some sandbox.
func (o *observations) any() bool {
	return slices.ContainsFunc(o.all, func(one Observation) bool { return one.Lasts() })
}

// mark names [LearnRule] in a decision that the sandbox's own list would have denied. The credential of a rule for others
// does not go with it.
func (o *observations) mark(ctx context.Context, r *Request, d Decision) Decision {
	if len(o.all) == 0 || d.Verdict < Inspect || d.Verdict > Allow {
		return d
	}
	own := o.lists.relaxed(r)
	if own == nil {
		return d
	}
	if listed, err := own.Evaluate(ctx, r); err != nil || listed.Verdict != Abstain {
		return d
	}
	d.Rule, d.Layer, d.Inject = LearnRule, User, ""
	d.Reason = "no rule of this sandbox speaks of " + whereTo(r) + ", which is let pass to be learned"
	return d
}

// relaxed returns a copy of the own list of an observed sandbox that abstains where the list mentions nothing. It
// returns nil if there is no such list, and for special addresses and names, which an observation does not open.
func (l sandboxLayer) relaxed(r *Request) *rules {
	if !l.observed.of(r.Sandbox.Name).Lasts() {
		return nil
	}
	own := l.rulesOf(&r.Sandbox)
	if own == nil || own.silence != exhaustive || l.special(&r.Destination) {
		return nil
	}
	lists := *own
	lists.silence = silent
	return &lists
}

func (l sandboxLayer) special(d *Destination) bool {
	return d.Addr.IsValid() && l.baseline.special(d.Addr) || classOfName(d.Host) != ""
}

// Observed returns the observations of the policy, also those that have ended. The caller must not change them.
func (p *Policy) Observed() []Observation {
	if p == nil {
		return nil
	}
	return p.observed.all
}

// Observing returns the observations that have not ended.
func (p *Policy) Observing() []Observation {
	return slices.DeleteFunc(slices.Clone(p.Observed()), func(o Observation) bool { return !o.Lasts() })
}

// Observes reports whether what no rule is about passes for a sandbox now.
func (p *Policy) Observes(who *Sandbox) bool { return p != nil && p.observed.counts(who.Name) }

// Enforced returns p as it decides when all observations have ended.
func (p *Policy) Enforced() *Policy {
	if len(p.Observed()) == 0 {
		return p
	}
	enforced := *p
	enforced.observed = observations{}
	enforced.evaluators = slices.Clone(p.evaluators)
	for i, e := range enforced.evaluators {
		if l, ok := e.(sandboxLayer); ok {
			l.observed = listedSandboxes[*Observation]{}
			enforced.evaluators[i] = l
		}
	}
	return &enforced
}

// observationTexts is what identifies observations.
func observationTexts(all []Observation) (texts []string) {
	for _, o := range all {
		o.Until = o.Until.UTC()
		texts = append(texts, o.Text())
	}
	slices.Sort(texts)
	return texts
}
