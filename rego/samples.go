package rego

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
)

// A policy that fails at ordinary requests denies them, which looks like a policy that denies. So Load
// evaluates it, in two ways:
//
//   - for sample requests of each stage, to hosts and with methods and paths that stand in the policy;
//   - once with the whole input unknown, which enters each rule whatever its conditions on the input are,
//     and looks at the members and at the arguments of functions that are left over.
//
// An evaluation that takes too long ends the samples. It is an error for commands that answer a person; a
// daemon may be busy with something else.

const (
	maxSampled    = 6                      // hosts, methods and paths of the policy that are tried
	sampleTime    = time.Second            // processor time of all samples of a query
	oneSampleTime = 250 * time.Millisecond // processor time of one sample, and of a set without an input
	sampleSandbox = "sample"
)

// unsound returns a problem for each query that fails.
func (e *Evaluator) unsound(set *sourceSet) (problems policy.FileError, err error) {
	if problems = slices.Concat(set.refusedConstants(e.whole.compiler), e.whole.wrongMembers(set.asked)); len(problems) > 0 {
		return problems, nil
	}
	all := map[string]*Evaluator{e.query: e}
	maps.Copy(all, e.others)
	samples := set.samples()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Decides() {
			problems = append(problems, all[name].fails(samples)...)
		}
	}
	if len(problems) > 0 || set.size > maxCopied {
		return problems, nil
	}
	c, err := e.copied(set)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.queries)) {
		problems = append(problems, all[name].failsAhead(c)...)
		problems = append(problems, all[name].malformed(samples)...)
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems), nil
}

// copied returns a copy of the policy for partial evaluation. The pool has one, and nobody uses it yet.
func (e *Evaluator) copied(set *sourceSet) (*compiled, error) {
	if e.pool == nil {
		return set.compile(set.asked)
	}
	c, err := e.pool.one()
	if err == nil {
		e.pool.free = append(e.pool.free, c)
	}
	return c, err
}

// fails evaluates the samples until one fails.
func (e *Evaluator) fails(samples []policy.Request) policy.FileError {
	one := *e
	one.cache, one.rests, one.turns, one.growth = nil, newRests(), fair.NewTurns(1), maxGrowth
	one.patient = true
	begun := processorTime()
	for i := range samples {
		one.deadline = min(oneSampleTime, sampleTime-(processorTime()-begun))
		if one.deadline <= 0 {
			return nil
		}
		_, err := one.Evaluate(background(), &samples[i])
		switch {
		case err == nil:
		case errors.Is(err, errTooSlow) && e.patient:
			return policy.FileError{one.slow(err, &samples[i])}
		case errors.Is(err, errTooSlow), errors.Is(err, errTooMuchMemory), errors.Is(err, errFailed):
			return nil
		default:
			if p, ok := one.placed(err, &samples[i]); ok {
				return policy.FileError{p}
			}
		}
	}
	return nil
}

// placed is the problem that an error of an evaluation is. An error without a place is that of the first
// rule with a malformed member. Other errors, such as a credential of another host, are about that request.
func (e *Evaluator) placed(err error, r *policy.Request) (policy.Problem, bool) {
	if p, ok := placeOf(err); ok {
		p.Message += ", at " + sampleText(r)
		return p, true
	}
	for _, rule := range e.whole.queries[e.query].rules {
		if own := e.memberFails(rule, r); own != nil {
			return problemAt(rule.Location, wrongMember(rule, own)), true
		}
	}
	return policy.Problem{}, false
}

// slow is the problem that a sample took too long.
func (e *Evaluator) slow(err error, r *policy.Request) policy.Problem {
	p, ok := placeOf(err)
	if !ok {
		p = problemAt(e.whole.queries[e.query].rules[0].Location, "")
	}
	p.Message = fmt.Sprintf("this takes too long, which denies: more than %v of processor time where %v are allowed, at %s", oneSampleTime, defaultDeadline, sampleText(r))
	return p
}

