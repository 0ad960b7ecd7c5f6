package rego

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/internal/turns"
	"github.com/egressd/egressd/policy"
)

// A Source is one file of a policy. The end of its name says what it is: a
// module (.rego), data (.json, .yaml, .yml), or the tests of a module
// (_test.rego), which are not loaded.
type Source struct {
	Name string
	Text []byte
}

// Options say how a policy is asked. The zero value asks "package egress".
type Options struct {
	// Package is the package whose sets decide: "egress", or "egress.NAME" for
	// a sandbox or a project. Empty: "egress".
	Package string

	// Input is the shape of the input that the policy is written for: "egressd",
	// "envoy" or "authbridge". Empty: "egressd". Another one than egressd's has a
	// package of its own, and Package is not looked at.
	Input string

	// Layer says who wrote the policy.
	Layer policy.Layer

	// Sandboxes are the names of sandboxes that the same files may speak to, each in
	// its package egress.NAME: see [Evaluator.Sandbox]. Only for package egress.
	Sandboxes []string

	// Bare has a member of allow be its rule and its reason alone: one that gives
	// more (ech, tls, upgrade, inject) is an error.
	Bare bool

	// Deadline bounds one evaluation. What it ends is tried once more, and what is
	// too slow twice denies. Zero: 50 ms. It is
	// looked at between the steps of an evaluation: a single built-in call is not
	// interrupted, so the built-ins that could make much out of little are bounded
	// by the size of what they make.
	Deadline time.Duration

	// Injections are the credentials that the policy may name by "inject". Where it
	// is nil they are not known, and no name is checked; an empty list has none.
	Injections []policy.Injection

	// Cached is how many verdicts are kept, at most. Zero: 8192; negative: none.
	Cached int
}

const (
	defaultDeadline = 50 * time.Millisecond
	defaultCached   = 8192

	// maxSourceBytes bounds all files of a policy together.
	maxSourceBytes = 64 << 20
)

// An Evaluator is a compiled policy. It is immutable but for its caches, and safe
// for concurrent use.
type Evaluator struct {
	layer      policy.Layer
	pkg        string
	asks       string // which of the questions to the files: a package, or ceilingName
	bare       bool
	deadline   time.Duration
	growth     uint64             // of the heap, for one evaluation
	injections []policy.Injection // nil: not known

	whole   *compiled // for requests of which everything is known
	reads   fields    // what of the input any of the sets could read
	natives map[string]*topdown.Builtin
	cache   *verdictCache
	others  map[string]*Evaluator // the further questions to the same files

	mayInject bool
	looks     bool     // see LooksAtRequests
	ports     []uint16 // see Probe

	foreign *shape // the input that the policy is written for; nil for egressd's

	turns *turns.Turns // of evaluations, those of other policies too
	pool  *pool        // for looking ahead; nil where the policy never has to
}

// compiled is the modules and the data of a policy, and the questions to them.
type compiled struct {
	compiler  *ast.Compiler
	store     storage.Store
	txn       storage.Transaction  // a read that is never ended: the store is never written
	questions map[string]*question // those to which the files have an answer
}

// An entry is one of the sets that decide.
type entry struct {
	verdict policy.Verdict
	name    ast.Var
	members ast.Body // a query for the members, in the variable "member"
}

// Load compiles the modules together with the library, without writing or opening
// anything. The error is a [policy.FileError], which names the place of every
// problem that could be found.
func Load(sources []Source, o Options) (*Evaluator, error) {
	s, err := shapeFor(o.Input)
	switch {
	case err != nil:
		return nil, err
	case s != nil:
		return loadForeign(sources, o, s)
	case o.Package == "":
		o.Package = "egress"
	}
	set, err := parse(sources, false)
	if err != nil {
		return nil, err
	}
	asked, err := o.questions()
	if err != nil {
		return nil, err
	}
	e := newEvaluator(o)
	if problems := set.unasked(asked, o.Sandboxes); len(problems) > 0 {
		return nil, problems
	}
	if o.Injections != nil {
		if problems := set.unknownInjections(o.Injections); len(problems) > 0 {
			return nil, problems
		}
	}
	e.mayInject, e.ports = set.mayInject(), set.ports()
	if e.whole, err = set.compile(asked); err != nil {
		return nil, err
	}
	reads := e.whole.allReads()
	e.looks = reads&readsHTTP != 0 || e.mayInject
	if reads&mayBePending != 0 || e.mayInject {
		more := func() (*compiled, error) { return set.compile(asked) }
		if e.pool, err = newPool(copies(set.weigh(sources)), more); err != nil {
			return nil, err
		}
	}
	e.share(o.Cached)
	return e, nil
}

