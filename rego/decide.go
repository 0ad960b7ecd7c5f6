package rego

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// An opinion is a member of one of the deciding sets. If partial evaluation found it, needs and words
// describe its remaining conditions.
type opinion struct {
	rule   string
	reason string

	anyProtocol, ech, upgrade bool // permissions that an allow adds
	inject                    string
	maxBytesUp                int64
	log                       bool
	question                  string // id of an approved question; the opinion was an ask and counts as an allow

	needs policy.Needs // parts of the request that the opinion depends on; 0 for none
	words string       // conditions on the request, as text
	way   *allowedWay  // nil without needs

	pending bool // it depends on something else that a later stage adds, such as addresses
}

// gives reports whether an allow permits more than its destination.
func (o opinion) gives() bool { return o.anyProtocol || o.ech || o.upgrade || o.inject != "" }

const (
	maxRuleBytes   = 64
	maxReasonBytes = 256
)

// opinionOf parses a member of a set: an object with "rule", an optional "reason" and options.
func opinionOf(t *ast.Term) (o opinion, err error) {
	members, ok := t.Value.(ast.Object)
	if !ok {
		return o, notAMember(ast.ValueName(t.Value))
	}
	members.Until(func(key, value *ast.Term) bool {
		err = o.set(key, value)
		return err != nil
	})
	if err == nil && o.rule == "" {
		err = errNoRule
	}
	return o, err
}

func (o *opinion) set(key, value *ast.Term) (err error) {
	name, _ := key.Value.(ast.String)
	switch name {
	case "rule":
		o.rule, err = ruleName(value)
	case "reason":
		o.reason, err = reasonText(value)
	case "ech":
		o.ech, err = option(value, "allow", "refuse")
	case "tls":
		o.anyProtocol, err = option(value, "any", "required")
	case "upgrade":
		o.upgrade, err = option(value, "websocket", "none")
	case "inject":
		o.inject, err = ruleName(value)
	case "log":
		log, ok := value.Value.(ast.Boolean)
		if o.log = bool(log); !ok {
			err = fmt.Errorf("it wants true or false")
		}
	case "max_bytes_up":
		o.maxBytesUp, err = byteBudget(value)
	default:
		return unknownPart(string(name))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strconv.QuoteToASCII(clip(string(name), maxRuleBytes)), err)
	}
	return nil
}

var errNoRule = errors.New(`a member has no rule; write: {"rule": "NAME"}`)

func notAMember(what string) error {
	if what == "string" {
		return errors.New(`a member is a string, as conftest has them; write an object: {"rule": "NAME", "reason": msg}`)
	}
	return fmt.Errorf(`a member is %s; write an object: {"rule": "NAME"}`, what)
}

// unknownPart is the error for a part that a member cannot have.
func unknownPart(name string) error {
	quoted := strconv.QuoteToASCII(clip(name, maxRuleBytes))
	switch name {
	case "msg", "message", "details", "metadata":
		return fmt.Errorf(`%s is how conftest and Gatekeeper say it; write: {"rule": "NAME", "reason": msg}`, quoted)
	}
	return fmt.Errorf("%s: it is none of rule, reason, ech, tls, upgrade, inject, log, max_bytes_up", quoted)
}

// option parses one of two words. It returns true for the permissive one.
func option(t *ast.Term, loose, strict string) (bool, error) {
	word, _ := t.Value.(ast.String)
	switch string(word) {
	case loose:
		return true, nil
	case strict:
		return false, nil
	}
	return false, fmt.Errorf("it wants %q or %q", loose, strict)
}

// byteBudget parses a number of bytes. Zero is an error, because it could be read as "no limit".
func byteBudget(t *ast.Term) (int64, error) {
	n, ok := t.Value.(ast.Number)
	if bytes, whole := n.Int64(); ok && whole && bytes > 0 {
		return bytes, nil
	}
	return 0, fmt.Errorf("it wants a whole number of bytes, at least 1")
}

