package rego

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// A foreignShape is the input of policies written for another gate, and the form of their answers. Such policies
// decide only about HTTP requests.
type foreignShape struct {
	schema    string      // file name
	lacks     []string    // names of the other gate's input that egressd lacks
	decisions []string    // paths of the decision; the first one that the policy defines is evaluated
	parts     []shapePart // fields of the request behind each part of the input

	// input returns the input for one address of the destination. The address is invalid if the policy
	// does not read it.
	input func(r *policy.Request, addr netip.Addr) (*ast.Term, error)

	// answer parses the decision: true, false, or an object with the key allows.
	answer  func(*ast.Term) (answer, error)
	allows  string
	changes []string // keys of the answer that change the request; unsupported
}

type shapePart struct {
	path   string
	fields inputFields
}

type answer struct {
	allowed bool
	reason  string
}

// shapes are the inputs that [Options.Input] can name besides egressd's own. The map is never written.
var shapes = map[string]*foreignShape{"envoy": &envoyShape, "authbridge": &authBridgeShape}

func shapeFor(name string) (*foreignShape, error) {
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

// loadForeign compiles a policy written for another gate.
func loadForeign(sources []Source, o Options, s *foreignShape) (*Evaluator, error) {
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
	e.reads, e.looks = c.readsBy(asked, s.fieldsIn)|readsMethod, true // such a policy always decides about requests
	absent, err := s.absent(c.compiler)
	if err != nil {
		return nil, err
	}
	if problems := slices.Concat(set.undefined(c.compiler), unseen(c.compiler, e.reads), absent); len(problems) > 0 {
		return nil, problems
	}
	return e, nil
}

// find returns the first path of s.decisions that the policy defines.
func (s *foreignShape) find(c *compiled) (asked string, err error) {
	for _, asked := range s.decisions {
		ref := ast.MustParseRef("data." + asked)
		rules := c.compiler.GetRulesWithPrefix(ref)
		if len(rules) == 0 {
			continue
		}
		q := &compiledQuery{rules: rules}
		q.query, err = c.compileQuery(ast.NewBody(ast.Equality.Expr(ast.VarTerm(verdictVar), ast.NewTerm(ref))))
		c.queries = map[string]*compiledQuery{asked: q}
		return asked, err
	}
	return "", fmt.Errorf("no file has a rule for %s, which is what is asked", strings.Join(s.decisions, " or "))
}

// unseen refuses names of credential headers in a policy that reads headers. Policies do not see these
// headers, so "not" would hold.
func unseen(c *ast.Compiler, reads inputFields) (problems policy.FileError) {
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

// fieldsIn is like the function [fieldsIn] for this input.
func (s *foreignShape) fieldsIn(x any) (reads inputFields) {
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

// beforeRequest decides before the HTTP request is known. It abstains for DNS questions and inspects
// connections. It denies every path that servers interpret differently, even if the policy reads no path.
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

// askForeign allows a request only if the policy allows every address that may be dialled. The addresses
// matter only if the policy reads them.
func (e *Evaluator) askForeign(ctx context.Context, r *policy.Request, cancel topdown.Cancel) (judged, error) {
	addrs, err := e.addressesOf(r)
	if err != nil {
		return judged{}, err
	}
	var a answer
	for _, addr := range addrs {
		if a, err = e.askAbout(ctx, r, addr, cancel); err != nil {
			return judged{}, err
		}
		if !a.allowed {
			return judged{Decision: e.say(policy.Deny, policy.RuleDeny, opinion{rule: e.pkg, reason: a.reason}, "does not allow this")}, nil
		}
	}
	return judged{Decision: e.say(policy.Allow, "", opinion{rule: e.pkg, reason: a.reason}, "allows this")}, nil
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

// askAbout evaluates the policy for one address. An undefined answer does not allow.
func (e *Evaluator) askAbout(ctx context.Context, r *policy.Request, addr netip.Addr, cancel topdown.Cancel) (a answer, err error) {
	if e.reads&(readsQuery|readsHeaders) == 0 && r.HTTP.Query != "" { // which may be one that cannot be parsed; :path has it too
		unasked, head := *r, *r.HTTP
		head.Query = ""
		unasked.HTTP = &head
		r = &unasked
	}
	in, err := e.foreign.input(r, addr)
	if err != nil {
		return a, fmt.Errorf("making the input: %w", err)
	}
	err = e.newQuery(e.whole, e.whole.queries[e.query].query, in, r, cancel).Iter(ctx, func(result topdown.QueryResult) (err error) {
		a, err = e.foreign.answer(result[verdictVar])
		return err
	})
	return a, err
}

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

// sentenceAt returns a text member of an answer, or "".
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

// flatHeaders returns the headers without credentials. The values of a header are joined with commas.
func flatHeaders(h map[string][]string) (flat inputObject) {
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

// authority returns the host, with the port unless it is the default of the scheme.
func authority(r *policy.Request) string {
	if r.Destination.Port == map[string]uint16{"http": 80, "https": 443}[scheme(r)] {
		return strings.TrimSuffix(r.Destination.String(), fmt.Sprintf(":%d", r.Destination.Port))
	}
	return r.Destination.String()
}

// The type checker does not find names missing from the input in function arguments and in paths of
// object.get. Such a name would count as absent, so "not" would hold.

func (s *foreignShape) absent(c *ast.Compiler) (problems policy.FileError, err error) {
	text, err := foreignSchemas.ReadFile(s.schema)
	if err != nil {
		return nil, fmt.Errorf("reading the schema of the input: %w", err)
	}
	var input schemaPart
	if err := json.Unmarshal(text, &input); err != nil {
		return nil, fmt.Errorf("reading the schema of the input: %w", err)
	}
	for _, m := range c.Modules {
		ast.WalkTerms(m, func(t *ast.Term) bool {
			if name, ok := t.Value.(ast.String); ok && slices.Contains(s.lacks, string(name)) {
				problems = append(problems, problemAt(t.Location, fmt.Sprintf("policies do not see %s; take it out of the policy", name)))
			}
			return false
		})
		given := givenFrom(ast.InputRootRef, m)
		for _, call := range callsIn(m) {
			problems = append(problems, input.absentIn(call, given)...)
		}
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems), nil
}

// absentIn checks a call of object.get on the input with a constant key or path.
func (p *schemaPart) absentIn(call []*ast.Term, given map[ast.Var]ast.Ref) policy.FileError {
	operator, ok := call[0].Value.(ast.Ref)
	if !ok || len(call) < 4 || strings.TrimPrefix(operator.String(), boundedPrefix) != "object.get" {
		return nil
	}
	from, ok := call[1].Value.(ast.Ref)
	if v, isVar := call[1].Value.(ast.Var); isVar {
		from, ok = given[v]
	}
	if !ok || !from.HasPrefix(ast.InputRootRef) || !from.IsGround() {
		return nil
	}
	path := append(words(from[1:]), pathIn(call[2])...)
	if p.holds(path) {
		return nil
	}
	return policy.FileError{problemAt(call[2].Location, fmt.Sprintf("policies do not see input.%s; take it out of the policy", strings.Join(path, ".")))}
}

// pathIn returns the leading constant strings of a key or path.
func pathIn(t *ast.Term) []string {
	path, ok := t.Value.(*ast.Array)
	if !ok {
		return words(ast.Ref{t})
	}
	var terms ast.Ref
	path.Foreach(func(key *ast.Term) { terms = append(terms, key) })
	return words(terms)
}

// A schemaPart is an object of a schema. Without properties it is any value.
type schemaPart struct {
	Properties map[string]*schemaPart `json:"properties"`
}

// holds reports whether the input can have a value at path.
func (p *schemaPart) holds(path []string) bool {
	for _, key := range path {
		if p.Properties == nil {
			return true // the schema allows any value here
		}
		next, there := p.Properties[key]
		if !there {
			return false
		}
		p = next
	}
	return true
}
