package rego

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/strictjson"
	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
)

// An inputObject collects the members of an input object. Unknown parts are left out, so they are undefined and
// not empty.
type inputObject [][2]*ast.Term

func (o *inputObject) add(key *ast.Term, value *ast.Term) {
	*o = append(*o, [2]*ast.Term{key, value})
}

func (o *inputObject) addText(want bool, key *ast.Term, value string) {
	if want && value != "" {
		o.add(key, ast.StringTerm(value))
	}
}

func (o *inputObject) addNumber(want bool, key *ast.Term, value int64) {
	if want {
		o.add(key, number(value))
	}
}

// number reuses the terms of small numbers, including ports.
func number(n int64) *ast.Term {
	if small := int(n); int64(small) == n && ast.HasInternedIntNumberTerm(small) {
		return ast.InternedTerm(small)
	}
	return ast.NewTerm(ast.Number(strconv.FormatInt(n, 10)))
}

func (o *inputObject) addTexts(want bool, key *ast.Term, values []string) {
	if want && len(values) > 0 {
		o.add(key, texts(values))
	}
}

func (o inputObject) term() *ast.Term { return ast.NewTerm(ast.NewObject(o...)) }

func texts(values []string) *ast.Term {
	terms := make([]*ast.Term, len(values))
	for i, v := range values {
		terms[i] = ast.StringTerm(v)
	}
	return ast.ArrayTerm(terms...)
}

// Keys of the input. They are never written.
var (
	keyVersion      = ast.StringTerm("version")
	keyStage        = ast.StringTerm("stage")
	keyVia          = ast.StringTerm("via")
	keyTime         = ast.StringTerm("time")
	keySandbox      = ast.StringTerm("sandbox")
	keyDestination  = ast.StringTerm("destination")
	keyTLS          = ast.StringTerm("tls")
	keyHTTP         = ast.StringTerm("http")
	keyDNS          = ast.StringTerm("dns")
	keyProcess      = ast.StringTerm("process")
	keyName         = ast.StringTerm("name")
	keyKind         = ast.StringTerm("kind")
	keyLabels       = ast.StringTerm("labels")
	keyHost         = ast.StringTerm("host")
	keyPort         = ast.StringTerm("port")
	keyRegistrable  = ast.StringTerm("registrable")
	keyAddresses    = ast.StringTerm("addresses")
	keyAddressClass = ast.StringTerm("address_class")
	keySNI          = ast.StringTerm("sni")
	keyALPN         = ast.StringTerm("alpn")
	keyJA4          = ast.StringTerm("ja4")
	keyECH          = ast.StringTerm("ech")
	keyMethod       = ast.StringTerm("method")
	keyPath         = ast.StringTerm("path")
	keyQuery        = ast.StringTerm("query")
	keyBodySize     = ast.StringTerm("body_size")
	keyBody         = ast.StringTerm("body")
	keyHeaders      = ast.StringTerm("headers")
	keyType         = ast.StringTerm("type")
	keyPID          = ast.StringTerm("pid")
	keyExe          = ast.StringTerm("exe")
	keyArgv         = ast.StringTerm("argv")
	keyUsage        = ast.StringTerm("usage")
)

// input builds the wanted fields of the input as Rego values.
func input(r *policy.Request, want inputFields) *ast.Term { return inputAt(r, r.Stage(), want) }

// inputAt builds the input as of another stage.
func inputAt(r *policy.Request, stage policy.Stage, want inputFields) *ast.Term {
	root := make(inputObject, 0, 8)
	root.addNumber(want&readsVersion != 0, keyVersion, inputVersion)
	root.addText(want&readsStage != 0, keyStage, string(stage))
	root.addText(want&readsVia != 0, keyVia, string(r.Via))
	root.addNumber(want&readsTime != 0 && !r.Time.IsZero(), keyTime, r.Time.UnixNano())
	if want&readsSandbox != 0 {
		root.add(keySandbox, sandboxPart(&r.Sandbox, want))
	}
	if want&readsDestination != 0 {
		root.add(keyDestination, destinationPart(&r.Destination, want))
	}
	if r.TLS != nil && want&readsTLS != 0 {
		root.add(keyTLS, tlsPart(r.TLS, want))
	}
	if r.HTTP != nil && want&readsHTTP != 0 {
		root.add(keyHTTP, httpPart(r.HTTP, want))
	}
	if r.DNS != nil && want&readsDNS != 0 {
		root.add(keyDNS, dnsPart(r.DNS, want))
	}
	if r.Process != nil && want&readsProcess != 0 {
		root.add(keyProcess, processPart(r.Process, want))
	}
	if r.Usage != nil && want&readsUsage != 0 {
		root.add(keyUsage, usagePart(r.Usage))
	}
	return root.term()
}

func sandboxPart(s *policy.Sandbox, want inputFields) *ast.Term {
	var o inputObject
	o.addText(want&readsSandboxName != 0, keyName, s.Name)
	o.addText(want&readsSandboxKind != 0, keyKind, s.Kind)
	if want&readsSandboxLabels != 0 && len(s.Labels) > 0 {
		var labels inputObject
		for key, value := range s.Labels {
			labels.add(ast.StringTerm(key), ast.StringTerm(value))
		}
		o.add(keyLabels, labels.term())
	}
	return o.term()
}

