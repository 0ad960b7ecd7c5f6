package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/egressd/egressd/integrations/jsonc"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"go.yaml.in/yaml/v3"
)

// A PlaceError is an error in a file of a peer. Line and Column count from 1.
type PlaceError struct {
	Line, Column int
	Err          error
}

func (e *PlaceError) Error() string {
	return fmt.Sprintf("line %d, column %d: %v", e.Line, e.Column, e.Err)
}
func (e *PlaceError) Unwrap() error { return e.Err }

type nodeKind uint8

const (
	isNull nodeKind = iota
	isTruth
	isNumber
	isText
	isList
	isMapping
)

var kindNames = [...]string{"nothing", "true or false", "a number", "text", "a list", "a mapping"}

// A setting is a value in a file of JSON, YAML or TOML, with its place. No mapping has a key twice.
type setting struct {
	line, column int
	kind         nodeKind
	text         string // of isTruth, isNumber and isText
	list         []*setting
	members      []pair
}

type pair struct {
	key          string
	line, column int
	value        *setting
}

func (n *setting) errorf(format string, args ...any) error {
	return &PlaceError{n.line, n.column, fmt.Errorf(format, args...)}
}

func (m *pair) errorf(format string, args ...any) error {
	return &PlaceError{m.line, m.column, fmt.Errorf(format, args...)}
}

// at returns the value at key, or nil. A value that is null counts as none.
func (n *setting) at(key string) *setting {
	for i := range n.members {
		if n.members[i].key == key && n.members[i].value.kind != isNull {
			return n.members[i].value
		}
	}
	return nil
}

// put adds a pair, and returns an error if the key is there.
func (n *setting) put(m pair) error {
	for i := range n.members {
		if n.members[i].key == m.key {
			return m.errorf("%s stands here a second time", m.key)
		}
	}
	n.members = append(n.members, m)
	return nil
}

// parseJSON reads JSON with comments.
func parseJSON(text []byte) (*setting, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if _, err := jsonc.Parse(bytes.Clone(text)); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	p := &jsonTree{text: jsonc.Standard(text), line: 1}
	p.d = json.NewDecoder(bytes.NewReader(p.text))
	p.d.UseNumber()
	return p.value()
}

type jsonTree struct {
	text       []byte
	d          *json.Decoder
	seen, line int // line is that of the byte seen
	start      int // where that line begins
}

// next reads a token, and returns a setting at its place.
func (p *jsonTree) next() (json.Token, *setting, error) {
	at := int(p.d.InputOffset())
	for at < len(p.text) && bytes.IndexByte([]byte(" \t\r\n,:"), p.text[at]) >= 0 {
		at++
	}
	for ; p.seen < at; p.seen++ {
		if p.text[p.seen] == '\n' {
			p.line, p.start = p.line+1, p.seen+1
		}
	}
	token, err := p.d.Token()
	if err != nil {
		return nil, nil, fmt.Errorf("it is not JSON: %w", err)
	}
	return token, &setting{line: p.line, column: at - p.start + 1}, nil
}

func (p *jsonTree) value() (*setting, error) {
	token, n, err := p.next()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case bool:
		n.kind, n.text = isTruth, strconv.FormatBool(v)
	case json.Number:
		n.kind, n.text = isNumber, v.String()
	case string:
		n.kind, n.text = isText, v
	case json.Delim:
		n.kind = isList
		if v == '{' {
			n.kind = isMapping
		}
		err = p.inside(n)
	}
	return n, err
}

func (p *jsonTree) inside(n *setting) error {
	for p.d.More() {
		var m pair
		if n.kind == isMapping {
			token, at, err := p.next()
			if err != nil {
				return err
			}
			m.key, m.line, m.column = token.(string), at.line, at.column
		}
		value, err := p.value()
		if err != nil {
			return err
		}
		if n.kind == isList {
			n.list = append(n.list, value)
			continue
		}
		m.value = value
		if err := n.put(m); err != nil {
			return err
		}
	}
	_, _, err := p.next()
	return err
}

// parseYAML reads one document of YAML, which JSON is, too.
func parseYAML(text []byte) (*setting, error) {
	var found []*yaml.Node
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var tree yaml.Node
		err := d.Decode(&tree)
		if errors.Is(err, io.EOF) {
			break
		}
		var loops any // it ends anchors that hold themselves, and those that multiply
		if err == nil {
			err = tree.Decode(&loops)
		}
		if err != nil {
			return nil, fmt.Errorf("it is not YAML: %w", err)
		}
		if loops != nil {
			found = append(found, tree.Content[0])
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it has %d documents of YAML, not one", len(found))
	}
	return yamlTree(found[0])
}