// newEvaluator makes one that has no policy yet.
func newEvaluator(o Options) *Evaluator {
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	return &Evaluator{
		layer: o.Layer, pkg: o.Package, asks: o.Package, bare: o.Bare,
		deadline: o.Deadline, growth: maxGrowth, injections: o.Injections,
		natives: nativeFunctions(newCompiledLists()),
		cache:   newVerdictCache(cachedBy(o.Cached)),
		turns:   evaluations,
	}
}

// compile makes a copy of the policy that shares no term with any other.
func (set *sourceSet) compile(asked []asking) (c *compiled, err error) {
	c = &compiled{questions: map[string]*question{}}
	if c.compiler, err = set.check(); err != nil {
		return nil, err
	}
	if c.store, c.txn, err = openData(set.data); err != nil {
		return nil, err
	}
	if err := c.findSets(asked); err != nil {
		return nil, err
	}
	problems := slices.Concat(set.undefined(c.compiler), set.emptyLists(c.compiler))
	for _, a := range asked {
		problems = append(problems, c.unread(a)...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// packageRef turns "egress.NAME" into data.egress.NAME. NAME is one word, whatever
// characters it has.
func packageRef(name string) (ast.Ref, error) {
	root, rest, below := strings.Cut(name, ".")
	if root != "egress" || below && rest == "" {
		return nil, fmt.Errorf("a policy is asked for package egress or egress.NAME, not %q", name)
	}
	ref := ast.Ref{ast.DefaultRootDocument, ast.StringTerm(root)}
	if below {
		ref = append(ref, ast.StringTerm(rest))
	}
	return ref, nil
}

// notSets returns a problem for each rule that gives a set a value instead of a
// member.
func notSets(name string, rules []*ast.Rule) (problems policy.FileError) {
	for _, r := range rules {
		if r.Head.RuleKind() != ast.MultiValue || len(r.Head.Args) > 0 {
			problems = append(problems, problemAt(r.Location, fmt.Sprintf("%s is a set of reasons; write: %s contains {\"rule\": \"NAME\"} if …", name, name)))
		}
	}
	return problems
}

// A sourceSet is a policy that was read.
type sourceSet struct {
	modules map[string]*ast.Module
	data    map[string]any
	tests   bool   // with the modules that hold tests
	shape   *shape // of the input; nil for egressd's
}

func parse(sources []Source, tests bool) (sourceSet, error) { return parseFor(nil, sources, tests) }

// parseFor reads a policy that is written for another input, or for egressd's where
// s is nil. Only the latter may call the library without an import.
func parseFor(s *shape, sources []Source, tests bool) (sourceSet, error) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}, tests: tests, shape: s}
	var problems policy.FileError
	size := 0
	for _, s := range sources {
		if size += len(s.Text); size > maxSourceBytes {
			return set, fmt.Errorf("the files of the policy are larger than %d MiB together", maxSourceBytes>>20)
		}
		problems = append(problems, set.add(s)...)
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		m := set.modules[name]
		if problems = append(problems, taken(m)...); s != nil {
			continue
		}
		problems = append(problems, adopt(m, declaredIn(set.modules, m.Package))...)
	}
	if len(problems) > 0 {
		return set, problems
	}
	library, err := libraryModules()
	if err != nil {
		return set, err
	}
	for name, m := range library {
		set.modules[name] = m
	}
	return set, nil
}

