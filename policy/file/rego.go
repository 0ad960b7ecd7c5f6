package file

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"

	"go.yaml.in/yaml/v3"
)

// A RegoSource is one entry of "rego": a path as it stands, or a mapping that says
// more. The plain files and folders of a list are compiled together into one evaluator.
// Each bundle is a separate evaluator.
type RegoSource struct {
	// Path is a file or a folder. A relative one is relative to the folder of the
	// configuration. An entry has a path or a bundle.
	Path string

	// Bundle is an OPA bundle: a file, or where to fetch one, as https://host/path,
	// http://host/path or oci://host/repository:tag.
	Bundle string

	// Key is a PEM file with the public key that the bundle has to be signed with.
	// A bundle that is fetched needs one.
	Key string

	// CA is a PEM file of authorities that the certificate of the bundle's server
	// may come from, in place of the system's.
	CA string

	// TokenFile holds what the bundle's server is told as a Bearer token.
	TokenFile string

	// Refresh is how often a bundle is looked for again. Default: 1m.
	Refresh time.Duration

	// MaxAge is how long a bundle that was fetched counts after its server was last
	// heard to have nothing newer; then everything is denied until it is heard
	// again. Default: 24h.
	MaxAge time.Duration

	// Shadow ("mode: shadow") has the source evaluated beside what is in force: it
	// decides nothing, and where it would have decided otherwise is recorded. The
	// sources in shadow stand in the place of all that are in force.
	Shadow bool

	// When names labels that the machine has to have, with their values: "when: {labels: {ring: canary}}". An entry of
	// another machine is as if it were not there; [File.Expand] sets Elsewhere for it. Empty: every machine.
	When      map[string]string
	Elsewhere bool
}

