package file

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
)

// Expand returns a copy of f in which each ${NAME} in a path, or in the path of
// a Unix socket, is what lookup returns for NAME. A variable that is not set,
// or empty, is an error, never an empty text: what is written to would else lie
// elsewhere. The error is a [policy.FileError]. If the variable stands in a listener, Expand
// leaves out the listener and succeeds; see [File.Unset].
func (f *File) Expand(lookup func(name string) (value string, ok bool)) (*File, error) {
	e := expansion{file: f, lookup: lookup}
	out := *f
	out.Listen.Proxy = e.listeners("listen.proxy", f.Listen.Proxy)
	out.Rego = e.regoSources("rego", f.Rego)
	out.Labels = maps.Clone(f.Labels)
	for name, value := range f.Labels {
		e.text("labels."+name, &value)
		out.Labels[name] = value
	}
	out.AllowFiles = e.list("allow_file", f.AllowFiles)
	out.DenyFiles = e.list("deny_file", f.DenyFiles)
	e.text("approve_within", &out.ApproveWithin)
	out.Listen.Enter = e.listeners("listen.enter", f.Listen.Enter)
	e.text("docker.socket", &out.Docker.Socket)
	e.listener("listen.admin", &out.Listen.Admin)
	e.text("listen.client_ca", &out.Listen.ClientCA)
	e.text("tls.ca_dir", &out.TLS.CADir)
	out.TLS.ExtraRoots = e.list("tls.extra_roots", f.TLS.ExtraRoots)
	e.text("audit.dir", &out.Audit.Dir)
	e.text("audit.key_dir", &out.Audit.KeyDir)
	out.Audit.Sinks = slices.Clone(f.Audit.Sinks)
	for i := range out.Audit.Sinks {
		at := fmt.Sprintf("audit.sinks[%d]", i)
		e.text(at+".address", &out.Audit.Sinks[i].Address)
		e.text(at+".path", &out.Audit.Sinks[i].Path)
		e.text(at+".headers_file", &out.Audit.Sinks[i].HeadersFile)
		e.text(at+".ca_file", &out.Audit.Sinks[i].CAFile)
	}
	for key, value := range map[string]*string{"cert_file": &out.Metrics.CertFile, "key_file": &out.Metrics.KeyFile, "token_file": &out.Metrics.TokenFile, "client_ca": &out.Metrics.ClientCA} {
		e.text("metrics."+key, value)
	}
	e.text("notify.cert_file", &out.Notify.CertFile)
	e.text("notify.key_file", &out.Notify.KeyFile)
	out.Notify.To = slices.Clone(f.Notify.To)
	for i := range out.Notify.To {
		at := fmt.Sprintf("notify.to[%d]", i)
		e.text(at+".url_file", &out.Notify.To[i].URLFile)
		e.text(at+".headers_file", &out.Notify.To[i].HeadersFile)
		e.text(at+".ca_file", &out.Notify.To[i].CAFile)
	}
	out.Upstream.Proxy = e.upstreamProxy(f.Upstream.Proxy)
	out.Audit.Anchors = e.list("audit.anchors", f.Audit.Anchors)
	out.Allow = e.injected(f.Allow)
	out.Credentials = slices.Clone(f.Credentials)
	for i := range out.Credentials {
		e.source(fmt.Sprintf("credentials[%d].from", i), &out.Credentials[i].Spec.From)
	}
	out.Sandboxes = slices.Clone(f.Sandboxes)
	for i := range out.Sandboxes {
		at := fmt.Sprintf("sandboxes[%d]", i)
		e.text(at+".token_file", &out.Sandboxes[i].TokenFile)
		e.listener(at+".listen", &out.Sandboxes[i].Listen)
		e.listener(at+".enter", &out.Sandboxes[i].Enter)
		out.Sandboxes[i].Rego = e.regoSources(at+".rego", out.Sandboxes[i].Rego)
		e.text(at+".project", &out.Sandboxes[i].Project)
	}
	if len(e.problems) == 0 {
		e.elsewhere(&out)
	}
	if len(e.problems) > 0 {
		return nil, e.problems.Sorted()
	}
	out.unset = e.unset.Sorted()
	return &out, nil
}

