package peers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/spelling"
)

// A schema is closed: it has each key that a mapping of a peer's file may hold. A key that it does not have is an error.
type schema map[string]field

// A field says what becomes of the value of a key. The zero value is of a setting that is about something else than
// destinations: its value is not read, and the import lists its name.
type field struct {
	into   any    // *string, *bool, **bool, *uint16, *[]uint16, *word, *[]word, *[]named or **setting: it gets the value
	keys   schema // the value is a mapping with these keys
	truth  **bool // with keys: the value may be true or false instead
	items  items  // the value is a list of mappings, or a mapping of names to mappings
	open   bool   // of keys: a key that the schema does not have is about something else
	quiet  bool   // with the zero value: the import does not list the name
	more   *bool  // the setting narrows what is allowed, and no rule of egressd says how: more is set
	refuse string // the setting may restrict and egressd cannot read it: what to do instead
}

// items makes a schema for each item, and a function that is called when the item was read. said is the place of the item,
// as in "permissions.work".
type items func(name, said string) (schema, func(n *setting) error)

// A word is a text of a file, with its place.
type word struct {
	text string
	at   *setting
}

// named is a text under a key.
type named struct {
	key   string
	value string
	at    *setting
}

func into(v any) field         { return field{into: v} }
func fields(s schema) field    { return field{keys: s} }
func refused(why string) field { return field{refuse: why} }

// aside adds keys, written with spaces between them, of settings that are about something else.
func (s schema) aside(keys string) schema {
	for key := range strings.FieldsSeq(keys) {
		s[key] = field{}
	}
	return s
}

// known is aside for keys that the import does not list.
func (s schema) known(keys string) schema {
	for key := range strings.FieldsSeq(keys) {
		s[key] = field{quiet: true}
	}
	return s
}

// narrows adds keys that set more.
func (s schema) narrows(more *bool, keys string) schema {
	for key := range strings.FieldsSeq(keys) {
		s[key] = field{more: more}
	}
	return s
}

// take reads the mapping n, which is the whole file.
func (r *reading) take(n *setting, s schema) error {
	if n.kind == isNull {
		return n.errorf("the file is empty")
	}
	r.root = s
	return r.takeAt(n, s, "", false)
}

// takeAt reads the mapping n at the place said, which is empty or "sandbox.network".
func (r *reading) takeAt(n *setting, s schema, said string, open bool) error {
	if n.kind == isNull {
		return nil
	}
	if n.kind != isMapping {
		return n.errorf("%s is %s; it has to be a mapping", orFile(said), kindNames[n.kind])
	}
	for i := range n.members {
		m := &n.members[i]
		path := inside(said, m.key)
		f, known := s[m.key]
		switch {
		case !known && !open:
			return r.unknown(m, s, said)
		case !known:
			r.left(path)
			continue
		case m.value.kind == isNull:
			continue
		case f.refuse != "":
			return m.errorf("%s: %s", path, f.refuse)
		}
		if err := r.field(m, f, path); err != nil {
			return err
		}
	}
	return nil
}

func (r *reading) field(m *pair, f field, path string) error {
	switch {
	case f.truth != nil && m.value.kind == isTruth:
		return m.value.into(f.truth, path)
	case f.keys != nil:
		return r.takeAt(m.value, f.keys, path, f.open)
	case f.items != nil:
		return r.items(m.value, f.items, path)
	case f.into != nil:
		return m.value.into(f.into, path)
	}
	if f.more != nil {
		*f.more = true
	} else if !f.quiet {
		r.left(path)
	}
	return nil
}

func (r *reading) items(n *setting, each items, path string) error {
	item := func(name, said string, v *setting) error {
		s, done := each(name, said)
		if err := r.takeAt(v, s, said, false); err != nil {
			return err
		}
		return done(v)
	}
	switch n.kind {
	case isList:
		for i, v := range n.list {
			if err := item("", fmt.Sprintf("%s[%d]", path, i), v); err != nil {
				return err
			}
		}
	case isMapping:
		for i := range n.members {
			if err := item(n.members[i].key, inside(path, n.members[i].key), n.members[i].value); err != nil {
				return err
			}
		}
	default:
		return n.errorf("%s is %s; it has to hold mappings", path, kindNames[n.kind])
	}
	return nil
}