func destinationPart(d *policy.Destination, want inputFields) *ast.Term {
	o := make(inputObject, 0, 5)
	o.addText(want&readsHost != 0, keyHost, d.Host)
	o.addNumber(want&readsPort != 0 && d.Port != 0, keyPort, int64(d.Port))
	if want&readsRegistrable != 0 && !d.Addr.IsValid() {
		o.addText(true, keyRegistrable, policy.Registrable(d.Host))
	}
	if want&readsResolved == 0 {
		return o.term()
	}
	addrs := d.Addrs
	if len(addrs) == 0 && d.Addr.IsValid() {
		addrs = append(addrs, d.Addr)
	}
	if len(addrs) == 0 {
		return o.term()
	}
	class := policy.AddressClass("")
	names := make([]string, len(addrs))
	for i, addr := range addrs {
		names[i] = addr.Unmap().String()
		if class == "" {
			class = policy.ClassOf(addr)
		}
	}
	o.addTexts(want&readsAddresses != 0, keyAddresses, names)
	o.addText(want&readsAddressClass != 0, keyAddressClass, className(class))
	return o.term()
}

func tlsPart(hello *policy.ClientHello, want inputFields) *ast.Term {
	var o inputObject
	o.addText(want&readsSNI != 0, keySNI, hello.ServerName)
	o.addTexts(want&readsALPN != 0, keyALPN, hello.ALPN)
	o.addText(want&readsJA4 != 0, keyJA4, hello.JA4)
	if want&readsECH != 0 {
		o.add(keyECH, ast.InternedTerm(hello.ECH))
	}
	return o.term()
}

func httpPart(h *policy.HTTPRequest, want inputFields) *ast.Term {
	o := make(inputObject, 0, 5)
	o.addText(want&readsMethod != 0, keyMethod, h.Method)
	o.addText(want&readsPath != 0, keyPath, h.Path)
	o.addText(want&readsQuery != 0, keyQuery, h.Query)
	o.addNumber(want&readsBodySize != 0 && h.BodySize >= 0, keyBodySize, h.BodySize)
	if want&readsHeaders != 0 {
		var headers inputObject
		for name, values := range h.Header {
			if name = strings.ToLower(name); !isCredential(name) && len(values) > 0 {
				headers.add(ast.StringTerm(name), texts(values))
			}
		}
		o.add(keyHeaders, headers.term())
	}
	if want&readsBody != 0 {
		if body, _ := bodyOf(h); body != nil {
			o.add(keyBody, ast.NewTerm(body))
		}
	}
	return o.term()
}

// maxBody is how long a body may be that policies see. Its value takes many times as much memory.
const maxBody = 1 << 20

// bodyOf returns the body of a request as a value. It is nil for a request without a body. A body that was not read, or that
// servers could read in two ways, is not known; it stays unknown.
func bodyOf(h *policy.HTTPRequest) (body ast.Value, known bool) {
	switch {
	case h.Unread():
		return nil, false
	case h.Body == nil || len(h.Body.Bytes) == 0:
		return nil, true
	}
	content, problem := h.JSONContent()
	if problem != "" || len(content) > maxBody || strictjson.Walk(content, func([]strictjson.PathStep, strictjson.ValueKind, []byte) {}) != nil {
		return nil, false
	}
	body, err := ast.ValueFromReader(bytes.NewReader(content))
	return body, err == nil
}

// isCredential reports whether policies must not see a header. A policy could copy its value to a reason,
// which is logged.
func isCredential(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "cookie":
		return true
	}
	return false
}

func dnsPart(q *policy.DNSQuery, want inputFields) *ast.Term {
	var o inputObject
	o.addText(want&readsQuestionName != 0, keyName, q.Name)
	o.addText(want&readsQuestionType != 0, keyType, q.Type)
	return o.term()
}

func processPart(p *policy.Process, want inputFields) *ast.Term {
	var o inputObject
	o.addNumber(want&readsPID != 0 && p.PID != 0, keyPID, int64(p.PID))
	o.addText(want&readsExe != 0, keyExe, p.Exe)
	o.addTexts(want&readsArgv != 0, keyArgv, p.Argv)
	return o.term()
}

// usagePart builds input.usage, which is complete at every stage.
func usagePart(u *policy.Usage) *ast.Term {
	o := make(inputObject, 0, 6)
	for _, field := range [...]struct {
		name  string
		value int64
	}{
		{"flows_open", u.FlowsOpen}, {"flows_minute", u.FlowsMinute}, {"requests_minute", u.RequestsMinute},
		{"denied_minute", u.DeniedMinute}, {"bytes_up", u.BytesUp}, {"bytes_down", u.BytesDown},
	} {
		o.addNumber(true, ast.StringTerm(field.name), field.value)
	}
	return o.term()
}

// inputVersion is the value of input.version. It changes when a field changes its meaning. New fields do
// not change it.
const inputVersion = 1

//go:embed schema/input.json
var inputSchemaText []byte

// InputSchema returns the JSON Schema of the input, for "opa check --schema".
func InputSchema() []byte { return append([]byte(nil), inputSchemaText...) }

func inputSchema() (*ast.SchemaSet, error) {
	var schema any
	if err := json.Unmarshal(inputSchemaText, &schema); err != nil {
		return nil, fmt.Errorf("reading the schema of the input: %w", err)
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, schema)
	return set, nil
}
