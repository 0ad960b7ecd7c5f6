package export

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A writer appends members of JSON objects in call order. It leaves out empty members and empty objects.
// The output is printable ASCII.
type writer struct{ b []byte }

// line writes one object on its own line.
func (w *writer) line(members func()) {
	w.b = append(w.b, '{')
	members()
	w.b = append(w.b, '}', '\n')
}

func (w *writer) comma() {
	if last := w.b[len(w.b)-1]; last != '{' && last != '[' {
		w.b = append(w.b, ',')
	}
}

// key writes the name of a member, which must be a constant without special characters.
func (w *writer) key(name string) {
	w.comma()
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) object(name string, members func()) {
	start := len(w.b)
	w.key(name)
	w.b = append(w.b, '{')
	opened := len(w.b)
	members()
	if len(w.b) == opened {
		w.b = w.b[:start]
		return
	}
	w.b = append(w.b, '}')
}

func (w *writer) str(name, value string) {
	if value != "" {
		w.key(name)
		w.quote(value)
	}
}

func (w *writer) num(name string, n int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, n, 10)
}

// some writes a number unless it is 0.
func (w *writer) some(name string, n int64) {
	if n != 0 {
		w.num(name, n)
	}
}

func (w *writer) flag(name string, set bool) {
	if set {
		w.key(name)
		w.b = append(w.b, "true"...)
	}
}

// strs writes a list without its empty texts.
func (w *writer) strs(name string, values ...string) {
	start := len(w.b)
	w.key(name)
	w.b = append(w.b, '[')
	opened := len(w.b)
	for _, v := range values {
		if v != "" {
			w.comma()
			w.quote(v)
		}
	}
	if len(w.b) == opened {
		w.b = w.b[:start]
		return
	}
	w.b = append(w.b, ']')
}

// objects writes a list of one object.
func (w *writer) objects(name string, members func()) {
	w.key(name)
	w.b = append(w.b, '[', '{')
	members()
	w.b = append(w.b, '}', ']')
}

func (w *writer) time(name string, t time.Time, layout string) {
	w.str(name, t.UTC().Format(layout))
}

const hexDigits = "0123456789abcdef"

// quote writes a JSON string. Characters outside printable ASCII are escaped as UTF-16 code units. Invalid
// UTF-8 becomes U+FFFD, as in encoding/json. The second of two number signs is escaped, because CI runners
// take "##[" in their log as a command.
func (w *writer) quote(s string) {
	w.b = append(w.b, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			w.b = append(w.b, '\\', byte(c))
		case c == '#' && w.b[len(w.b)-1] == '#':
			w.unit(c)
		case c >= ' ' && c <= '~':
			w.b = append(w.b, byte(c))
		case c > 0xffff:
			c -= 0x10000
			w.unit(0xd800 + c>>10)
			w.unit(0xdc00 + c&0x3ff)
		default:
			w.unit(c)
		}
	}
	w.b = append(w.b, '"')
}

func (w *writer) unit(c rune) {
	w.b = append(w.b, '\\', 'u', hexDigits[c>>12&15], hexDigits[c>>8&15], hexDigits[c>>4&15], hexDigits[c&15])
}

// cut returns at most limit bytes from the beginning of s, without splitting a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// rest writes the fields of the record that a format has no members for, under their names in the record.
func (w *writer) rest(f *facts, from Origin) {
	w.str("kind", string(f.Kind))
	w.num("seq", f.Seq)
	w.num("count", f.Times())
	w.str("origin", from.Log)
	w.flag("shared", f.Shared)
	if n := f.Names; n != nil {
		w.object("names", func() {
			w.str("first", n.First)
			w.str("last", n.Last)
			w.some("domains", n.Domains)
		})
	}
	w.str("flow", f.Flow)
	w.str("sandbox", f.Sandbox)
	if c := f.Container; c != nil {
		w.object("container", func() {
			w.str("id", c.ID)
			w.str("name", c.Name)
			w.str("image", c.Image)
			w.str("project", c.Project)
			w.str("service", c.Service)
		})
	}
	w.str("via", f.Via)
	w.str("action", f.said.Action)
	w.str("class", f.said.Class)
	w.str("rule", f.said.Rule)
	w.str("layer", f.said.Layer)
	w.str("policy", f.said.Policy)
	w.str("rules", f.said.Rules)
	w.str("revision", f.said.Revision)
	w.strs("allowed_if", f.said.AllowedIf...)
	w.flag("log", f.said.Log)
	if d := f.Dst; d != nil {
		w.str("host", d.Host)
		w.str("asked", d.Asked)
		w.str("dst_class", d.Class)
		w.strs("addrs", d.Addrs...)
	}
	if h := f.HTTP; h != nil {
		w.some("query_bytes", h.QueryBytes)
	}
	if t := f.TLS; t != nil {
		w.strs("alpn", t.ALPN...)
		w.flag("ech", t.ECH)
		w.flag("inspected", t.Inspected)
	}
	w.restShadow(f)
	if s := f.Signal; s != nil {
		w.object("signal", func() {
			w.str("what", s.What)
			w.str("name", s.Name)
			w.str("where", s.Where)
			w.str("encoding", s.Encoding)
		})
	}
	if l := f.Log; l != nil {
		w.object("log", func() {
			w.str("origin", l.Origin)
			w.num("size", l.Size)
			w.str("root", l.Root)
			w.str("follows", l.Follows)
			w.some("had", l.Had)
		})
	}
	w.str("outcome", string(f.Outcome))
	w.str("raw", f.Raw)
	w.str("note", f.Note)
}

func (w *writer) restShadow(f *facts) {
	s := f.Shadow
	if s == nil {
		return
	}
	w.object("shadow", func() {
		w.str("action", s.Action)
		w.str("rule", s.Rule)
		w.str("layer", s.Layer)
		w.str("reason", s.Reason)
		w.str("class", s.Class)
		w.flag("inspect", s.Inspect)
		w.str("policy", s.Policy)
	})
}

// commandLine joins arguments unambiguously. An argument with a space or a special character is quoted as
// in a shell.
func commandLine(argv []string) string {
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`") {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
