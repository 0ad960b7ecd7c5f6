package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/egressd/egressd/integrations/jsonc"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
)

// An object is a mapping of settings, from which readers take what they know.
type object map[string]json.RawMessage

// parseJSON reads an object of JSON with comments.
func parseJSON(text []byte) (object, error) {
	if _, err := jsonc.Parse(bytes.Clone(text)); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	return objectOf(jsonc.Standard(text), "it is no JSON object")
}

func objectOf(text []byte, problem string) (object, error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil || o == nil {
		return nil, errors.New(problem)
	}
	return o, nil
}

// parseYAML reads one document of YAML, which JSON is, too.
func parseYAML(text []byte) (object, error) {
	var trees []any
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var tree any
		err := d.Decode(&tree)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("it is not YAML: %w", err)
		}
		if tree != nil {
			trees = append(trees, tree)
		}
	}
	if len(trees) != 1 {
		return nil, fmt.Errorf("it has %d documents of YAML, not one", len(trees))
	}
	return objectFrom(trees[0], "it is no mapping of YAML with text as keys")
}

func parseTOML(text []byte) (object, error) {
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("it is not TOML: %w", err)
	}
	return objectFrom(tree, "it holds numbers that JSON has not")
}

func objectFrom(tree any, problem string) (object, error) {
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, errors.New(problem)
	}
	return objectOf(text, problem)
}

// take decodes the value at key into v and deletes the key. A missing key leaves v as it is.
func (o object) take(key string, v any) error {
	text, ok := o[key]
	delete(o, key)
	if !ok {
		return nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// takeAll decodes several keys, each into its value.
func (o object) takeAll(into map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(into)) {
		if err := o.take(key, into[key]); err != nil {
			return err
		}
	}
	return nil
}

// takeOnly is takeAll. It returns an error if a key is left.
func (o object) takeOnly(prefix string, into map[string]any) error {
	err := o.takeAll(into)
	if err == nil {
		_, err = o.only(prefix)
	}
	return err
}

// settings parses an object and takes keys out of it.
func settings(text []byte, parse func([]byte) (object, error), into map[string]any) (object, error) {
	o, err := parse(text)
	if err == nil {
		err = o.takeAll(into)
	}
	return o, err
}

// onlySettings is settings for an object of which all keys have to be known.
func onlySettings(text []byte, parse func([]byte) (object, error), into map[string]any) error {
	o, err := settings(text, parse, into)
	if err == nil {
		_, err = o.only("")
	}
	return err
}

// parseMember parses the value of a key; null is an empty object.
func parseMember(text []byte) (o object, err error) {
	err = json.Unmarshal(text, &o)
	return o, err
}

// keys are those that nobody took.
func (o object) keys(prefix string) []string {
	all := slices.Sorted(maps.Keys(o))
	for i := range all {
		all[i] = prefix + all[i]
	}
	return all
}

// only returns an error if a key is left that is none of aside, which it returns.
func (o object) only(prefix string, aside ...string) ([]string, error) {
	for _, key := range o.keys("") {
		if !slices.Contains(aside, key) {
			return nil, fmt.Errorf("%s%s is not known here; take it out if it is not about destinations", prefix, key)
		}
	}
	return o.keys(prefix), nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
