package http1

import (
	"slices"
	"strings"
)

// StripHopByHop returns f without the fields that concern one connection only
// (RFC 9110, section 7.6.1) and those that Connection nominates. It reuses f.
//
// A Connection that nominates Host or a field of framing is a *MalformedError:
// were it obeyed, the next hop would see another message than was judged.
func StripHopByHop(f Fields) (Fields, error) {
	nominated, err := nominations(f)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(f, func(field Field) bool {
		return isHopByHop(field.Name) || isOneOf(field.Name, nominated)
	}), nil
}

func nominations(f Fields) (names []string, err error) {
	for i := range f {
		if !equalFold(f[i].Name, "Connection") && !equalFold(f[i].Name, "Proxy-Connection") {
			continue
		}
		for name := range strings.SplitSeq(f[i].Value, ",") {
			name = trim(name)
			if name == "" {
				continue
			}
			if !isToken(name) || isEndToEnd(name) {
				return nil, malformed("a Connection that nominates what it must not")
			}
			names = append(names, name)
		}
	}
	return names, nil
}

func isEndToEnd(name string) bool {
	return isOneOf(name, []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Content-Type", "Content-Encoding"})
}

func isHopByHop(name string) bool {
	return isOneOf(name, []string{
		"Connection", "Proxy-Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade",
		"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", "HTTP2-Settings",
	})
}

// StripClaims removes the fields of a request that claim who or where its client is, and those by which some
// servers replace the method, path or host that was decided. An underscore counts as a hyphen, because servers
// that pass fields in their environment confuse the two. It reuses f.
func StripClaims(f Fields) Fields {
	return slices.DeleteFunc(f, func(field Field) bool {
		name := strings.ReplaceAll(field.Name, "_", "-")
		return hasPrefixFold(name, "X-Forwarded-") || isOneOf(name, []string{
			"Forwarded", "Via", "X-Real-IP", "X-Client-IP", "True-Client-IP", "X-Cluster-Client-IP", "X-Originating-IP",
			"X-Remote-IP", "X-Remote-Addr", "CF-Connecting-IP", "Client-IP", "Fastly-Client-IP", "X-ProxyUser-IP",
			"X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override", "X-Method",
			"X-Original-URL", "X-Rewrite-URL", "X-Original-Host", "X-Host",
		})
	})
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && equalFold(s[:len(prefix)], prefix)
}