// placeOf returns the problem of an error of OPA that has a place in the policy.
func placeOf(err error) (policy.Problem, bool) {
	failed, ok := errors.AsType[*topdown.Error](err)
	if !ok || failed.Location == nil || strings.HasPrefix(failed.Location.File, libraryPrefix) {
		return policy.Problem{}, false
	}
	return problemAt(failed.Location, "this fails, which denies: "+strings.Join(strings.Fields(failed.Message), " ")), true
}

// maxComputed is the number of rules with a computed member that malformed evaluates.
const maxComputed = 200

// malformed evaluates the members that are computed from the request, such as {"rule": input.http.method},
// for the samples, as if the conditions of their rules on the input held.
func (e *Evaluator) malformed(samples []policy.Request) (problems policy.FileError) {
	computed := 0
	for _, rule := range e.whole.queries[e.query].rules {
		if ast.IsConstant(rule.Head.Key.Value) || computed == maxComputed {
			continue
		}
		computed++
		body := append(definitions(rule), ast.Equality.Expr(ast.VarTerm(member), rule.Head.Key.Copy()))
		query, err := e.whole.compileQuery(body)
		if err != nil {
			continue // a condition defines one of the variables
		}
		for i := range samples {
			if wrong := e.computedMember(query, &samples[i]); wrong != nil {
				problems = append(problems, problemAt(rule.Location, wrongMember(rule, wrong)+", at "+sampleText(&samples[i])))
				break
			}
		}
	}
	return problems
}

// definitions returns the expressions of a rule without its conditions on the input: those that give the
// variables of its member a value, and those that read neither the input nor rules.
func definitions(rule *ast.Rule) (body ast.Body) {
	wanted := ast.NewVarSet()
	want := func(x any) {
		ast.WalkVars(x, func(v ast.Var) bool {
			wanted.Add(v)
			return false
		})
	}
	want(rule.Head.Key)
	for i := len(rule.Body) - 1; i >= 0; i-- {
		expr := rule.Body[i]
		if readsNothing(expr) {
			want(expr)
			body = append(ast.Body{expr.Copy()}, body...)
			continue
		}
		if expr.Negated || !expr.IsCall() || !defines(expr, wanted) {
			continue
		}
		want(expr)
		body = append(ast.Body{expr.Copy()}, body...)
	}
	return body
}

// readsNothing reports whether an expression reads neither the input nor rules or data.
func readsNothing(expr *ast.Expr) bool {
	reads := false
	ast.WalkRefs(expr, func(ref ast.Ref) bool {
		reads = reads || ref.HasPrefix(ast.InputRootRef) || ref.HasPrefix(ast.DefaultRootRef)
		return false
	})
	return !reads
}

// defines reports whether an expression gives one of the variables a value: an equality with it, or a call
// with it as its result.
func defines(expr *ast.Expr, wanted ast.VarSet) bool {
	operands := expr.Operands()
	if !expr.IsEquality() {
		return len(operands) > 0 && wanted.Contains(varOf(operands[len(operands)-1]))
	}
	return slices.ContainsFunc(operands, func(t *ast.Term) bool {
		return wanted.Contains(varOf(t)) || len(t.Vars().Intersect(wanted)) > 0 && isCollection(t)
	})
}

