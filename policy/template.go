package policy

import "strings"

// A Template names sandboxes that differ in an id: "e2b-{id}" is the template of e2b-7f3a. The zero value is the
// template of none.
//
// An id is 1 to 40 letters, digits, "-" and "_" of ASCII. It begins with a letter or a digit. Upper and lower case
// differ.
type Template struct {
	given         bool
	before, after string // of the id
}

const templateID = "{id}"

// IsTemplate reports whether a name in the list of sandboxes is that of a template.
func IsTemplate(name string) bool { return strings.ContainsAny(name, "{}") }

// ParseTemplate reads a text with "{id}" in it once, and no other brace.
func ParseTemplate(text string) (t Template, ok bool) {
	t.before, t.after, t.given = strings.Cut(text, templateID)
	if !t.given || IsTemplate(t.before) || IsTemplate(t.after) {
		return Template{}, false
	}
	return t, true
}

// ID returns the id that makes name of the template.
func (t Template) ID(name string) (id string, ok bool) {
	if !t.given || len(name) < len(t.before)+len(t.after) || !strings.HasPrefix(name, t.before) || !strings.HasSuffix(name, t.after) {
		return "", false
	}
	id = name[len(t.before) : len(name)-len(t.after)]
	return id, len(id) <= idMost && len(idPart(id)) == len(id) && id != "" && id[0] != '-' && id[0] != '_'
}

// Name returns the name with an id.
func (t Template) Name(id string) string { return t.before + id + t.after }

// Overlaps reports whether a name may be of both templates. It errs on the side of true.
func (t Template) Overlaps(o Template) bool {
	within := func(a, b string, cut func(string, string) (string, bool)) bool {
		if len(a) < len(b) {
			a, b = b, a
		}
		rest, ok := cut(a, b)
		return ok && len(idPart(rest)) == len(rest)
	}
	return t.given && o.given && within(t.before, o.before, strings.CutPrefix) && within(t.after, o.after, strings.CutSuffix)
}

const idMost = 40

// idPart returns the first characters of text that may stand in an id.
func idPart(text string) string {
	for i := range len(text) {
		if c := text[i]; !Unreserved(c) || c == '.' || c == '~' {
			return text[:i]
		}
	}
	return text
}

// listedSandboxes has one value for each listed sandbox. The sandboxes of a template have that of the template.
type listedSandboxes[T any] struct {
	named     map[string]T
	templates []Template
}

func newListed[T any](named map[string]T) listedSandboxes[T] {
	p := listedSandboxes[T]{named: named}
	for name := range named {
		if t, ok := ParseTemplate(name); ok {
			p.templates = append(p.templates, t)
		}
	}
	return p
}

// of returns the value of a sandbox, or the zero value.
func (p *listedSandboxes[T]) of(name string) T {
	own, listed := p.named[name]
	if listed {
		return own
	}
	for _, t := range p.templates { // of which at most one fits
		if _, ok := t.ID(name); ok {
			return p.named[t.Name(templateID)]
		}
	}
	return own
}
