package credentials

import (
	"net/url"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/http1"
)

// KnownField reports whether a header field carries credentials, whatever the case of its letters. Services name theirs in many
// ways, so the end of a name decides.
func KnownField(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-") // which some servers take for one
	switch {
	case slices.Contains(fieldNames, name):
		return true
	case strings.HasPrefix(name, "x-amz-"), name == "x-atlassian-token", slices.ContainsFunc(noCredentials, func(part string) bool { return strings.Contains(name, part) }):
		return false
	}
	return slices.ContainsFunc(fieldEnds, func(end string) bool { return strings.HasSuffix(name, end) })
}

var (
	fieldNames = []string{"cookie", "x-amz-security-token", "gitlab-agentk-api-request", "token", "auth", "jwt", "secret"}
	fieldEnds  = []string{"authorization", "-token", "api-key", "apikey", "-auth-key", "-access-key", "-subscription-key", "-auth", "-jwt", "-secret", "-credential", "-credentials"}
)

// noCredentials stand in names of tokens that tell nothing of who asks.
var noCredentials = []string{"csrf", "xsrf", "continuation-", "page-"}

// knownParameter returns the name, as it stands in parameters, of a parameter of a query that carries a credential, or "". The case
// of letters does not matter, and servers differ on what may stand for "_". Google's services take "$key" as well, and header
// fields in "$httpHeaders".
func knownParameter(name string) string {
	name, _, _ = strings.Cut(strings.ToLower(name), "[") // an element of a list
	name = strings.NewReplacer("$", "", "-", "_", ".", "_", " ", "_").Replace(name)
	if !slices.Contains(parameters, name) {
		return ""
	}
	return name
}

var parameters = []string{
	"key", "api_key", "apikey", "access_token", "private_token", "job_token", "oauth_token", "bearer_token", "auth_token", "feed_token", "rss_token", "id_token", "token", "auth", "jwt", "secret",
	"client_secret", "httpheaders",
	"x_goog_signature", "x_amz_signature", "signature", "sig",
}

// KnownPlaces are the header fields and parameters in which other credentials are refused, for people.
func KnownPlaces() (fields, parameters []string) {
	fields = []string{"Cookie", "Token", "Auth", "JWT", "Secret", "Sec-WebSocket-Protocol (a key as a protocol)"}
	for _, end := range fieldEnds {
		fields = append(fields, "*"+end)
	}
	return fields, parameters
}

// A found is a credential in the head of a request.
type found struct {
	field     int // its index, or -1
	parameter parameter
	name      string // of the field or parameter, without text that the sandbox has chosen freely
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
		known := knownParameter(name)
		if c.ownParameter(name) {
			known = name
		}
		if known == "token" && c.Kind == "github" {
			known = "" // by which GitHub names a private file to a client
		}
		if value != "" && known != "" {
			all = append(all, found{field: -1, parameter: at, name: known, value: value})
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
// clients of chatgpt.com send them back. Some servers take "," for ";" (RFC 2109, section 4.3.4).
func plumbing(cookies string) bool {
	for one := range strings.SplitSeq(strings.ReplaceAll(cookies, ",", ";"), ";") {
		switch name, _, _ := strings.Cut(strings.TrimSpace(one), "="); name {
		case "", "__cf_bm", "_cfuvid", "__cflb", "cf_clearance":
		default:
			return false
		}
	}
	return true
}

// holdsKey reports whether the protocols that a WebSocket offers carry a key: OpenAI takes
// "openai-insecure-api-key.KEY", Kubernetes "base64url.bearer.authorization.k8s.io.TOKEN", others the key alone, which is
// longer than the name of a protocol.
func holdsKey(protocols string) bool {
	lower := strings.ToLower(protocols)
	return strings.Contains(lower, "api-key.") || strings.Contains(lower, "bearer.") || strings.Contains(lower, "authorization.") ||
		slices.ContainsFunc(strings.Split(lower, ","), func(one string) bool { return len(strings.TrimSpace(one)) > protocolMost })
}

const protocolMost = 32

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