// computedMember evaluates a query for members, and returns what is wrong with one. An evaluation that fails
// returns nil.
func (e *Evaluator) computedMember(query ast.Body, r *policy.Request) (wrong error) {
	cancel := topdown.NewCancel()
	defer time.AfterFunc(defaultDeadline, cancel.Cancel).Stop()
	err := e.newQuery(e.whole, query, input(r, e.reads), r, cancel).Iter(background(), func(result topdown.QueryResult) error {
		if _, err := opinionOf(result[member]); err != nil {
			wrong = cmp.Or(wrong, err)
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return wrong
}

// memberFails evaluates one rule and returns what is wrong with a member of it.
func (e *Evaluator) memberFails(rule *ast.Rule, r *policy.Request) (wrong error) {
	body := append(rule.Body.Copy(), ast.Equality.Expr(ast.VarTerm(member), rule.Head.Key.Copy()))
	query, err := e.whole.compileQuery(body)
	if err != nil {
		return nil
	}
	cancel := topdown.NewCancel()
	defer time.AfterFunc(defaultDeadline, cancel.Cancel).Stop()
	err = e.newQuery(e.whole, query, input(r, e.reads), r, cancel).Iter(background(), func(result topdown.QueryResult) error {
		_, err := opinionOf(result[member])
		wrong = cmp.Or(wrong, err)
		return nil
	})
	if err != nil && !topdown.IsCancel(err) {
		return err
	}
	return wrong
}

func sampleText(r *policy.Request) string {
	switch {
	case r.DNS != nil:
		return "a question for " + r.DNS.Name
	case r.HTTP != nil:
		return fmt.Sprintf("a request like %s %s%s", r.HTTP.Method, r.Destination, r.HTTP.Path)
	}
	return fmt.Sprintf("a connection to %s, stage %s", r.Destination, r.Stage())
}

// failsAhead evaluates each set with the whole input unknown.
func (e *Evaluator) failsAhead(c *compiled) (problems policy.FileError) {
	unknowns := []*ast.Term{ast.NewTerm(ast.InputRootRef), clock}
	for _, s := range c.queries[e.query].sets {
		w := startWatchdog(oneSampleTime, processorTime, maxGrowth)
		q := e.newQuery(c, s.members.Copy(), ast.ObjectTerm(), new(policy.Request), w.cancel).WithUnknowns(unknowns).WithPartialNamespace(partialNamespace)
		left, support, err := q.PartialRun(context.Background())
		err = w.stop(err)
		if p, ok := placeOf(err); ok && !topdown.IsCancel(err) {
			problems = append(problems, p)
		}
		if err != nil {
			continue
		}
		for _, body := range left {
			problems = append(problems, e.refusedIn(s, body, c)...)
		}
		for _, m := range support {
			for _, r := range m.Rules {
				problems = append(problems, refusedBy(r)...)
			}
		}
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems)
}

// refusedIn returns the problems of one member that may be in a set.
func (e *Evaluator) refusedIn(s decidingSet, body ast.Body, c *compiled) (problems policy.FileError) {
	for _, expr := range body {
		value, ok := memberOf(expr)
		if !ok || !ast.IsConstant(value.Value) {
			continue
		}
		if _, err := opinionOf(value); err != nil {
			rule := e.ruleOf(s, expr, c)
			problems = append(problems, problemAt(rule.Location, wrongMember(rule, err)))
		}
	}
	return append(problems, refusedBy(body)...)
}

// ruleOf returns the rule of a set that an expression is from, or the first one.
func (e *Evaluator) ruleOf(s decidingSet, expr *ast.Expr, c *compiled) (of *ast.Rule) {
	for _, r := range c.queries[e.query].rules {
		if string(headOf(r.Head.Ref())) != string(s.name) && r.Head.Name != s.name {
			continue
		}
		if of == nil || expr.Location != nil && r.Location.File == expr.Location.File && r.Location.Row <= expr.Location.Row {
			of = r
		}
	}
	return of
}

// refusedBy returns a problem for each constant that a function in x refuses, where x is what an evaluation
// left over.
func refusedBy(x any) (problems policy.FileError) {
	for _, call := range callsIn(x) {
		for _, a := range checkedArguments[functionName(call)] {
			if a.at+1 >= len(call) || !ast.IsConstant(call[a.at+1].Value) {
				continue
			}
			for _, v := range (&flow{}).at(nil, call[a.at+1], a.path, maxFlowDepth) {
				if err := a.refuses(v.value); err != nil && call[0].Location != nil && call[0].Location.Row > 0 && !strings.HasPrefix(call[0].Location.File, libraryPrefix) {
					problems = append(problems, problemAt(call[0].Location, err.Error()))
				}
			}
		}
	}
	return problems
}

// samples returns ordinary requests of each stage, with names that stand in the policy among them.
func (set *sourceSet) samples() (all []policy.Request) {
	hosts, methods, paths := set.named()
	names := []string{sampleSandbox}
	for _, a := range set.asked {
		if below, ok := sandboxOf(a.pkg); ok && len(names) < maxSampled {
			names = append(names, below)
		}
	}
	public, private := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.0.0.5")
	for i, host := range append([]string{"www.example.com"}, hosts...) {
		name, addr, err := policy.ParseHost(host)
		if err != nil {
			continue
		}
		to := policy.Destination{Host: name, Addr: addr, Port: 443}
		addrs := []netip.Addr{public}
		if addr.IsValid() {
			to.Host, addrs = addr.String(), []netip.Addr{addr}
		}
		if i == 1 {
			addrs = append(addrs, private)
		}
		method, path := at(methods, i, http.MethodGet), at(paths, i, "/")
		for _, who := range names {
			all = append(all, stages(policy.Sandbox{Name: who, Kind: "listener", Labels: map[string]string{"team": "a"}}, to, addrs, method, path)...)
		}
		all = append(all, stages(policy.Sandbox{}, to, addrs, http.MethodPost, path)...)
	}
	return all
}

func at(list []string, i int, otherwise string) string {
	if len(list) == 0 {
		return otherwise
	}
	return list[i%len(list)]
}

// stages returns a connection and a request in it, as far as they are known at each stage.
func stages(who policy.Sandbox, to policy.Destination, addrs []netip.Addr, method, path string) []policy.Request {
	named := policy.Request{Sandbox: who, Via: policy.ViaConnect, Destination: to, Time: time.Unix(1_800_000_000, 0), Usage: new(policy.Usage)}
	if who.Name != "" {
		named.Process = &policy.Process{PID: 1000, Exe: "/usr/bin/curl", Argv: []string{"curl", to.Host}}
	}
	resolved := named
	resolved.Destination.Addrs = addrs
	hello := resolved
	hello.Protocol, hello.TLS = policy.ProtocolTLS, &policy.ClientHello{ServerName: to.Host, ALPN: []string{"h2", "http/1.1"}, JA4: "t13d1516h2_8daaf6152771_b186095e22b6"}
	request := hello
	request.Protocol = policy.ProtocolHTTP
	request.HTTP = &policy.HTTPRequest{Method: method, Path: path, Query: "q=1", Header: http.Header{"User-Agent": {"curl/8.0"}, "Content-Type": {"application/json"}}, BodySize: 10}
	clear := request
	clear.Via, clear.TLS, clear.Destination.Port = policy.ViaHTTP, nil, 80
	all := []policy.Request{named, resolved, hello, request, clear}
	if !to.Addr.IsValid() {
		question := policy.Request{Sandbox: who, Via: policy.ViaDNS, Destination: policy.Destination{Host: to.Host}, DNS: &policy.DNSQuery{Name: to.Host, Type: "A"}, Time: named.Time, Usage: named.Usage}
		all = append(all, question)
	}
	return all
}

// named returns some hosts, methods and paths that stand in the modules.
func (set *sourceSet) named() (hosts, methods, paths []string) {
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		ast.WalkTerms(set.modules[name], func(t *ast.Term) bool {
			text, ok := t.Value.(ast.String)
			s := strings.TrimPrefix(string(text), "*.")
			add := func(list *[]string, s string) {
				if len(*list) < maxSampled && !slices.Contains(*list, s) {
					*list = append(*list, s)
				}
			}
			switch _, _, err := policy.ParseHost(s); {
			case !ok, s == "":
			case slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, s):
				add(&methods, s)
			case s[0] == '/' && policy.CanonicalPath(strings.ReplaceAll(s, "*", "x")):
				add(&paths, strings.ReplaceAll(s, "*", "x"))
			case err == nil && strings.Contains(s, "."):
				add(&hosts, s)
			}
			return false
		})
	}
	return hosts, methods, paths
}

func isCollection(t *ast.Term) bool {
	switch t.Value.(type) {
	case ast.Object, ast.Set, *ast.Array:
		return true
	}
	return false
}
