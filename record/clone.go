package record

import (
	"slices"
)

// Clone returns a copy of r that shares no memory with it. Clone a record of a [Buffer] to keep it.
func (r *Record) Clone() *Record {
	c := *r
	c.Dst, c.TLS, c.HTTP, c.DNS = copied(r.Dst), copied(r.TLS), copied(r.HTTP), copied(r.DNS)
	c.Body, c.Git, c.Container, c.Names = copied(r.Body), copied(r.Git), copied(r.Container), copied(r.Names)
	c.Process, c.Decision, c.Shadow, c.Signal, c.Bytes = copied(r.Process), copied(r.Decision), copied(r.Shadow), copied(r.Signal), copied(r.Bytes)
	c.Log = copied(r.Log)
	for _, list := range lists(&c) {
		if list != nil {
			*list = slices.Clone(*list)
		}
	}
	ownTexts(&c)
	return &c
}

func copied[T any](part *T) *T {
	if part == nil {
		return nil
	}
	c := *part
	return &c
}

// Size estimates the memory that r takes, in bytes.
func (r *Record) Size() int {
	const parts = 700
	size := parts
	eachText(r, func(s *string) { size += len(*s) })
	return size
}

// ownTexts copies all strings of r into one new string, so that r keeps no line of the log in memory.
func ownTexts(r *Record) {
	var buffer [1024]byte
	all := buffer[:0]
	eachText(r, func(s *string) { all = append(all, *s...) })
	rest := string(all)
	eachText(r, func(s *string) { *s, rest = rest[:len(*s)], rest[len(*s):] })
}

func eachText(r *Record, do func(*string)) {
	for _, s := range [...]*string{(*string)(&r.Kind), &r.Flow, &r.Sandbox, &r.Via, &r.Src, (*string)(&r.Outcome), &r.Credential, &r.Raw, &r.Note} {
		do(s)
	}
	if d := r.Dst; d != nil {
		each(do, &d.Host, &d.From, &d.Addr, &d.Asked, &d.Class)
	}
	if t := r.TLS; t != nil {
		each(do, &t.SNI, &t.JA4)
	}
	if h := r.HTTP; h != nil {
		each(do, &h.Method, &h.Path, &h.Authority)
	}
	if b := r.Body; b != nil {
		do(&b.SHA256)
	}
	if g := r.Git; g != nil {
		each(do, &g.Repo, &g.Op)
	}
	if d := r.DNS; d != nil {
		each(do, &d.Name, &d.Type)
	}
	if t := r.Container; t != nil {
		each(do, &t.ID, &t.Name, &t.Image, &t.Project, &t.Service)
	}
	if p := r.Process; p != nil {
		do(&p.Exe)
	}
	if d := r.Decision; d != nil {
		each(do, &d.Action, &d.Rule, &d.Layer, &d.Reason, &d.Class, &d.Policy, &d.Rules, &d.Revision)
	}
	if s := r.Shadow; s != nil {
		each(do, &s.Action, &s.Rule, &s.Layer, &s.Reason, &s.Class, &s.Policy)
	}
	if n := r.Names; n != nil {
		each(do, &n.First, &n.Last)
	}
	if n := r.Signal; n != nil {
		each(do, &n.What, &n.Name, &n.Where, &n.Encoding)
	}
	if l := r.Log; l != nil {
		each(do, &l.Origin, &l.Root, &l.Follows)
	}
	for _, list := range lists(r) {
		if list == nil {
			continue
		}
		for i := range *list {
			do(&(*list)[i])
		}
	}
}

func each(do func(*string), texts ...*string) {
	for _, s := range texts {
		do(s)
	}
}

// lists returns pointers to the string lists of r. An entry is nil if r lacks the part that has the list.
func lists(r *Record) (all [7]*[]string) {
	if r.Dst != nil {
		all[0] = &r.Dst.Addrs
	}
	if r.TLS != nil {
		all[1] = &r.TLS.ALPN
	}
	if r.Process != nil {
		all[2] = &r.Process.Argv
	}
	if r.Decision != nil {
		all[3], all[4] = &r.Decision.AllowedIf, &r.Decision.Question
	}
	if r.Git != nil {
		all[5] = &r.Git.Refs
	}
	if r.Body != nil {
		all[6] = &r.Body.Says
	}
	return all
}
