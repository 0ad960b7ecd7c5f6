package rego

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"
)

// inputFields is a set of input fields.
type inputFields uint32

const (
	readsVersion inputFields = 1 << iota
	readsStage
	readsSandboxName
	readsSandboxKind
	readsSandboxLabels
	readsVia
	readsHost
	readsPort
	readsAddresses
	readsAddressClass
	readsRegistrable
	readsSNI
	readsALPN
	readsECH
	readsJA4
	readsMethod
	readsPath
	readsQuery
	readsHeaders
	readsBodySize
	readsQuestionName
	readsQuestionType
	readsPID
	readsExe
	readsArgv
	readsTime
	readsUsage
	readsBody

	readsSandbox     = readsSandboxName | readsSandboxKind | readsSandboxLabels
	readsDestination = readsHost | readsPort | readsAddresses | readsAddressClass | readsRegistrable
	readsTLS         = readsSNI | readsALPN | readsECH | readsJA4
	readsHTTP        = readsMethod | readsPath | readsQuery | readsHeaders | readsBodySize | readsBody
	readsDNS         = readsQuestionName | readsQuestionType
	readsProcess     = readsPID | readsExe | readsArgv
	readsResolved    = readsAddresses | readsAddressClass
)

// fieldPaths are in the order of the bits.
var fieldPaths = [...]string{
	"version", "stage", "sandbox.name", "sandbox.kind", "sandbox.labels", "via",
	"destination.host", "destination.port", "destination.addresses", "destination.address_class", "destination.registrable",
	"tls.sni", "tls.alpn", "tls.ech", "tls.ja4",
	"http.method", "http.path", "http.query", "http.headers", "http.body_size",
	"dns.name", "dns.type", "process.pid", "process.exe", "process.argv", "time",
	"usage", "http.body",
}

// LooksAtRequests reports whether the policy may need to see HTTP requests, because a set reads part of
// them or may say "inject". It covers all queries to the files.
func (e *Evaluator) LooksAtRequests() bool { return e.looks }

// mayInject reports whether a rule or the data contains the string "inject".
func (set *sourceSet) mayInject() (found bool) {
	visit := func(t *ast.Term) bool {
		found = found || t.Value.Compare(ast.String("inject")) == 0
		return found
	}
	for _, m := range set.modules {
		ast.WalkTerms(m, visit)
	}
	if data, err := ast.InterfaceToValue(set.data); err == nil {
		ast.WalkTerms(ast.NewTerm(data), visit)
	}
	return found
}

func (c *compiled) allReads() (reads inputFields) {
	for name := range c.queries {
		reads |= c.reads(name)
	}
	return reads
}

// reads returns the fields that the sets of a query and their dependencies may read.
func (c *compiled) reads(name string) (reads inputFields) {
	seen := map[util.T]bool{}
	var visit func(rule util.T)
	visit = func(rule util.T) {
		if seen[rule] {
			return
		}
		seen[rule] = true
		reads |= fieldsIn(rule)
		for next := range c.compiler.Graph.Dependencies(rule) {
			visit(next)
		}
	}
	for _, r := range c.queries[name].rules {
		visit(r)
	}
	if reads&readsStage != 0 {
		reads |= readsMethod // a rule about the stage "http" concerns requests
	}
	return reads
}

// fieldsIn returns the fields that x names. The clock counts as the field time. "with" reads its value, and not what
// it replaces.
func fieldsIn(x any) (reads inputFields) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.With:
			reads |= fieldsIn(x.Value)
			return true
		case ast.Ref:
			if x.HasPrefix(ast.InputRootRef) {
				reads |= fieldsAt(x[1:])
			} else if name := x.String(); name == "time.now_ns" || name == boundedPrefix+"time.now_ns" {
				reads |= readsTime
			}
		}
		return false
	}).Walk(x)
	return reads
}

// fieldsAt returns the fields at, below and above a path. A variable part can be any field but the body, which has to be named.
func fieldsAt(ref ast.Ref) (reads inputFields) {
	var path strings.Builder
	for _, t := range ref {
		key, ok := t.Value.(ast.String)
		if !ok {
			break
		}
		path.WriteString(string(key))
		path.WriteByte('.')
	}
	for i, field := range fieldPaths {
		if 1<<i == readsBody && !strings.HasPrefix(path.String(), field+".") {
			continue // or a policy that has the whole input in a call would have each body held
		}
		if strings.HasPrefix(path.String(), field+".") || strings.HasPrefix(field+".", path.String()) {
			reads |= 1 << i
		}
	}
	return reads
}

// mayBePending are the fields that can be unknown.
const mayBePending = readsVia | readsPort | readsResolved | readsTLS | readsHTTP | readsProcess

// pending returns the fields that the policy reads and a later stage may still set.
func (e *Evaluator) pending(r *policy.Request) inputFields { return pending(r) & e.reads }

// pending returns the fields that a later stage of the request may still set. A policy that reads them is
// evaluated partially, see [Evaluator.partial].
func pending(r *policy.Request) (p inputFields) {
	if len(r.Destination.Addrs) == 0 && !r.Destination.Addr.IsValid() {
		p |= readsResolved
	}
	switch {
	case r.DNS != nil:
		// A name may be resolved if it can be reached in any way.
		p |= mayBePending &^ readsResolved
		if r.Destination.Port != 0 { // the port under test
			p &^= readsPort
		}
		return p
	case r.HTTP != nil:
		if _, known := bodyOf(r.HTTP); !known {
			p |= readsBody
		}
		return p
	}
	if r.TLS == nil && r.Protocol == policy.ProtocolUnseen && r.Via != policy.ViaHTTP {
		p |= readsTLS
	}
	return p | readsHTTP
}

// maxPorts is the maximum number of ports that Probe adds, since each costs an evaluation.
const maxPorts = 128

// Probe adds the numbers in the rules and data of the policy to p.Ports, each with its successor. A name
// is not resolved if only another port is open, such as one that Rego computes.
func (e *Evaluator) Probe(_ context.Context, _ *policy.Request, p *policy.Probes) {
	if e.reads&readsPort != 0 {
		p.Ports = append(p.Ports, e.ports...)
	}
}

// ports returns the numbers of rules, then of data, in the range of ports. Each is followed by its
// successor.
func (set *sourceSet) ports() (ports []uint16) {
	visit := func(t *ast.Term) bool {
		if n, ok := t.Value.(ast.Number); ok && len(ports) < 2*maxPorts {
			if port, whole := n.Int(); whole && port > 0 && port < 65535 && !slices.Contains(ports, uint16(port)) {
				ports = append(ports, uint16(port), uint16(port)+1)
			}
		}
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		ast.WalkTerms(set.modules[name], visit)
	}
	if data, err := ast.InterfaceToValue(set.data); err == nil {
		ast.WalkTerms(ast.NewTerm(data), visit)
	}
	return ports
}

// errNoUsage prevents a rule about usage from silently not holding.
var errNoUsage = errors.New("the policy reads input.usage, and nobody has counted it")

// ReadsUsage reports whether the policy may read input.usage. Its decisions are then not cached, and a
// request without usage is an error.
func (e *Evaluator) ReadsUsage() bool { return e.reads&readsUsage != 0 }
