package credentials

import (
	"net/url"
	"strings"

	"github.com/egressd/egressd/internal/http1"
)

// KnownField reports whether a header field carries credentials, whatever the case of its letters.
func KnownField(name string) bool {
	switch strings.ReplaceAll(strings.ToLower(name), "_", "-") { // which some servers take for one
	case "authorization", "proxy-authorization", "cookie", "x-api-key", "x-goog-api-key", "api-key", "private-token", "job-token", "deploy-token",
		"x-auth-token", "x-access-token", "x-amz-security-token", "x-goog-iam-authorization-token":
		return true
	}
	return false
}

// knownParameter reports whether a parameter of a query carries a credential, whatever the case of its letters.
// Google's services take "$key" as well.
func knownParameter(name string) bool {
	switch strings.TrimPrefix(strings.ToLower(name), "$") {
	case "key", "api_key", "access_token", "private_token", "job_token", "oauth_token", "bearer_token":
		return true
	}
	return false
}

// KnownPlaces are the header fields and parameters in which other credentials are refused, for people.
func KnownPlaces() (fields, parameters []string) {
	return []string{"Authorization", "Cookie", "X-Api-Key", "x-goog-api-key", "api-key", "PRIVATE-TOKEN", "JOB-TOKEN", "Deploy-Token", "X-Auth-Token", "X-Access-Token", "X-Amz-Security-Token", "X-Goog-Iam-Authorization-Token", "Sec-WebSocket-Protocol (a key as a protocol)"},
		[]string{"key", "api_key", "access_token", "private_token", "job_token", "oauth_token", "bearer_token"}
}

// A found is a credential in the head of a request.
type found struct {
	field     int // its index, or -1
	parameter parameter
	name      string // of the field or parameter, as the table writes it
	value     string
}

// A parameter is one part of a query, by its place in the text.
type parameter struct{ from, to int } // of the value

// find returns everything in a request that is a credential: what stands in a known place, or in one of the
// places of c.
func (c *Credential) find(r *Request) (all []found) {
	for i, f := range r.Fields {
		switch {
		case f.Value == "":
		case strings.EqualFold(f.Name, "Cookie") && plumbing(f.Value):
		case KnownField(f.Name) || c.ownField(f.Name):
			all = append(all, found{field: i, name: f.Name, value: f.Value})
		case strings.EqualFold(f.Name, "Sec-WebSocket-Protocol") && holdsKey(f.Value):
			all = append(all, found{field: i, name: f.Name, value: f.Value})
		}
	}
	eachParameter(r.Target.Query, func(name, value string, at parameter) {
		if value != "" && (knownParameter(name) || c.ownParameter(name)) {
			all = append(all, found{field: -1, parameter: at, name: name, value: value})
		}
	})
	return all
}

func (c *Credential) ownField(name string) bool {
	for i := range c.Places {
		if c.Places[i].Header != "" && strings.EqualFold(c.Places[i].Header, name) {
			return true
		}
	}
	return false
}

func (c *Credential) ownParameter(name string) bool {
	for i := range c.Places {
		if c.Places[i].Query != "" && strings.EqualFold(c.Places[i].Query, name) {
			return true
		}
	}
	return false
}

// plumbing reports whether all cookies are those by which Cloudflare knows a connection. They name nobody, and
// clients of chatgpt.com send them back.
func plumbing(cookies string) bool {
	for one := range strings.SplitSeq(cookies, ";") {
		switch name, _, _ := strings.Cut(strings.TrimSpace(one), "="); name {
		case "", "__cf_bm", "_cfuvid", "__cflb", "cf_clearance":
		default:
			return false
		}
	}
	return true
}

// holdsKey reports whether the protocols that a WebSocket offers carry a key: OpenAI takes
// "openai-insecure-api-key.KEY", Kubernetes "base64url.bearer.authorization.k8s.io.TOKEN".
func holdsKey(protocols string) bool {
	lower := strings.ToLower(protocols)
	return strings.Contains(lower, "api-key.") || strings.Contains(lower, "bearer.") || strings.Contains(lower, "authorization.")
}

// eachParameter calls f for each parameter of a query. Servers differ on whether ";" separates, so it does. Names and
// values are decoded once; one with an escape that is none stays as it is.
func eachParameter(query string, f func(name, value string, at parameter)) {
	for from := 0; from <= len(query); {
		end := strings.IndexAny(query[from:], "&;")
		if end < 0 {
			end = len(query) - from
		}
		part := query[from : from+end]
		name, value, _ := strings.Cut(part, "=")
		f(unescaped(name), unescaped(value), parameter{from + min(len(part), len(name)+1), from + end})
		from += end + 1
	}
}

func unescaped(text string) string {
	if out, err := url.QueryUnescape(text); err == nil {
		return out
	}
	return text
}

// holdsMark reports whether a placeholder may stand anywhere in the head.
func holdsMark(target http1.Target, fields http1.Fields) bool {
	if strings.Contains(target.Path, mark) || strings.Contains(target.Query, mark) {
		return true
	}
	for _, f := range fields {
		if strings.Contains(f.Value, mark) || strings.HasPrefix(f.Value, "Basic ") {
			return true
		}
	}
	return false
}
