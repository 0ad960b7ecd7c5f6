package export

import (
	"strings"
)

// rest writes what a form has no members for, under the names of the record.
func (w *writer) rest(f *facts) {
	w.str("kind", string(f.Kind))
	w.num("seq", f.Seq)
	w.some("count", f.Count)
	if n := f.Names; n != nil {
		w.object("names", func() {
			w.str("first", n.First)
			w.str("last", n.Last)
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
	w.str("action", f.action())
	w.str("class", f.class())
	w.str("rule", f.rule())
	w.str("layer", f.layer())
	w.str("policy", f.digest())
	if d := f.Decision; d != nil {
		w.strs("allowed_if", d.AllowedIf...)
		w.flag("log", d.Log)
	}
	if d := f.Dst; d != nil {
		w.str("host", d.Host)
		w.str("dst_class", d.Class)
		w.strs("addrs", d.Addrs...)
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
	w.str("outcome", f.Outcome)
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

// commandLine joins arguments such that they can be told apart: one with a space
// or a quote in it is quoted as a shell would have it.
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
