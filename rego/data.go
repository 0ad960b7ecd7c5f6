package rego

import (
	"fmt"
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/egressd/egressd/policy"
)

// addData merges an object into data, at its root, as the command "opa test"
// does. No key may come from two files.
func (set *sourceSet) addData(s Source) (problems policy.FileError) {
	var document map[string]any
	if err := util.Unmarshal(s.Text, &document); err != nil {
		return policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: fmt.Sprintf("it does not hold one object: %v", err)}}
	}
	for _, key := range slices.Sorted(maps.Keys(document)) {
		_, twice := set.data[key]
		switch {
		case key == "egressd" || key == "system":
			problems = append(problems, policy.Problem{File: s.Name, Line: 1, Column: 1, Message: fmt.Sprintf("data.%s belongs to egressd; choose another key", key)})
		case twice:
			problems = append(problems, policy.Problem{File: s.Name, Line: 1, Column: 1, Message: fmt.Sprintf("data.%s is in another file too; keep one of them", key)})
		}
		set.data[key] = document[key]
	}
	return problems
}

// hasData reports whether data holds something at path: a package there would
// hide it.
func (set *sourceSet) hasData(path []string) (bool, error) {
	var at any = set.data
	for _, key := range path {
		object, ok := at.(map[string]any)
		if !ok {
			return true, nil
		}
		if at, ok = object[key]; !ok {
			return false, nil
		}
	}
	return true, nil
}

// openData keeps data as values of Rego, so that a list is the same value in each
// evaluation.
func openData(data map[string]any) (storage.Store, storage.Transaction, error) {
	value, err := ast.InterfaceToValue(data)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the data: %w", err)
	}
	object, ok := value.(ast.Object)
	if !ok {
		return nil, nil, fmt.Errorf("reading the data: it is no object")
	}
	store := inmem.NewFromASTObject(object)
	txn, err := store.NewTransaction(background())
	if err != nil {
		return nil, nil, fmt.Errorf("reading the data: %w", err)
	}
	return store, txn, nil
}
