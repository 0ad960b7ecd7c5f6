package file

import (
	"bytes"
	"iter"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// RemoveText returns the text of a rule file without the rule at a place, as in [policy.Rule].At. All else stays as it is,
// comments and layout included. ok is false if the rule cannot be taken out as it is written there.
func RemoveText(name string, text []byte, at policy.Position) (without []byte, ok bool) {
	root := (&reader{name: name}).document(text)
	if root == nil {
		return nil, false
	}
	key, list, item := itemAt(root, at)
	if item == nil {
		return nil, false
	}
	e := &listEdit{name: name, text: text, key: key, list: list}
	want := outline(root, item)
	attempts := 0
	for candidate := range e.without(item) {
		left := (&reader{name: name}).document(candidate)
		if left != nil && outline(left) == want {
			return candidate, true
		}
		if attempts++; attempts == maxAttempts {
			break
		}
	}
	return nil, false
}

// itemAt returns the item of a list that begins at a place, and the list with its key.
func itemAt(n *yaml.Node, at policy.Position) (key, list, item *yaml.Node) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && child.Kind == yaml.SequenceNode {
			for _, item := range child.Content {
				if placeOf(item) == at {
					return n.Content[i-1], child, item
				}
			}
		}
		if key, list, item := itemAt(child, at); item != nil {
			return key, list, item
		}
	}
	return nil, nil, nil
}

// without yields texts that may be those without an item.
func (e *listEdit) without(item *yaml.Node) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		from, last := e.offset(item), e.offset(lastNode(item))
		if isFlow(e.list) {
			e.cut(from, last, yield)
			return
		}
		first := lineStart(e.text, item.Line)
		for line := lastNode(item).Line; line <= bytes.Count(e.text, []byte("\n"))+1; line++ {
			rest := e.text[lineStart(e.text, line+1):]
			if len(e.list.Content) > 1 && !yield(append(bytes.Clone(e.text[:first]), rest...)) {
				return
			}
			if key := e.offset(e.key) + len(e.key.Value) + 1; len(e.list.Content) == 1 && key <= first {
				if !yield(append(append(append(bytes.Clone(e.text[:key]), " []"...), e.text[key:first]...), rest...)) {
					return
				}
			}
		}
	}
}

// cut yields texts without an item in brackets, and without the comma behind it or before it.
func (e *listEdit) cut(from, last int, yield func([]byte) bool) {
	before := bytes.LastIndexByte(e.text[:from], ',')
	for to := last + 1; to <= len(e.text); to++ {
		rest := e.text[to:]
		if after, comma := bytes.CutPrefix(rest, []byte(",")); comma && !yield(append(bytes.Clone(e.text[:from]), bytes.TrimLeft(after, " ")...)) {
			return
		}
		if before >= 0 && !yield(append(bytes.Clone(e.text[:before]), rest...)) || !yield(append(bytes.Clone(e.text[:from]), rest...)) {
			return
		}
	}
}
