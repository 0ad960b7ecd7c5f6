// Package rego evaluates policies written in Rego. Only this package and its subpackages import OPA, and
// they export no OPA type.
//
// A policy is sealed: it sees only its input and its data. It cannot access the network, the environment
// or random numbers. A field that does not exist is an error at load time. Each evaluation has a deadline.
// A failure, a conflict or a malformed answer is an error, which [policy.Policy] counts as a denial.
//
//	e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: text}}, rego.Options{Layer: policy.Organisation})
//	d, err := e.Evaluate(ctx, &request)
package rego

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
)

// A Source is a file of a policy. Its name determines its kind: a module (.rego), data (.json, .yaml,
// .yml), or tests (_test.rego), which are not loaded.
type Source struct {
	Name string
	Text []byte
}

// Options configure the evaluation. The zero value evaluates "package egress".
type Options struct {
	// Package is the package with the deciding sets: "egress", or "egress.NAME" for a sandbox or project.
	// The default is "egress".
	Package string

	// Layer is the author of the policy.
	Layer policy.Layer

	// Source is a name of the policy that no other policy of its layer has. An approval of a rule that
	// asks counts for the policy with that name.
	Source string

	// Sandboxes are names of sandboxes that may have a package egress.NAME in the same files, see
	// [Evaluator.Sandbox]. They apply only to package egress.
	Sandboxes []string

	// Bare refuses members of allow that give permissions: ech, tls, upgrade or inject.
	Bare bool

	// Deadline bounds one evaluation; the default is 50 ms. An evaluation that exceeds it is repeated
	// once, and then denies. The deadline is checked between steps and does not interrupt a built-in.
	// Built-ins that can produce large results are therefore bounded by size.
	Deadline time.Duration

	// Patient gives an evaluation five seconds of processor time in place of Deadline. It is for commands
	// that answer a person, and evaluate one request at a time.
	Patient bool

	// Injections are the credentials that "inject" may name. If it is nil, names are not checked; an empty
	// list allows none.
	Injections []policy.Injection

	// Cached is the maximum number of cached decisions. Zero means 8192, a negative number none.
	Cached int
}

const (
	defaultDeadline = 50 * time.Millisecond
	patientDeadline = 5 * time.Second
	defaultCached   = 8192

	// maxSourceBytes bounds the total size of a policy's files.
	maxSourceBytes = 64 << 20
)

// An Evaluator is a compiled policy. It is immutable except for caches, and safe for concurrent use.
type Evaluator struct {
	layer      policy.Layer
	source     string
	pkg        string
	query      string // name of the query: a package, or ceilingName
	bare       bool
	deadline   time.Duration
	patient    bool               // the deadline is processor time
	growth     uint64             // maximum heap growth during an evaluation
	injections []policy.Injection // nil if unknown

	whole   *compiled   // for requests without unknown fields
	reads   inputFields // input fields that the sets may read
	natives map[string]*topdown.Builtin
	cache   *verdictCache
	others  map[string]*Evaluator // evaluators of the other queries to the same files

	mayInject bool
	looks     bool     // see LooksAtRequests
	ports     []uint16 // see Probe

	turns *fair.Turns   // limits the evaluations of all policies
	rests *rests        // of this query
	pool  *policyCopies // for partial evaluation; nil if the policy never needs it
}

// A compiled holds the modules and data of a policy, and the queries to them.
type compiled struct {
	compiler *ast.Compiler
	store    storage.Store
	txn      storage.Transaction       // a read transaction that never ends; the store is never written
	queries  map[string]*compiledQuery // queries with at least one rule
}

type decidingSet struct {
	verdict policy.Verdict
	name    ast.Var
	members ast.Body // query for the members, in the variable "member"
}

// Load compiles the modules together with the library, and evaluates them for sample requests. A rule that
// fails, or has a malformed member, is an error even if no sample reaches it. Load opens no file. The error
// is a [policy.FileError] with the position of each problem.
func Load(sources []Source, o Options) (*Evaluator, error) {
	e, set, err := load(sources, o)
	if err != nil {
		return nil, err
	}
	problems, err := e.unsound(set)
	switch {
	case err != nil:
		return nil, err
	case len(problems) > 0:
		return nil, problems
	}
	return e, nil
}