func (set *sourceSet) add(s Source) policy.FileError {
	switch {
	case isTest(s.Name) && !set.tests:
		return nil
	case path.Ext(s.Name) == ".rego":
		return set.addModule(s)
	case path.Ext(s.Name) == ".json", path.Ext(s.Name) == ".yaml", path.Ext(s.Name) == ".yml":
		return set.addData(s)
	}
	return policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: "its name ends neither in .rego nor in .json, .yaml or .yml, in lower case"}}
}

func (set *sourceSet) addModule(s Source) policy.FileError {
	if _, twice := set.modules[s.Name]; twice {
		return policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: "the file is given twice"}}
	}
	m, err := set.parseModule(s)
	switch {
	case err != nil:
		return problemsOf(s.Name, err)
	case m == nil:
		return policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: "the file is empty; it begins with: package egress"}}
	}
	if root := rootOf(m.Package.Path); root == "egressd" || root == "system" {
		return policy.FileError{problemAt(m.Package.Location, fmt.Sprintf("package %s belongs to egressd; write: package egress", root))}
	}
	set.modules[s.Name] = m
	return nil
}

// parseModule reads a module, and one that was written for another gate in the older
// syntax too, if that is what it is in.
func (set *sourceSet) parseModule(s Source) (*ast.Module, error) {
	m, err := ast.ParseModuleWithOpts(s.Name, string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
	if err != nil && set.shape != nil {
		if old, oldErr := ast.ParseModuleWithOpts(s.Name, string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV0}); oldErr == nil {
			return old, nil
		}
	}
	return m, err
}

func rootOf(pkg ast.Ref) string {
	if len(pkg) < 2 {
		return ""
	}
	root, _ := pkg[1].Value.(ast.String)
	return string(root)
}

// check type-checks the modules against the schema of the input. The compiler
// works on a copy of them.
func (set *sourceSet) check() (*ast.Compiler, error) {
	c, err := set.compiler()
	if err != nil {
		return nil, err
	}
	if c.Compile(set.modules); c.Failed() {
		return nil, problemsOf("", c.Errors)
	}
	return c, nil
}

// compiler returns one that has compiled nothing yet.
func (set *sourceSet) compiler() (*ast.Compiler, error) {
	schemas, err := inputSchema(set.shape)
	if err != nil {
		return nil, err
	}
	return ast.NewCompiler().
		WithStrict(set.shape == nil). // policies for other gates were seldom held to it
		WithCapabilities(withNatives(sealed())).
		WithSchemas(schemas).
		WithPathConflictsCheck(set.hasData).
		WithStageAfterID(ast.StageBuildRequiredCapabilities, ast.CompilerStageDefinition{Name: "BoundCalls", MetricName: "bound_calls", Stage: boundCalls}).
		SetErrorLimit(0), nil
}

func problemsOf(name string, err error) (problems policy.FileError) {
	var several ast.Errors
	if !errors.As(err, &several) {
		return policy.FileError{{File: name, Line: 1, Column: 1, Message: err.Error()}}
	}
	for _, one := range several {
		problems = append(problems, problemAt(one.Location, message(one)))
	}
	return problems
}

func problemAt(at *ast.Location, text string) policy.Problem {
	if at == nil {
		return policy.Problem{Line: 1, Column: 1, Message: text}
	}
	return policy.Problem{File: at.File, Line: max(at.Row, 1), Column: max(at.Col, 1), Message: text}
}

// message is what OPA says and its details, on one line, without the drawing of
// what is wrong.
func message(err *ast.Error) string {
	text := err.Message
	if err.Details == nil {
		return strings.Join(strings.Fields(text), " ")
	}
	for _, line := range err.Details.Lines() {
		if line = strings.TrimSpace(line); strings.Trim(line, "^") != "" && !strings.HasSuffix(text, line) {
			text += "; " + line
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

// background is for calls of OPA that want a context and never wait.
func background() context.Context { return context.Background() }
