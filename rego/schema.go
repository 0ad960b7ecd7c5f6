package rego

import (
	"embed"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// inputVersion is the value of input.version. It changes when a field changes its meaning. New fields do
// not change it.
const inputVersion = 1

//go:embed schema/input.json
var inputSchemaText []byte

// InputSchema returns the JSON Schema of the input, for "opa check --schema".
func InputSchema() []byte { return append([]byte(nil), inputSchemaText...) }

// foreignSchemas are those of inputs of other gates.
//
//go:embed schema/envoy.json schema/authbridge.json
var foreignSchemas embed.FS

// inputSchema returns the schema of a shape, or of egressd's own input if s is nil.
func inputSchema(s *foreignShape) (_ *ast.SchemaSet, err error) {
	text := inputSchemaText
	if s != nil {
		if text, err = foreignSchemas.ReadFile(s.schema); err != nil {
			return nil, fmt.Errorf("reading the schema of the input: %w", err)
		}
	}
	var schema any
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, fmt.Errorf("reading the schema of the input: %w", err)
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, schema)
	return set, nil
}
