package rego

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/policy"
)

// A shape is what policies that were written for another gate are given as input,
// and how their answer is read. They decide about HTTP requests alone.
type shape struct {
	schema string      // the file
	lacks  []string    // names that the other gate gives, and that say nothing else
	asked  []string    // what is asked: the first of these that the policy has
	parts  []shapePart // which fields the input is made of

	// input is for one address of the destination, which is not valid where the
	// policy does not look at it.
	input func(r *policy.Request, addr netip.Addr) (*ast.Term, error)

	// answer is what the policy says of it: true, false, or an object with the key allows.
	answer  func(*ast.Term) (answer, error)
	allows  string
	changes []string // keys of the object that change the request, which is not supported
}

type shapePart struct {
	path   string
	fields fields
}

type answer struct {
	allowed bool
	reason  string
}

// shapes are the inputs that [Options.Input] names beside egressd's own. It is never
// written.
var shapes = map[string]*shape{"envoy": &envoyShape, "authbridge": &authBridgeShape}

// shapeFor returns nil for egressd's own input.
func shapeFor(name string) (*shape, error) {
	if name == "" || name == "egressd" {
		return nil, nil
	}
	s, ok := shapes[name]
	if !ok {
		return nil, fmt.Errorf("there is no input %q; write egressd, envoy or authbridge", name)
	}
	return s, nil
}

const verdictVar = "verdict"

// loadForeign compiles a policy that was written for another gate.
func loadForeign(sources []Source, o Options, s *shape) (*Evaluator, error) {
	set, err := parseFor(s, sources, false)
	if err != nil {
		return nil, err
	}
	c := &compiled{}
	if c.compiler, err = set.check(); err != nil {
		return nil, err
	}
	if c.store, c.txn, err = openData(set.data); err != nil {
		return nil, err
	}
	asked, err := s.find(c)
	if err != nil {
		return nil, err
	}
	o.Package = asked
	e := newEvaluator(o)
	e.whole, e.foreign = c, s
	e.reads, e.looks = c.readsBy(asked, s.fieldsIn)|readsMethod, true // a request is all that it decides about
	absent, err := s.absent(c.compiler)
	if err != nil {
		return nil, err
	}
	if problems := slices.Concat(set.undefined(c.compiler), unseen(c.compiler, e.reads), absent); len(problems) > 0 {
		return nil, problems
	}
	return e, nil
}

// find looks which rule, or which package, of the policy is asked.
func (s *shape) find(c *compiled) (asked string, err error) {
	for _, asked := range s.asked {
		ref := ast.MustParseRef("data." + asked)
		rules := c.compiler.GetRulesWithPrefix(ref)
		if len(rules) == 0 {
			continue
		}
		q := &question{rules: rules}
		q.query, err = c.compileQuery(ast.NewBody(ast.Equality.Expr(ast.VarTerm(verdictVar), ast.NewTerm(ref))))
		c.questions = map[string]*question{asked: q}
		return asked, err
	}
	return "", fmt.Errorf("no file has a rule for %s, which is what is asked", strings.Join(s.asked, " or "))
}

// unseen refuses the names of headers that policies do not see, in one that looks at
// headers: it would take them for absent, and "not" would hold.
func unseen(c *ast.Compiler, reads fields) (problems policy.FileError) {
	if reads&readsHeaders == 0 {
		return nil
	}
	for _, m := range c.Modules {
		ast.WalkTerms(m, func(t *ast.Term) bool {
			if name, ok := t.Value.(ast.String); ok && isCredential(strings.ToLower(string(name))) {
				problems = append(problems, problemAt(t.Location, fmt.Sprintf("policies do not see the header %s, since it is a credential; take it out of the policy", name)))
			}
			return false
		})
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems)
}

// fieldsIn is [fieldsIn] for this input.
func (s *shape) fieldsIn(x any) (reads fields) {
	ast.WalkRefs(x, func(ref ast.Ref) bool {
		switch {
		case ref.HasPrefix(ast.InputRootRef):
			path := strings.Join(words(ref[1:]), ".") + "."
			for _, part := range s.parts {
				if strings.HasPrefix(path, part.path+".") || strings.HasPrefix(part.path+".", path) || path == "." {
					reads |= part.fields
				}
			}
		case ref.String() == "time.now_ns", ref.String() == boundedPrefix+"time.now_ns":
			reads |= readsTime
		}
		return false
	})
	return reads
}

