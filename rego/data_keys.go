package rego

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// firstRepeatedKey returns the first key that a YAML document has twice in one mapping,
// at any depth, and the line, from 1, where it stands again; "" where there is none.
// The error says that the text is no YAML.
func firstRepeatedKey(text []byte) (key string, line int, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return "", 0, fmt.Errorf("it is no YAML: %w", err)
	}
	key, line = repeatedKeyIn(&root)
	return key, line, nil
}

// repeatedKeyIn does not follow aliases: what they name is looked at where it stands.
func repeatedKeyIn(n *yaml.Node) (string, int) {
	if n.Kind == yaml.MappingNode {
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind == yaml.ScalarNode && seen[key.Value] {
				return key.Value, key.Line
			}
			seen[key.Value] = true
		}
	}
	for _, below := range n.Content {
		if key, line := repeatedKeyIn(below); line > 0 {
			return key, line
		}
	}
	return "", 0
}
