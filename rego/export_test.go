package rego

// LoadAsIs loads a policy without evaluating it, for tests of policies that fail.
func LoadAsIs(sources []Source, o Options) (*Evaluator, error) {
	e, _, err := load(sources, o)
	return e, err
}
