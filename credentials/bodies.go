package credentials

import (
	"mime"
	"regexp"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/strictjson"
)

// gitlabBodies are parameters by which GitLab takes a token. It prefers them over header fields, and takes them from the query, from
// forms and from JSON alike (lib/gitlab/auth/auth_finders.rb).
var gitlabBodies = []string{"private_token", "job_token", "access_token", "bearer_token"}

// raw begin the media types that no framework reads parameters from.
var raw = []string{
	"application/octet-stream", "application/x-git-", "application/gzip", "application/x-gzip", "application/x-tar", "application/zip", "application/java-archive",
	"application/xml", "image/", "audio/", "video/", "text/plain", "text/xml",
}

// parameterBody returns the media type of a body in which a server may look for parameters. ok is false for all other bodies.
func (r *Request) parameterBody() (media string, ok bool) {
	kinds := r.Fields.Values("Content-Type")
	switch {
	case r.Fields.Has("Content-Encoding"), len(kinds) == 0 && r.Method != "POST":
		return "", false
	case len(kinds) == 0:
		return "application/x-www-form-urlencoded", true
	}
	media, _, err := mime.ParseMediaType(kinds[0])
	if err != nil || len(kinds) > 1 {
		return "", true
	}
	return media, !slices.ContainsFunc(raw, func(prefix string) bool { return strings.HasPrefix(media, prefix) })
}

// foreignInBody names a credential of the sandbox's own in the body, or returns "".
func (c *Credential) foreignInBody(r *Request, media string) (found string) {
	look := func(name string) {
		if slices.ContainsFunc(c.Bodies, func(one string) bool { return strictjson.Alike(one, name) }) {
			found = name
		}
	}
	switch {
	case len(r.Body) == 0:
	case media == "application/x-www-form-urlencoded":
		eachParameter(string(r.Body), func(name, _ string, _ parameter) { look(name) })
	case strings.HasPrefix(media, "multipart/"):
		found = string(partNamed(c.Bodies).Find(r.Body))
	default:
		err := strictjson.Walk(r.Body, func(at []strictjson.PathStep, _ strictjson.ValueKind, _ []byte) {
			if len(at) == 1 {
				look(at[0].Name)
			}
		})
		if err != nil {
			return "a body that cannot be read"
		}
	}
	if found != "" {
		return "the body"
	}
	return ""
}

// partNamed finds the name of a part of multipart/form-data, in which any character may be quoted.
func partNamed(names []string) *regexp.Regexp {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = strings.Join(strings.Split(regexp.QuoteMeta(name), ""), `\\?`)
	}
	return regexp.MustCompile(`(?i)name\*?\s*=[\s"]*(?:` + strings.Join(texts, "|") + `)`)
}
