package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/util"
	"go.yaml.in/yaml/v3"
)

// addData merges an object into the root of data, as the command "opa test" does. A key may come from only
// one file, and a file must hold a non-empty object. A list that is lost without notice would be empty for
// every rule.
func (set *sourceSet) addData(s Source) (problems policy.FileError) {
	document, err := readData(s.Text)
	var repeated *repeatedKey
	switch {
	case errors.As(err, &repeated):
		return policy.FileError{{File: s.Name, Line: repeated.line, Column: 1, Message: err.Error()}}
	case err != nil:
		return policy.FileError{{File: s.Name, Line: 1, Column: 1, Message: err.Error()}}
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

func readData(text []byte) (document map[string]any, err error) {
	if err := util.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("it does not hold one object: %w", err)
	}
	if len(document) == 0 {
		return nil, errors.New("it holds nothing; write an object with keys, or take the file away")
	}
	return document, Unambiguous(text)
}

// Unambiguous returns an error if parsing the data lost a part of it.
func Unambiguous(text []byte) error {
	switch {
	case json.Valid(text):
		return keysOnce(json.NewDecoder(bytes.NewReader(text)))
	case !utf8.Valid(text):
		return errors.New("it is not UTF-8")
	case documents(string(text)) > 1:
		return errors.New("it holds more than one document; put each in a file of its own")
	}
	return yamlKeysOnce(text)
}

// A repeatedKey is a key that occurs twice in a YAML mapping. OPA silently uses the last one.
type repeatedKey struct {
	key  string
	line int
}

func (e *repeatedKey) Error() string { return fmt.Sprintf("it has the key %q twice", e.key) }

func yamlKeysOnce(text []byte) error {
	key, line, err := firstRepeatedKey(text)
	if err != nil || line == 0 {
		return err
	}
	return &repeatedKey{key, line}
}

// keysOnce reads the next value of a valid JSON text. It returns an error if an object repeats a key.
func keysOnce(d *json.Decoder) error {
	token, err := d.Token()
	open, nested := token.(json.Delim)
	if err != nil || !nested {
		return err
	}
	seen := map[json.Token]bool{}
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			if seen[key] {
				return fmt.Errorf("it has the key %q twice", key)
			}
			seen[key] = true
		}
		if err := keysOnce(d); err != nil {
			return err
		}
	}
	_, err = d.Token() // the closing delimiter
	return err
}

func breaksLine(c rune) bool { return strings.ContainsRune("\n\r\u0085\u2028\u2029", c) }

// documents counts YAML documents. A document marker cannot occur inside a quoted text or a block.
func documents(text string) (n int) {
	inside := false
	for line := range strings.FieldsFuncSeq(text, breaksLine) {
		line = strings.TrimPrefix(line, "\ufeff")
		marker := strings.TrimRight(line[:min(len(line), 4)], " \t")
		switch {
		case marker == "---":
			inside = true
			n++
		case marker == "...":
			inside = false
		case inside, strings.TrimSpace(line) == "", strings.HasPrefix(strings.TrimSpace(line), "#"), line[0] == '%':
		default:
			inside = true
			n++
		}
	}
	return n
}

// hasData reports whether data has a value at path. A package there would hide it.
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

// openData stores the data as Rego values, so that a list has the same identity in each evaluation.
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
