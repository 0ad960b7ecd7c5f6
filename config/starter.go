package config

import _ "embed"

// starter is the policy that egressd init writes.
//
//go:embed starter.yaml
var starter string

// Starter returns the text of the starter policy.
func Starter() []byte { return []byte(starter) }

// Starting returns the starter policy as if it were the user's policy file, under the organisation's file.
func Starting(organisation string) (*Config, error) {
	c, err := New(SearchPath()[0], Starter(), organisation)
	if err == nil {
		c.BuiltIn = true
	}
	return c, err
}