func yamlTree(y *yaml.Node) (*setting, error) {
	if y.Kind == yaml.AliasNode {
		return yamlTree(y.Alias)
	}
	n := &setting{line: y.Line, column: y.Column, text: y.Value}
	switch y.Kind {
	case yaml.SequenceNode:
		n.kind = isList
		for _, item := range y.Content {
			v, err := yamlTree(item)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, v)
		}
	case yaml.MappingNode:
		n.kind = isMapping
		return n, yamlMembers(n, y)
	default:
		switch y.ShortTag() {
		case "!!null":
			n.kind = isNull
		case "!!bool":
			n.kind = isTruth
		case "!!int", "!!float":
			n.kind = isNumber
		default:
			n.kind = isText
		}
	}
	return n, nil
}

// yamlMembers adds the members of a mapping. Those of a merge key "<<" come last and replace nothing.
func yamlMembers(n *setting, y *yaml.Node) error {
	var merged []*setting
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		v, err := yamlTree(y.Content[i+1])
		if err != nil {
			return err
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, v)
			merged = append(merged, v.list...)
			continue
		}
		if err := n.put(pair{key.Value, key.Line, key.Column, v}); err != nil {
			return err
		}
	}
	for _, other := range merged {
		for _, m := range other.members {
			_ = n.put(m) // what is there stays
		}
	}
	return nil
}

func parseTOML(text []byte) (*setting, error) {
	if err := toml.Unmarshal(text, &map[string]any{}); err != nil {
		return nil, fmt.Errorf("it is not TOML: %w", err)
	}
	p := &unstable.Parser{}
	p.Reset(text)
	top := &setting{line: 1, column: 1, kind: isMapping}
	table := top
	for p.NextExpression() {
		var err error
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			table, err = tomlTable(p, top, e.Key(), false)
		case unstable.ArrayTable:
			table, err = tomlTable(p, top, e.Key(), true)
		case unstable.KeyValue:
			err = tomlMember(p, table, e)
		}
		if err != nil {
			return nil, err
		}
	}
	return top, p.Error()
}

// tomlTable finds the table at a key, and makes what is not there. If list is set, it adds one to a list of tables.
func tomlTable(p *unstable.Parser, top *setting, key unstable.Iterator, list bool) (*setting, error) {
	at := top
	for key.Next() {
		k := key.Node()
		place := p.Shape(k.Raw).Start
		child := at.at(string(k.Data))
		if child == nil {
			child = &setting{line: place.Line, column: place.Column, kind: isMapping}
			if list && key.IsLast() {
				child.kind = isList
			}
			if err := at.put(pair{string(k.Data), place.Line, place.Column, child}); err != nil {
				return nil, err
			}
		}
		if child.kind == isList {
			if list && key.IsLast() {
				child.list = append(child.list, &setting{line: place.Line, column: place.Column, kind: isMapping})
			}
			child = child.list[len(child.list)-1]
		}
		at = child
	}
	return at, nil
}

// tomlMember adds "a.b = value" to a table.
func tomlMember(p *unstable.Parser, table *setting, e *unstable.Node) error {
	for key := e.Key(); key.Next(); {
		k := key.Node()
		place := p.Shape(k.Raw).Start
		name := string(k.Data)
		if key.IsLast() {
			v, err := tomlValue(p, e.Value(), &setting{line: place.Line, column: place.Column})
			if err != nil {
				return err
			}
			return table.put(pair{name, place.Line, place.Column, v})
		}
		child := table.at(name)
		if child == nil {
			child = &setting{line: place.Line, column: place.Column, kind: isMapping}
			if err := table.put(pair{name, place.Line, place.Column, child}); err != nil {
				return err
			}
		}
		table = child
	}
	return nil
}

// tomlValue fills n, which has the place of the key. A text gets its own.
func tomlValue(p *unstable.Parser, v *unstable.Node, n *setting) (*setting, error) {
	n.text = string(v.Data)
	switch v.Kind {
	case unstable.String:
		n.kind = isText
		if v.Raw.Length > 0 {
			place := p.Shape(v.Raw).Start
			n.line, n.column = place.Line, place.Column
		}
	case unstable.Bool:
		n.kind = isTruth
	case unstable.Integer, unstable.Float:
		n.kind = isNumber
	case unstable.Array:
		n.kind = isList
		for items := v.Children(); items.Next(); {
			item, err := tomlValue(p, items.Node(), &setting{line: n.line, column: n.column})
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, item)
		}
	case unstable.InlineTable:
		n.kind = isMapping
		for items := v.Children(); items.Next(); {
			if err := tomlMember(p, n, items.Node()); err != nil {
				return nil, err
			}
		}
	default: // a date or a time
		n.kind = isText
	}
	return n, nil
}