// ruleName parses a rule id, which appears in replies and in the log.
func ruleName(t *ast.Term) (string, error) {
	name, ok := t.Value.(ast.String)
	if !ok || name == "" || len(name) > maxRuleBytes {
		return "", fmt.Errorf("it wants a name of at most %d bytes", maxRuleBytes)
	}
	if strings.IndexFunc(string(name), func(c rune) bool { return c <= ' ' || c >= 0x7f }) >= 0 {
		return "", fmt.Errorf("it wants a name of printable ASCII without spaces")
	}
	return string(name), nil
}

// reasonText parses a reason and escapes characters outside printable ASCII, because a reason may contain
// text from a sandbox.
func reasonText(t *ast.Term) (string, error) {
	reason, ok := t.Value.(ast.String)
	if !ok {
		return "", fmt.Errorf("it wants a sentence")
	}
	quoted := strconv.QuoteToASCII(clip(string(reason), maxReasonBytes))
	return clip(strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`), maxReasonBytes), nil
}

func clip(s string, n int) string { return s[:min(len(s), n)] }

// opinions are the members of the deciding sets for one request. mayAsk are asks that depend on unknown
// addresses, as allows: the name must be resolved first.
type opinions struct{ deny, ask, allow, mayAsk []opinion }

func (os *opinions) add(v policy.Verdict, o opinion) {
	switch v {
	case policy.Deny:
		os.deny = append(os.deny, o)
	case policy.Ask:
		os.ask = append(os.ask, o)
	case policy.Allow:
		os.allow = append(os.allow, o)
	}
}

// certain returns the first opinion, ordered by rule, without remaining conditions.
func certain(all []opinion) (first opinion, found bool) {
	for _, o := range all {
		if o.needs == 0 && (!found || compareOpinions(o, first) < 0) {
			first, found = o, true
		}
	}
	return first, found
}

func compareOpinions(a, b opinion) int {
	return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.reason, b.reason), cmp.Compare(a.words, b.words))
}

func needsOf(all []opinion) (n policy.Needs) {
	for _, o := range all {
		n |= o.needs
	}
	return n
}

// conditions returns the parts of the request that decide whether a credential is injected and which byte
// budget applies.
func conditions(allow []opinion) policy.Needs {
	return needsOf(without(allow, func(o opinion) bool { return o.inject == "" && o.maxBytesUp == 0 }))
}

// decide combines all opinions into one decision. Any opinion that holds may mark it for the log.
func (e *Evaluator) decide(r *policy.Request, os *opinions) (policy.Decision, error) {
	d, err := e.verdict(r, os)
	d.Question = approvedQuestions(os.allow)
	d.Log = marked(os.deny) || marked(os.ask) || marked(os.allow)
	return d, err
}

func marked(all []opinion) bool {
	return slices.ContainsFunc(all, func(o opinion) bool { return o.log && o.needs == 0 })
}

func (e *Evaluator) verdict(r *policy.Request, os *opinions) (policy.Decision, error) {
	e.approve(r, os)
	if e.bare && slices.ContainsFunc(os.allow, opinion.gives) {
		return policy.Decision{}, fmt.Errorf("a member gives ech, tls, upgrade or inject, which it cannot here")
	}
	restrict := needsOf(os.deny) | needsOf(os.ask)
	if by, found := certain(os.deny); found {
		return e.say(policy.Deny, policy.RuleDeny, by, "denies this"), nil
	}
	if by, found := certain(os.ask); found {
		d := e.say(policy.Ask, policy.AskRejected, by, "asks a person about this")
		d.Source = e.source
		d.Needs = needsOf(os.deny)
		return d, nil
	}
	by, found := certain(os.allow)
	switch {
	case !found && len(os.allow) == 0:
		return policy.Decision{Verdict: policy.Abstain, Needs: restrict, AllowedIf: unless(os)}, nil
	case !found:
		return e.inspect(os, restrict|needsOf(os.allow)), nil
	case restrict|conditions(os.allow) != 0:
		return e.inspect(os, restrict|conditions(os.allow)), nil
	}
	d := e.say(policy.Allow, "", by, "allows this")
	return e.loosen(d, r, os)
}

// approve turns each approved ask into an allow. An ask with remaining conditions stays an ask.
func (e *Evaluator) approve(r *policy.Request, os *opinions) {
	if len(r.Approved) == 0 {
		return
	}
	asked := os.ask
	os.ask = nil
	for _, o := range asked {
		question := r.ApprovedBy(e.layer, e.source, o.rule)
		if question == "" || o.needs != 0 {
			os.ask = append(os.ask, o)
			continue
		}
		os.allow = append(os.allow, opinion{rule: o.rule, reason: o.reason, maxBytesUp: o.maxBytesUp, log: o.log, question: question}) // an approval adds no further permissions
	}
}

// approvedQuestions returns the ids of the approved questions, separated by spaces.
func approvedQuestions(allow []opinion) string {
	var all []string
	for _, o := range allow {
		if o.question != "" {
			all = append(all, o.question)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

func (e *Evaluator) say(v policy.Verdict, class policy.Class, by opinion, does string) policy.Decision {
	reason := by.reason
	if reason == "" {
		reason = "rule " + by.rule + " " + does
	}
	return policy.Decision{Verdict: v, Class: class, Rule: by.rule, Layer: e.layer, Reason: reason}
}

// loosen adds the permissions of the rules that allow the request. A permission of any rule applies. Of
// several byte budgets the smallest applies. A pending rule
// sets no budget and adds no credential yet. Before the addresses are known, a pending
// rule also keeps the permissions of other layers, because the addresses may rule it out.
func (e *Evaluator) loosen(d policy.Decision, r *policy.Request, os *opinions) (policy.Decision, error) {
	d.Upgrade = e.reads&readsHTTP == 0 // Evaluate looks further if the policy reads requests
	inject, later := "", false
	for _, o := range os.allow {
		if o.needs != 0 {
			continue
		}
		d.AnyProtocol = d.AnyProtocol || o.anyProtocol
		d.ECH = d.ECH || o.ech
		d.Upgrade = d.Upgrade || o.upgrade
		if o.pending && pending(r)&readsResolved != 0 {
			d.AnyProtocol, d.ECH, d.Upgrade = true, true, true
		}
		if o.pending {
			later = later || o.inject != ""
			continue
		}
		d.Spend(o.maxBytesUp, o.rule, e.layer)
		if err := e.injects(o.inject, r); err != nil {
			return policy.Decision{}, err
		}
		if o.inject != "" && inject != "" && o.inject != inject {
			return policy.Decision{}, fmt.Errorf("rules that hold at once inject both %s and %s", inject, o.inject)
		}
		inject = cmp.Or(inject, o.inject)
	}
	switch {
	case inject == "" && !later || r.DNS != nil || inClear(r):
	case r.HTTP == nil:
		d.Verdict, d.Needs = policy.Inspect, policy.NeedsCredential
	default:
		d.Inject = inject
	}
	return d, nil
}

// inClear reports whether the request was sent without TLS. A credential would be readable on the network.
func inClear(r *policy.Request) bool {
	return r.Via == policy.ViaHTTP || r.Protocol == policy.ProtocolHTTP && r.TLS == nil
}

// inspect returns a decision to inspect, since the decision depends on the HTTP request.
func (e *Evaluator) inspect(os *opinions, needs policy.Needs) policy.Decision {
	by := slices.MinFunc(os.allow, compareOpinions)
	d := e.say(policy.Inspect, "", by, "allows some requests")
	for _, o := range os.allow {
		if o.inject != "" {
			needs |= policy.NeedsCredential
		}
	}
	d.Needs, d.AllowedIf = needs, allowedIf(os)
	return d
}
