package rego

// LoadAsIs loads a policy without evaluating it, for tests of policies that fail.
func LoadAsIs(sources []Source, o Options) (*Evaluator, error) {
	e, _, err := load(sources, o)
	return e, err
}

// Withheld returns the built-ins that policies lack, with what to write in their place.
func Withheld() map[string]string { return withheld }

// Kept returns the names of the built-ins that policies have.
func Kept() (all []string) {
	for _, b := range sealed().Builtins {
		all = append(all, b.Name)
	}
	return all
}