// beforeRequest decides as long as there is no request to decide about: one is to be
// inspected; about questions of DNS the policy has no opinion. Paths that servers read
// in different ways are denied, whatever the policy reads.
func (e *Evaluator) beforeRequest(r *policy.Request) (d policy.Decision, decided bool) {
	switch {
	case r.DNS != nil:
		return policy.Decision{Verdict: policy.Abstain}, true
	case r.HTTP == nil:
		d = e.say(policy.Inspect, "", opinion{rule: e.pkg}, "is asked about requests")
		d.Needs = policy.NeedsMethod | policy.NeedsPath | policy.NeedsHeaders
		return d, true
	}
	return e.ambiguousPath(), !policy.CanonicalPath(r.HTTP.Path)
}

// askForeign wants every address that could be dialled to be allowed, where the
// policy looks at addresses.
func (e *Evaluator) askForeign(ctx context.Context, r *policy.Request, cancel topdown.Cancel) (policy.Decision, error) {
	addrs, err := e.addressesOf(r)
	if err != nil {
		return policy.Decision{}, err
	}
	var a answer
	for _, addr := range addrs {
		if a, err = e.askAbout(ctx, r, addr, cancel); err != nil {
			return policy.Decision{}, err
		}
		if !a.allowed {
			return e.say(policy.Deny, policy.RuleDeny, opinion{rule: e.pkg, reason: a.reason}, "does not allow this"), nil
		}
	}
	return e.say(policy.Allow, "", opinion{rule: e.pkg, reason: a.reason}, "allows this"), nil
}

func (e *Evaluator) addressesOf(r *policy.Request) ([]netip.Addr, error) {
	switch {
	case e.reads&readsAddresses == 0:
		return []netip.Addr{{}}, nil
	case len(r.Destination.Addrs) > 0:
		return r.Destination.Addrs, nil
	case r.Destination.Addr.IsValid():
		return []netip.Addr{r.Destination.Addr}, nil
	}
	return nil, errors.New("the policy looks at the address of the destination, which is not known")
}

// askAbout asks about one address. What is undefined does not allow.
func (e *Evaluator) askAbout(ctx context.Context, r *policy.Request, addr netip.Addr, cancel topdown.Cancel) (a answer, err error) {
	in, err := e.foreign.input(r, addr)
	if err != nil {
		return a, fmt.Errorf("making the input: %w", err)
	}
	err = e.question(e.whole, e.whole.questions[e.asks].query, in, r, cancel).Iter(ctx, func(result topdown.QueryResult) (err error) {
		a, err = e.foreign.answer(result[verdictVar])
		return err
	})
	return a, err
}

// allowedBy reads an answer that is true or false, or an object that says so under a
// key.
func allowedBy(t *ast.Term, key string) (allowed bool, object ast.Object, err error) {
	value := t.Value
	if object, _ = value.(ast.Object); object != nil {
		member := object.Get(ast.StringTerm(key))
		if member == nil {
			return false, nil, fmt.Errorf("the answer is an object without %q", key)
		}
		value = member.Value
	}
	b, ok := value.(ast.Boolean)
	if !ok {
		return false, nil, fmt.Errorf("the answer is %s; it wants true, false, or an object with %q", ast.ValueName(value), key)
	}
	return bool(b), object, nil
}

// sentenceAt returns a member of an answer that is a sentence, or "".
func sentenceAt(object ast.Object, key string) string {
	if object == nil {
		return ""
	}
	member := object.Get(ast.StringTerm(key))
	if member == nil {
		return ""
	}
	text, err := reasonText(member)
	if err != nil {
		return ""
	}
	return text
}

// flatHeaders are the headers without credentials, with the values of each in one
// text.
func flatHeaders(h map[string][]string) (flat object) {
	for name, values := range h {
		if name = strings.ToLower(name); !isCredential(name) && len(values) > 0 {
			flat.add(ast.StringTerm(name), ast.StringTerm(strings.Join(values, ",")))
		}
	}
	return flat
}

func scheme(r *policy.Request) string {
	if inClear(r) {
		return "http"
	}
	return "https"
}

// authority is the host, with its port where that is not the one of the scheme.
func authority(r *policy.Request) string {
	if r.Destination.Port == map[string]uint16{"http": 80, "https": 443}[scheme(r)] {
		return strings.TrimSuffix(r.Destination.String(), fmt.Sprintf(":%d", r.Destination.Port))
	}
	return r.Destination.String()
}
