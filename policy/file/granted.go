package file

import (
	"strings"

	"github.com/egressd/egressd/credentials"
	"go.yaml.in/yaml/v3"
)

// oauth reads which token endpoint hands the secret out.
func (r *reader) oauth(what string, into **credentials.OAuth) func(*yaml.Node) {
	return func(n *yaml.Node) {
		o := &credentials.OAuth{}
		*into = o
		r.mapping(n, what, fields{
			"token_url":     r.fitting(what+".token_url", &o.TokenURL, credentials.CheckTokenURL),
			"client_id":     r.checked(what+".client_id", &o.ClientID, problemOfClient),
			"client_secret": r.part(what+".client_secret", &o.ClientSecret),
			"scopes": r.list(what+".scopes", &o.Scopes, func(what string, into *string) func(*yaml.Node) {
				return r.checked(what, into, problemOfClient)
			}),
			"refresh_token": func(n *yaml.Node) {
				r.mapping(n, what+".refresh_token", fields{"file": r.path(what+".refresh_token.file", &o.RefreshToken)})
				if n.Kind == yaml.MappingNode && !hasKey(n, "file") {
					r.fail(n, "%s.refresh_token has no file; egressd writes the next token to it", what)
				}
			},
		})
		for _, key := range []string{"token_url", "client_id"} {
			if n.Kind == yaml.MappingNode && !hasKey(n, key) {
				r.fail(n, "%s has no %s; add it", what, key)
			}
		}
		if n.Kind == yaml.MappingNode && !hasKey(n, "client_secret") && !hasKey(n, "refresh_token") {
			r.fail(n, "%s has neither client_secret nor refresh_token; add the one that the server asks for", what)
		}
	}
}

// gitHubApp reads which app and installation the secret is for.
func (r *reader) gitHubApp(what string, into **credentials.GitHubApp) func(*yaml.Node) {
	return func(n *yaml.Node) {
		a := &credentials.GitHubApp{API: "https://api.github.com", Permissions: map[string]string{}}
		*into = a
		r.mapping(n, what, fields{
			"id":           r.number(what+".id", &a.ID),
			"installation": r.number(what+".installation", &a.Installation),
			"private_key":  r.part(what+".private_key", &a.PrivateKey),
			"api":          r.fitting(what+".api", &a.API, credentials.CheckTokenURL),
			"repositories": r.list(what+".repositories", &a.Repositories, func(what string, into *string) func(*yaml.Node) {
				return r.checked(what, into, problemOfRepositoryName)
			}),
			"permissions": func(n *yaml.Node) {
				if n.Kind != yaml.MappingNode {
					r.fail(n, "%s.permissions is %s; write it like {contents: write, pull_requests: write}", what, kindOf(n))
					return
				}
				for i := 0; i+1 < len(n.Content); i += 2 {
					name, level := n.Content[i].Value, ""
					word(r, what+".permissions."+printable(name), &level, "read", "write", "admin")(n.Content[i+1])
					if problemOfPermission(name) != "" {
						r.fail(n.Content[i], "%s.permissions: %q %s", what, printable(name), problemOfPermission(name))
					}
					a.Permissions[name] = level
				}
			},
		})
		for _, key := range []string{"id", "installation", "private_key"} {
			if n.Kind == yaml.MappingNode && !hasKey(n, key) {
				r.fail(n, "%s has no %s; add it", what, key)
			}
		}
	}
}

// part reads a secret that is needed to get another one.
func (r *reader) part(what string, into **credentials.Source) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s := &credentials.Source{}
		r.credentialFrom(what, s)(n)
		if s.OAuth != nil || s.GitHubApp != nil || s.Refresh != 0 {
			r.fail(n, "%s is read from file, env or command; write {file: name} or the like", what)
		}
		*into = s
	}
}

// number reads the number of an app, or its client ID.
func (r *reader) number(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text := n.Value
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
			var ok bool
			if text, ok = r.text(n, what); !ok {
				return
			}
		}
		if text == "" || len(text) > 40 || strings.Trim(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.") != "" {
			r.fail(n, "%s: %q is no number as GitHub shows it", what, printable(text))
			return
		}
		*into = text
	}
}

func problemOfClient(text string) string {
	if len(text) > 512 || !printableASCII(text) {
		return "is longer than 512 bytes, or has other than printable ASCII characters"
	}
	return ""
}

func problemOfRepositoryName(text string) string {
	if len(text) > 100 || strings.Trim(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_.") != "" {
		return "is no name of a repository without its owner; write it like app"
	}
	return ""
}

func problemOfPermission(name string) string {
	if len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return "is no permission of GitHub; write one like contents"
	}
	return ""
}
