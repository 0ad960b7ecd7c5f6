package run

import (
	"fmt"
	"maps"
	"slices"

	"github.com/egressd/egressd/sandbox/environ"
)

// placeholders are the variables in which the program finds what stands for credentials.
func (r *runner) placeholders() (vars []environ.Variable) {
	if r.beside != nil {
		given := r.beside.handed.Answer.Variables
		for _, name := range slices.Sorted(maps.Keys(given)) {
			vars = append(vars, environ.Variable{Name: name, Value: given[name]})
		}
		return vars
	}
	all, missing := r.Variables(r.name)
	for _, v := range all {
		vars = append(vars, environ.Variable(v))
	}
	for _, name := range missing {
		fmt.Fprintf(r.talk, "egressd: warning: the credential %s cannot be had, so its variables are not set\n", name)
	}
	return vars
}