// Unset returns the listeners that [File.Expand] left out because a variable in them is not set. The daemon
// refuses such a file. If keys are given, such as "listen.admin", Unset returns only those of listeners that begin with one.
func (f *File) Unset(keys ...string) (all policy.FileError) {
	for _, p := range f.unset {
		if len(keys) == 0 || slices.ContainsFunc(keys, func(key string) bool { return strings.HasPrefix(p.Message, key) }) {
			all = append(all, p)
		}
	}
	return all
}

// An expansion replaces variables in the values of one file.
type expansion struct {
	file     *File
	lookup   func(string) (string, bool)
	problems policy.FileError
	unset    policy.FileError // of listeners
}

// listener expands a listener. A listener with a variable that is not set becomes "".
func (e *expansion) listener(what string, value *string) {
	before := len(e.problems)
	if e.text(what, value); len(e.problems) > before {
		*value = ""
		e.unset = append(e.unset, e.problems[before])
		e.problems = e.problems[:before]
	}
}

func (e *expansion) listeners(what string, texts []string) []string {
	out := slices.Clone(texts)
	for i := range out {
		e.listener(fmt.Sprintf("%s[%d]", what, i), &out[i])
	}
	return slices.DeleteFunc(out, func(text string) bool { return text == "" })
}

func (e *expansion) list(what string, texts []string) []string {
	out := slices.Clone(texts)
	for i := range out {
		e.text(fmt.Sprintf("%s[%d]", what, i), &out[i])
	}
	return out
}

// regoSources expands the paths of the entries of a list of Rego.
func (e *expansion) regoSources(what string, list []RegoSource) []RegoSource {
	out := slices.Clone(list)
	for i := range out {
		s, at := &out[i], fmt.Sprintf("%s[%d]", what, i)
		for key, value := range map[string]*string{"path": &s.Path, "bundle": &s.Bundle, "key": &s.Key, "ca": &s.CA, "token_file": &s.TokenFile} {
			if _, mapped := e.file.places[at+"."+key]; mapped {
				e.text(at+"."+key, value)
			} else {
				e.text(at, value)
			}
		}
	}
	return out
}

// injected expands the files of credentials, in copies of the rules that have
// one.
func (e *expansion) injected(list []policy.Rule) []policy.Rule {
	out := slices.Clone(list)
	for i := range out {
		if out[i].Inject != nil {
			in := *out[i].Inject
			e.text(fmt.Sprintf("allow[%d].inject.file", i), &in.File)
			out[i].Inject = &in
		}
	}
	return out
}

// source expands the files of a source, in copies of what it points to.
func (e *expansion) source(what string, s *credentials.Source) {
	e.text(what+".file", &s.File)
	part := func(what string, of **credentials.Source) {
		if *of != nil {
			c := **of
			e.text(what+".file", &c.File)
			*of = &c
		}
	}
	if s.OAuth != nil {
		o := *s.OAuth
		e.text(what+".oauth.refresh_token.file", &o.RefreshToken)
		part(what+".oauth.client_secret", &o.ClientSecret)
		s.OAuth = &o
	}
	if s.GitHubApp != nil {
		a := *s.GitHubApp
		part(what+".github_app.private_key", &a.PrivateKey)
		s.GitHubApp = &a
	}
}

func (e *expansion) text(what string, value *string) {
	expanded, err := expand(*value, e.lookup)
	if err != nil {
		at := e.file.places[what]
		e.problems = append(e.problems, policy.Problem{File: e.file.name, Line: max(at.Line, 1), Column: max(at.Column, 1), Message: what + ": " + err.Error()})
		return
	}
	*value = expanded
}

// expand replaces each ${NAME} once: what a variable holds is not read again.
func expand(text string, lookup func(string) (string, bool)) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", errors.New("${ has no }; close it")
		}
		value, ok := lookup(name)
		if !ok || value == "" {
			return "", fmt.Errorf("the variable %s is not set; set it, or write the path out", printable(name))
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' }) {
			return "", fmt.Errorf("the variable %s holds control characters; write the path out", printable(name))
		}
		out.WriteString(value)
		text = after
	}
}