// load is Load without the evaluation.
func load(sources []Source, o Options) (*Evaluator, *sourceSet, error) {
	if o.Package == "" {
		o.Package = "egress"
	}
	set, err := parse(sources, false)
	if err != nil {
		return nil, nil, err
	}
	asked, err := o.queries()
	if err != nil {
		return nil, nil, err
	}
	e := newEvaluator(o)
	if problems := set.unasked(asked, o.Sandboxes); len(problems) > 0 {
		return nil, nil, problems
	}
	if o.Injections != nil {
		if problems := set.unknownInjections(o.Injections); len(problems) > 0 {
			return nil, nil, problems
		}
	}
	e.mayInject, e.ports = set.mayInject(), set.ports()
	set.asked = asked
	if e.whole, err = set.compile(asked); err != nil {
		return nil, nil, err
	}
	reads := e.whole.allReads()
	e.looks = reads&readsHTTP != 0 || e.mayInject
	if reads&mayBePending != 0 || e.mayInject {
		more := func() (*compiled, error) { return set.compile(asked) }
		if e.pool, err = newPool(copies(set.size), more); err != nil {
			return nil, nil, err
		}
	}
	e.split(o.Cached)
	return e, &set, nil
}

// newEvaluator returns an evaluator without a policy.
func newEvaluator(o Options) *Evaluator {
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	if o.Patient {
		o.Deadline = patientDeadline
	}
	return &Evaluator{
		layer: o.Layer, source: o.Source, pkg: o.Package, query: o.Package, bare: o.Bare,
		deadline: o.Deadline, patient: o.Patient, growth: maxGrowth, injections: o.Injections,
		natives: nativeFunctions(newCompiledLists()),
		cache:   newVerdictCache(cachedBy(o.Cached)),
		turns:   evaluations,
		rests:   newRests(),
	}
}