// labelForm is the form of names and values of labels.
var labelForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`) })

// labels reads a mapping of names to values. Values may hold variables.
func (r *reader) labels(what string, into *map[string]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
			r.fail(n, "%s is no mapping of names to values; write {ring: canary}", what)
			return
		}
		known := fields{}
		*into = map[string]string{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if !labelForm().MatchString(name) {
				r.fail(n.Content[i], "%s: %q is no name of a label; write up to 63 letters, digits, '.', '_' and '-'", what, printable(name))
			}
			known[name] = func(value *yaml.Node) {
				r.places[what+"."+name] = placeOf(value)
				text, ok := r.text(value, what+"."+name)
				if ok && !strings.Contains(text, "${") && !labelForm().MatchString(text) {
					r.fail(value, "%s.%s: %q is no value of a label; write up to 63 letters, digits, '.', '_' and '-'", what, name, printable(text))
				}
				(*into)[name] = text
			}
		}
		r.mapping(n, what, known)
	}
}

// checkLabels refuses conditions on labels that the file does not give the machine.
func (r *reader) checkLabels(f *File) {
	for i, s := range f.Rego {
		for name := range s.When {
			if _, ok := f.Labels[name]; !ok {
				r.failAt(r.places[fmt.Sprintf("rego[%d]", i)], "rego[%d].when: this file has no label %q; write labels: {%s: …}, also ${VARIABLE}", i, name, name)
			}
		}
	}
}

// elsewhere marks the entries that are for other machines. That none is left of those that decide is an error: a label would be
// misspelt, and what a bundle denies would pass.
func (e *expansion) elsewhere(f *File) {
	conditional, left := 0, 0
	for i := range f.Rego {
		s := &f.Rego[i]
		for name, value := range s.When {
			s.Elsewhere = s.Elsewhere || f.Labels[name] != value
		}
		if len(s.When) > 0 && !s.Shadow {
			conditional++
			if !s.Elsewhere {
				left++
			}
		}
	}
	if conditional > 0 && left == 0 {
		at := e.file.places["rego"]
		e.problems = append(e.problems, policy.Problem{File: e.file.name, Line: max(at.Line, 1), Column: max(at.Column, 1),
			Message: fmt.Sprintf("rego: no entry that decides has a condition that is true for the labels of this machine, %s", labelText(f.Labels))})
	}
}

func labelText(labels map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, name+": "+labels[name])
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// Defaults of a bundle.
const (
	bundleRefresh = time.Minute
	bundleMaxAge  = 24 * time.Hour
)

// rego reads a list of sources of Rego. An empty one would read like a policy that
// is there.
func (r *reader) rego(what string, into *[]RegoSource) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.places[what] = placeOf(n)
		items := r.items(n, what)
		if n.Kind == yaml.SequenceNode && len(items) == 0 {
			r.fail(n, "%s lists no file, so nothing would be decided by it; name a file or a folder, or leave the key out", what)
		}
		*into = make([]RegoSource, len(items))
		for i, item := range items {
			r.regoSource(fmt.Sprintf("%s[%d]", what, i), &(*into)[i], item)
		}
	}
}

// plainRego reads a list of files and folders that decide.
func (r *reader) plainRego(what string, into *[]RegoSource) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.rego(what, into)(n)
		for i, s := range *into {
			if s.Bundle != "" || s.Shadow || s.When != nil {
				r.failAt(r.places[fmt.Sprintf("%s[%d]", what, i)], "%s[%d]: only files and folders that decide can stand here; write bundles, shadow and when under the top-level key rego", what, i)
			}
		}
	}
}

func (r *reader) regoSource(at string, s *RegoSource, n *yaml.Node) {
	*s = RegoSource{Refresh: bundleRefresh, MaxAge: bundleMaxAge}
	r.places[at] = placeOf(n)
	if n.Kind != yaml.MappingNode {
		r.path(at, &s.Path)(n)
		return
	}
	mode := "enforce"
	r.mapping(n, at, fields{
		"path":       r.path(at+".path", &s.Path),
		"bundle":     r.path(at+".bundle", &s.Bundle),
		"key":        r.path(at+".key", &s.Key),
		"ca":         r.path(at+".ca", &s.CA),
		"token_file": r.path(at+".token_file", &s.TokenFile),
		"refresh":    r.durationWithin(at+".refresh", &s.Refresh, time.Second, 24*time.Hour, "a duration from 1s to 24h"),
		"max_age":    r.durationWithin(at+".max_age", &s.MaxAge, time.Minute, 90*24*time.Hour, "a duration from 1m to 2160h"),
		"mode":       word(r, at+".mode", &mode, "enforce", "shadow"),
		"when":       r.section(at+".when", fields{"labels": r.labels(at+".when.labels", &s.When)}),
	})
	s.Shadow = mode == "shadow"
	for name, value := range s.When {
		if strings.Contains(value, "${") {
			r.fail(n, "%s.when.labels.%s holds a variable; write the variable under labels, and a value here", at, name)
		}
	}
	if hasKey(n, "when") && len(s.When) == 0 {
		r.fail(n, "%s.when has no condition; write when: {labels: {ring: canary}}", at)
	}
	r.checkRegoSource(n, at, s)
}

// checkRegoSource refuses what would be passed over.
func (r *reader) checkRegoSource(n *yaml.Node, at string, s *RegoSource) {
	if hasKey(n, "path") == hasKey(n, "bundle") {
		r.fail(n, "%s names both or neither of path and bundle; write one of them", at)
		return
	}
	for _, key := range []string{"key", "ca", "token_file", "refresh", "max_age"} {
		if hasKey(n, "path") && hasKey(n, key) {
			r.fail(n, "%s is a path, and %s is about bundles; leave it out, or name a bundle", at, key)
		}
	}
	if hasKey(n, "bundle") {
		r.checkBundle(n, at, s)
	}
}

// Fetched reports whether the source is a bundle that is fetched from a server.
func (s *RegoSource) Fetched() bool { return strings.Contains(s.Bundle, "://") }

// checkBundle refuses a bundle that could be replaced on its way, and keys that
// would be passed over.
func (r *reader) checkBundle(n *yaml.Node, at string, s *RegoSource) {
	if strings.Contains(s.Bundle, "${") {
		return // what it is will be known, and looked at, when it is opened
	}
	if !s.Fetched() {
		for _, key := range []string{"ca", "token_file", "refresh", "max_age"} {
			if hasKey(n, key) {
				r.fail(n, "%s is a file, and %s is about bundles that are fetched; leave it out", at, key)
			}
		}
		return
	}
	if err := checkBundleURL(s); err != nil {
		r.fail(n, "%s: %v", at, err)
	}
	if s.Key == "" {
		r.fail(n, "%s is fetched and has no key; write key: FILE with the public key that it is signed with", at)
	}
	if s.Refresh >= s.MaxAge {
		r.fail(n, "%s: with refresh %s it would be older than max_age %s before it is looked for again; make refresh shorter", at, s.Refresh, s.MaxAge)
	}
}

// checkBundleURL does not quote the URL: there may be a secret in it.
func checkBundleURL(s *RegoSource) error {
	u, err := url.Parse(s.Bundle)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return errors.New("bundle is no URL; write https://host/path, http://host/path or oci://host/repository:tag")
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "oci":
		return fmt.Errorf("bundle cannot be fetched over %.20q; write https://, http:// or oci://", u.Scheme)
	case u.User != nil:
		return errors.New("bundle has a password in its URL; write it into a file, and token_file: FILE")
	case u.Fragment != "":
		return errors.New("bundle has a # in its URL, and what follows is never sent; leave it out")
	case u.Scheme == "http" && s.TokenFile != "":
		return errors.New("token_file would be sent where everybody can read it; fetch the bundle over https")
	case u.Scheme == "http" && s.CA != "":
		return errors.New("ca is about https; leave it out, or fetch the bundle over https")
	}
	return nil
}
