package rego

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// envoyShape is the input of OPA's plugin for Envoy's external authorization: a version 3 CheckRequest as
// JSON, with the parsed path and query.
var envoyShape = foreignShape{
	schema: "schema/envoy.json",
	lacks: []string{
		"parsed_body", "truncated_body", "raw_body", "rawBody", "context_extensions", "contextExtensions",
		"metadata_context", "metadataContext", "route_metadata_context", "routeMetadataContext", "tls_session", "tlsSession",
	},
	decisions: []string{"envoy.authz.allow", "istio.authz.allow"},
	parts: []shapePart{
		{"version", readsVersion},
		{"attributes.source", readsSandboxName},
		{"attributes.destination.address.socketAddress.address", readsAddresses},
		{"attributes.destination.address.socketAddress.portValue", readsPort},
		{"attributes.request.time", readsTime},
		{"attributes.request.http.method", readsMethod},
		{"attributes.request.http.path", readsPath | readsQuery},
		{"attributes.request.http.host", readsHost | readsPort | readsVia},
		{"attributes.request.http.scheme", readsVia},
		{"attributes.request.http.size", readsBodySize},
		{"attributes.request.http.headers", readsHeaders},
		{"parsed_path", readsPath},
		{"parsed_query", readsQuery},
	},
	input:   envoyInput,
	answer:  envoyAnswer,
	allows:  "allowed",
	changes: envoyChanges,
}

func envoyInput(r *policy.Request, addr netip.Addr) (*ast.Term, error) {
	query, err := url.ParseQuery(r.HTTP.Query)
	if err != nil {
		return nil, fmt.Errorf("reading the query: %w", err)
	}
	path, err := url.PathUnescape(r.HTTP.Path)
	if err != nil {
		return nil, fmt.Errorf("reading the path: %w", err)
	}
	var parameters inputObject
	for name, values := range query {
		parameters.add(ast.StringTerm(name), texts(values))
	}
	return inputObject{
		{ast.StringTerm("version"), textsOf("ext_authz", "v3", "encoding", "protojson")},
		{ast.StringTerm("attributes"), envoyAttributes(r, addr)},
		{ast.StringTerm("parsed_path"), texts(strings.Split(strings.TrimLeft(path, "/"), "/"))},
		{ast.StringTerm("parsed_query"), parameters.term()},
	}.term(), nil
}

// textsOf returns an object of strings from alternating keys and values.
func textsOf(pairs ...string) *ast.Term {
	var o inputObject
	for i := 0; i+1 < len(pairs); i += 2 {
		o.add(ast.StringTerm(pairs[i]), ast.StringTerm(pairs[i+1]))
	}
	return o.term()
}

func envoyAttributes(r *policy.Request, addr netip.Addr) *ast.Term {
	socket := inputObject{{ast.StringTerm("portValue"), number(int64(r.Destination.Port))}}
	if addr.IsValid() {
		socket.add(ast.StringTerm("address"), ast.StringTerm(addr.Unmap().String()))
	}
	within := func(key string, value *ast.Term) *ast.Term { return inputObject{{ast.StringTerm(key), value}}.term() }
	request := inputObject{{keyHTTP, envoyHTTP(r)}}
	if !r.Time.IsZero() {
		request.add(keyTime, ast.StringTerm(r.Time.UTC().Format(time.RFC3339Nano)))
	}
	return inputObject{
		{ast.StringTerm("source"), textsOf("principal", r.Sandbox.Name)},
		{keyDestination, within("address", within("socketAddress", socket.term()))},
		{ast.StringTerm("request"), request.term()},
	}.term()
}

// envoyHTTP returns the request head in Envoy's form: the path includes the query, and the headers include
// the HTTP/2 pseudo-headers.
func envoyHTTP(r *policy.Request) *ast.Term {
	path := r.HTTP.Path
	if r.HTTP.Query != "" {
		path += "?" + r.HTTP.Query
	}
	headers := flatHeaders(r.HTTP.Header)
	for name, value := range map[string]string{":method": r.HTTP.Method, ":path": path, ":authority": authority(r), ":scheme": scheme(r)} {
		headers.add(ast.StringTerm(name), ast.StringTerm(value))
	}
	o := inputObject{{keyHeaders, headers.term()}}
	for key, value := range map[string]string{
		"method": r.HTTP.Method, "path": path, "host": authority(r), "scheme": scheme(r), "size": strconv.FormatInt(r.HTTP.BodySize, 10),
	} {
		o.add(ast.StringTerm(key), ast.StringTerm(value))
	}
	return o.term()
}

// envoyChanges are the members of an answer that change the request. egressd changes no request, so an
// allowing answer with one of them is an error.
var envoyChanges = []string{"headers", "request_headers_to_remove", "query_parameters_to_set", "query_parameters_to_remove"}

// envoyAnswer reads true, false, or an object with "allowed".
func envoyAnswer(t *ast.Term) (answer, error) {
	allowed, object, err := allowedBy(t, "allowed")
	if err != nil || object == nil {
		return answer{allowed: allowed}, err
	}
	for _, key := range envoyChanges {
		if member := object.Get(ast.StringTerm(key)); allowed && member != nil && (width(member) > 0 || !isCollection(member)) {
			return answer{}, fmt.Errorf("the answer changes the request by %q, which is not supported", key)
		}
	}
	return answer{allowed, sentenceAt(object, "body")}, nil
}

func isCollection(t *ast.Term) bool {
	switch t.Value.(type) {
	case ast.Object, ast.Set, *ast.Array:
		return true
	}
	return false
}