// into decodes a value into v.
func (n *setting) into(v any, path string) error {
	want := isText
	switch v := v.(type) {
	case **setting:
		*v = n
		return nil
	case *string:
		if n.kind == isText {
			*v = n.text
			return nil
		}
	case *bool:
		if want = isTruth; n.kind == isTruth {
			*v = n.text == "true"
			return nil
		}
	case **bool:
		if want = isTruth; n.kind == isTruth {
			truth := n.text == "true"
			*v = &truth
			return nil
		}
	case *word:
		if n.kind == isText {
			*v = word{n.text, n}
			return nil
		}
	case *uint16:
		if want = isNumber; n.kind == isNumber {
			u, err := strconv.ParseUint(n.text, 10, 16)
			if err != nil || u == 0 {
				return n.errorf("%s: %s is no port", path, n.text)
			}
			*v = uint16(u)
			return nil
		}
	case *[]uint16:
		if want = isList; n.kind == isList {
			for _, item := range n.list {
				var one uint16
				if err := item.into(&one, path); err != nil {
					return err
				}
				*v = append(*v, one)
			}
			return nil
		}
	case *[]word:
		if want = isList; n.kind == isList {
			*v = []word{}
			for i, item := range n.list {
				if item.kind != isText {
					return item.errorf("%s[%d] is %s; it has to be text", path, i, kindNames[item.kind])
				}
				*v = append(*v, word{item.text, item})
			}
			return nil
		}
	case *[]named:
		if want = isMapping; n.kind == isMapping {
			for _, m := range n.members {
				if m.value.kind != isText {
					return m.value.errorf("%s is %s; it has to be text", inside(path, m.key), kindNames[m.value.kind])
				}
				*v = append(*v, named{m.key, m.value.text, &setting{line: m.line, column: m.column}})
			}
			return nil
		}
	}
	return n.errorf("%s is %s; it has to be %s", path, kindNames[n.kind], kindNames[want])
}

// unknown is the error for a key that a schema does not have. It names a key with similar spelling, or
// the place where the peer has this key.
func (r *reading) unknown(m *pair, s schema, said string) error {
	path := inside(said, m.key)
	near, alike := s.near(m.key)
	at := r.root.places(m.key, "", 0)
	switch {
	case near != "" && (alike || len(at) == 0):
		return m.errorf("%s is no setting; do you mean %s?", path, inside(said, near))
	case len(at) > 0:
		return m.errorf("%s is no setting; %s belongs at %s", path, m.key, strings.Join(at, " or "))
	}
	return m.errorf("%s is no setting that this import knows; take it out of a copy of the file if it is not about destinations", path)
}

// places are those of a key in the schema, as in "sandbox.network.allowedDomains".
func (s schema) places(key, said string, depth int) (at []string) {
	for _, name := range sortedKeys(s) {
		f, path := s[name], inside(said, name)
		if name == key {
			at = append(at, path)
		}
		if depth > 6 {
			continue
		}
		if f.items != nil {
			inner, _ := f.items("NAME", path)
			at = append(at, inner.places(key, path+".NAME", depth+1)...)
		}
		at = append(at, f.keys.places(key, path, depth+1)...)
	}
	return at
}

// near returns the key that is spelled most like the one given, or "". alike reports that it is about destinations and
// begins as that does.
func (s schema) near(key string) (best string, alike bool) {
	limit := max(2, len(key)/3)
	least, most := limit+2, 0
	for _, name := range sortedKeys(s) {
		f := s[name]
		begin := shared(plain(key), plain(name))
		begins := (begin >= 6 || begin == len(plain(key)) && begin > 2) && (f.into != nil || f.keys != nil || f.items != nil)
		d := spelling.Distance(plain(key), plain(name))
		if d > limit && begins {
			d = limit + 1
		} else if d > limit {
			continue
		}
		if d < least || d == least && begin > most {
			best, least, most, alike = name, d, begin, begins
		}
	}
	return best, alike
}

// shared is how many letters both begin with.
func shared(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func plain(key string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(key))
}

// inside is the place of a key.
func inside(said, key string) string {
	if said == "" {
		return key
	}
	return said + "." + key
}

func orFile(said string) string {
	if said == "" {
		return "the file"
	}
	return said
}

// choice returns an error at a place for a text that is none of several.
func choice(text, path string, at *setting, of ...string) error {
	if slices.Contains(of, text) {
		return nil
	}
	return at.errorf("%s: %q is none of %s", path, text, strings.Join(of, ", "))
}

// joined has the keys of all.
func joined(all ...schema) schema {
	s := schema{}
	for _, one := range all {
		for key, f := range one {
			s[key] = f
		}
	}
	return s
}
