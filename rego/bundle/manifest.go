package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/util"
)

const maxManifestBytes = 1 << 20

// A manifest describes a bundle, with OPA's keys.
type bundleManifest struct {
	Revision         string            `json:"revision"`
	Roots            *[]string         `json:"roots,omitempty"` // nil means all
	RegoVersion      *int              `json:"rego_version,omitempty"`
	FileRegoVersions map[string]int    `json:"file_rego_versions,omitempty"`
	Wasm             []json.RawMessage `json:"wasm,omitempty"`
	Metadata         map[string]any    `json:"metadata,omitempty"` // ignored
}

// readManifest parses the manifest. A nil text stands for OPA's default.
func readManifest(text []byte) (m bundleManifest, err error) {
	m.Roots = &[]string{""}
	if text == nil {
		return m, nil
	}
	if len(text) > maxManifestBytes {
		return m, fmt.Errorf("%s is larger than %d MiB", manifestName, maxManifestBytes>>20)
	}
	keys, err := readObject(text, "revision", "roots", "rego_version", "file_rego_versions", "wasm", "metadata")
	if err == nil {
		err = onlyKnown(keys, "revision", "roots", "rego_version", "file_rego_versions", "wasm", "metadata")
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", manifestName, err)
	}
	return m, nil
}

// check refuses settings that egressd does not support.
func (m *bundleManifest) check() error {
	if m.RegoVersion != nil && *m.RegoVersion != 1 {
		return fmt.Errorf("it is written in version %d of Rego, and egressd reads version 1; opa fmt --rego-v1 rewrites modules", *m.RegoVersion)
	}
	for _, name := range slices.Sorted(maps.Keys(m.FileRegoVersions)) {
		if m.FileRegoVersions[name] != 1 {
			return fmt.Errorf("%q is written in version %d of Rego, and egressd reads version 1; opa fmt --rego-v1 rewrites modules", name, m.FileRegoVersions[name])
		}
	}
	if len(m.Wasm) > 0 {
		return errors.New("it names compiled policies; build the bundle with its modules alone (opa build -t rego)")
	}
	if m.Roots == nil {
		m.Roots = &[]string{""} // null in JSON
	}
	for i, root := range *m.Roots {
		(*m.Roots)[i] = strings.Trim(root, "/")
	}
	return apart(*m.Roots)
}

// apart returns an error if a root lies below another, as OPA does.
func apart(roots []string) error {
	for i, root := range roots {
		others := slices.Delete(slices.Clone(roots), i, i+1)
		if within(others, strings.Split(root, "/")) {
			return fmt.Errorf("the root %q lies in another one; name the wider one alone", root)
		}
	}
	return nil
}

// within reports whether a path is at or below one of the roots.
func within(roots []string, at []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return root == "" || startsWith(at, strings.Split(root, "/"))
	})
}

// leads reports whether one of the roots is at or below a path.
func leads(at []string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return startsWith(strings.Split(root, "/"), at) })
}

func startsWith(path, with []string) bool {
	return len(with) <= len(path) && slices.Equal(with, path[:len(with)])
}

// dataWithin returns an error if data lies outside the roots.
func dataWithin(roots []string, at []string, value any) error {
	if within(roots, at) {
		return nil
	}
	object, ok := value.(map[string]any)
	if !ok || !leads(at, roots) {
		return fmt.Errorf("data.%s is not below a root of the bundle, which are %q", strings.Join(at, "."), roots)
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if err := dataWithin(roots, append(slices.Clip(at), key), object[key]); err != nil {
			return err
		}
	}
	return nil
}

// mergeFile merges a data file at the path of its folder. Only objects may come from several files.
func mergeFile(data map[string]any, name string, text []byte) error {
	var value any
	if path.Ext(name) == ".json" && !json.Valid(text) {
		return fmt.Errorf("%s is not JSON", name)
	}
	err := util.Unmarshal(text, &value)
	if err == nil {
		err = rego.Unambiguous(text)
	}
	if err == nil && value == nil {
		err = errors.New("it holds nothing")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, key := range slices.Backward(strings.Split(name, "/")[:strings.Count(name, "/")]) {
		value = map[string]any{key: value}
	}
	object, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("%s does not hold one object", name)
	}
	if at := merge(data, object); at != nil {
		return fmt.Errorf("%s: data.%s is in another file too; keep one of them", name, strings.Join(at, "."))
	}
	return nil
}

// merge merges two objects. It returns the path of the first conflict, or nil.
func merge(into, from map[string]any) (conflict []string) {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		there, twice := into[key]
		if !twice {
			into[key] = from[key]
			continue
		}
		a, ok := there.(map[string]any)
		b, ok2 := from[key].(map[string]any)
		if !ok || !ok2 {
			return []string{key}
		}
		if at := merge(a, b); at != nil {
			return append([]string{key}, at...)
		}
	}
	return nil
}

// readObject parses a JSON object without repeated keys. A key that differs from a known key only in case
// is an error, because OPA ignores case.
func readObject(text []byte, known ...string) (keys map[string]json.RawMessage, err error) {
	if !json.Valid(text) {
		return nil, errors.New("it is not JSON")
	}
	if err := rego.Unambiguous(text); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &keys); err != nil || keys == nil {
		return nil, errors.New("it does not hold one object")
	}
	for key := range keys {
		for _, k := range known {
			if key != k && strings.EqualFold(key, k) {
				return nil, fmt.Errorf("it has the key %q; write %q", key, k)
			}
		}
	}
	return keys, nil
}

func onlyKnown(keys map[string]json.RawMessage, known ...string) error {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Contains(known, key) {
			return fmt.Errorf("it has the key %q, which egressd does not know", key)
		}
	}
	return nil
}
