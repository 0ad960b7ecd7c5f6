package rego

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// inputVersion is input.version. It grows when a field changes its meaning; new
// fields do not change it.
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
