package rego

import (
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/egressd/egressd/policy"
)

// fields is a set of fields of the input.
type fields uint32

const (
	readsVersion fields = 1 << iota
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

	readsSandbox     = readsSandboxName | readsSandboxKind | readsSandboxLabels
	readsDestination = readsHost | readsPort | readsAddresses | readsAddressClass | readsRegistrable
	readsTLS         = readsSNI | readsALPN | readsECH | readsJA4
	readsHTTP        = readsMethod | readsPath | readsQuery | readsHeaders | readsBodySize
	readsDNS         = readsQuestionName | readsQuestionType
	readsProcess     = readsPID | readsExe | readsArgv
	readsResolved    = readsAddresses | readsAddressClass
)

// fieldPaths is in the order of the bits.
var fieldPaths = [...]string{
	"version", "stage", "sandbox.name", "sandbox.kind", "sandbox.labels", "via",
	"destination.host", "destination.port", "destination.addresses", "destination.address_class", "destination.registrable",
	"tls.sni", "tls.alpn", "tls.ech", "tls.ja4",
	"http.method", "http.path", "http.query", "http.headers", "http.body_size",
	"dns.name", "dns.type", "process.pid", "process.exe", "process.argv", "time",
	"usage",
}

// LooksAtRequests reports whether the policy may have to see HTTP requests: its sets
// read some part of them, or may say "inject". It speaks for all questions to the same
// files.
func (e *Evaluator) LooksAtRequests() bool { return e.looks }

// mayInject reports whether a rule of the user's, or the data, holds the word
// "inject".
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

// allReads returns what the sets of all questions could read.
func (c *compiled) allReads() (reads fields) {
	for name := range c.questions {
		reads |= c.reads(name)
	}
	return reads
}

// reads returns what the sets of a question, and the rules that they lead to, could
// read.
func (c *compiled) reads(name string) fields {
	reads := c.readsBy(name, fieldsIn)
	if reads&readsStage != 0 {
		reads |= readsMethod // a rule about the stage "http" is one about requests
	}
	return reads
}

// readsBy is reads, of an input of which in knows the fields.
func (c *compiled) readsBy(name string, in func(any) fields) (reads fields) {
	seen := map[util.T]bool{}
	var visit func(rule util.T)
	visit = func(rule util.T) {
		if seen[rule] {
			return
		}
		seen[rule] = true
		reads |= in(rule)
		for next := range c.compiler.Graph.Dependencies(rule) {
			visit(next)
		}
	}
	for _, r := range c.questions[name].rules {
		visit(r)
	}
	return reads
}

// fieldsIn returns the fields that part of a module names. The clock counts as
// the field time.
func fieldsIn(x any) (reads fields) {
	ast.WalkRefs(x, func(ref ast.Ref) bool {
		switch {
		case ref.HasPrefix(ast.InputRootRef):
			reads |= fieldsAt(ref[1:])
		case ref.String() == "time.now_ns", ref.String() == boundedPrefix+"time.now_ns":
			reads |= readsTime
		}
		return false
	})
	return reads
}

// fieldsAt returns the fields at a path, below it or around it. What is not
// constant could be any of them.
func fieldsAt(ref ast.Ref) (reads fields) {
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
		if strings.HasPrefix(path.String(), field+".") || strings.HasPrefix(field+".", path.String()) {
			reads |= 1 << i
		}
	}
	return reads
}

// mayBePending are the fields that are ever unknown.
const mayBePending = readsVia | readsPort | readsResolved | readsTLS | readsHTTP | readsProcess

// pending returns what the policy reads and a later stage may still fill in. One
// that was written for another gate is asked when nothing can.
func (e *Evaluator) pending(r *policy.Request) fields {
	if e.foreign != nil {
		return 0
	}
	return pending(r) & e.reads
}

// pending returns the fields that a later stage of the request may still fill
// in. A policy that reads them is asked what it would say, see [Evaluator.ahead].
func pending(r *policy.Request) (p fields) {
	if len(r.Destination.Addrs) == 0 && !r.Destination.Addr.IsValid() {
		p |= readsResolved
	}
	switch {
	case r.DNS != nil:
		// A name may be resolved where it may be reached in any way at all.
		p |= mayBePending &^ readsResolved
		if r.Destination.Port != 0 { // the one that is tried
			p &^= readsPort
		}
		return p
	case r.HTTP != nil:
		return p
	}
	if r.TLS == nil && r.Protocol == policy.ProtocolUnseen && r.Via != policy.ViaHTTP {
		p |= readsTLS
	}
	return p | readsHTTP
}