// compile returns a copy of the policy that shares no term with other copies.
func (set *sourceSet) compile(asked []querySpec) (c *compiled, err error) {
	c = &compiled{queries: map[string]*compiledQuery{}}
	if c.compiler, err = set.check(); err != nil {
		return nil, err
	}
	if c.store, c.txn, err = openData(set.data); err != nil {
		return nil, err
	}
	if err := c.findSets(asked); err != nil {
		return nil, err
	}
	problems := slices.Concat(set.undefined(c.compiler), set.emptyLists(c.compiler), set.headersAsText(c.compiler))
	for _, a := range asked {
		problems = append(problems, c.unread(a)...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// packageRef converts "egress.NAME" to data.egress.NAME. NAME is one key and may contain any character.
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

// notSets returns a problem for each rule that assigns a set instead of adding a member.
func notSets(name string, rules []*ast.Rule) (problems policy.FileError) {
	for _, r := range rules {
		if r.Head.RuleKind() != ast.MultiValue || len(r.Head.Args) > 0 {
			problems = append(problems, problemAt(r.Location, setOfReasons(name, r)))
		}
	}
	return problems
}

// setOfReasons says what to write in place of a rule that assigns a deciding set.
func setOfReasons(name string, r *ast.Rule) string {
	if r.Default && r.Head.Value.Equal(ast.BooleanTerm(true)) {
		return fmt.Sprintf("%s is a set of reasons; to have it hold for everything write: %s contains {\"rule\": \"all\"}", name, name)
	}
	if r.Default {
		return fmt.Sprintf("%s is a set of reasons, which is empty where no rule adds to it; leave this line out", name)
	}
	return fmt.Sprintf("%s is a set of reasons; write: %s contains {\"rule\": \"NAME\"} if …", name, name)
}

// A sourceSet holds the parsed files of a policy.
type sourceSet struct {
	modules map[string]*ast.Module
	data    map[string]any
	size    int  // of the files in bytes
	tests   bool // include test modules
	asked   []querySpec
}

// parse parses a policy, which may call the library without an import.
func parse(sources []Source, tests bool) (sourceSet, error) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}, tests: tests}
	var problems policy.FileError
	for _, s := range sources {
		if set.size += len(s.Text); set.size > maxSourceBytes {
			return set, fmt.Errorf("the files of the policy are larger than %d MiB together", maxSourceBytes>>20)
		}
		problems = append(problems, set.add(s)...)
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		m := set.modules[name]
		problems = append(problems, taken(m)...)
		adopt(m, declaredIn(set.modules, m.Package))
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
	m, err := ast.ParseModuleWithOpts(s.Name, string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
	switch {
	case err != nil && isV0(s):
		return policy.FileError{oldSyntax(s.Name, err)}
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

// Parse returns the packages of a policy's modules by their file names, with tests, and its data. It compiles nothing; see [Load].
// The error is a [policy.FileError] where it has a position.
func Parse(sources []Source) (packages map[string][]string, data map[string]any, err error) {
	set, err := parse(sources, true)
	packages = map[string][]string{}
	for name, m := range set.modules {
		packages[name] = keysOf(m.Package.Path)
	}
	return packages, set.data, err
}

// Meaning returns the text of a file without comments and spacing, for digests that do not depend on them. Data and a file that
// cannot be read stay as they are.
func (s Source) Meaning() []byte {
	if !strings.HasSuffix(s.Name, ".rego") {
		return fmt.Appendf(nil, "%s\n%s", path.Base(s.Name), s.Text)
	}
	m, err := ast.ParseModuleWithOpts("", string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
	if err != nil || m == nil {
		return s.Text
	}
	return []byte(m.String())
}

// PackageOf returns the package of one file, and where it is named. The error is a [policy.FileError].
func PackageOf(s Source) (pkg []string, at policy.Position, err error) {
	m, err := ast.ParseModuleWithOpts(s.Name, string(s.Text), ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
	switch {
	case err != nil:
		return nil, at, problemsOf(s.Name, err)
	case m == nil:
		return nil, at, policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: "the file is empty; it begins with: package egress"}}
	}
	where := problemAt(m.Package.Location, "")
	return keysOf(m.Package.Path), policy.Position{Line: where.Line, Column: where.Column}, nil
}

func rootOf(pkg ast.Ref) string {
	if len(pkg) < 2 {
		return ""
	}
	root, _ := pkg[1].Value.(ast.String)
	return string(root)
}

// check compiles a copy of the modules and checks types against the schema of the input.
func (set *sourceSet) check() (*ast.Compiler, error) {
	others := set.otherInputs()
	if len(others) > 0 {
		problems, err := set.mistyped(others)
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return nil, problems
		}
	}
	c, err := set.compiler(others)
	if err != nil {
		return nil, err
	}
	if c.Compile(set.modules); c.Failed() {
		return nil, problemsOf("", c.Errors)
	}
	return c, nil
}

// compiler returns a compiler for the modules. Without others it checks types against the schema of the input.
func (set *sourceSet) compiler(others []ast.Ref) (c *ast.Compiler, err error) {
	var schemas *ast.SchemaSet
	if len(others) == 0 {
		if schemas, err = inputSchema(); err != nil {
			return nil, err
		}
	}
	return ast.NewCompiler().
		WithStrict(true).
		WithCapabilities(withNatives(sealed())).
		WithSchemas(schemas).
		WithPathConflictsCheck(set.hasData).
		WithStageAfterID(ast.StageBuildRequiredCapabilities, ast.CompilerStageDefinition{Name: "BoundCalls", MetricName: "bound_calls", Stage: boundCalls}).
		SetErrorLimit(0), nil
}

// background is a context for OPA calls that never block.
func background() context.Context { return context.Background() }

// keysOf returns the keys from data to a package. A package path contains only strings.
func keysOf(pkg ast.Ref) (keys []string) {
	for _, term := range pkg[1:] {
		key, _ := term.Value.(ast.String)
		keys = append(keys, string(key))
	}
	return keys
}
