package rego

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// canonical says which constants a field never equals. The list is never written.
var canonical = []struct {
	fields inputFields
	never  func(text string) string
}{
	{readsHost | readsSNI | readsQuestionName | readsRegistrable, neverAHost},
	{readsRegistrable, neverRegistrable},
	{readsMethod, neverAMethod},
	{readsPath, neverAPath},
	{readsStage, oneOf("stage", "name", "address", "tls", "http", "dns")},
	{numberFields, neverANumber},
	{readsAddresses, neverAnAddress},
	{readsAddressClass, neverAClass},
	{readsSandboxKind, oneOf("sandbox.kind", "certificate", "uid", "container", "listener", "source", "token")},
	{readsExe, neverAProgram},
	{readsVia, oneOf("via", "connect", "http", "socks5", "transparent", "forwarded", "dns")},
	{readsQuestionType, func(text string) string {
		if upper := strings.ToUpper(text); upper != text {
			return fmt.Sprintf("types of DNS questions are in upper case, so this is never one of them; write %q", clip(upper, maxRuleBytes))
		}
		return ""
	}},
}

func oneOf(field string, words ...string) func(string) string {
	return func(text string) string {
		if slices.Contains(words, text) {
			return ""
		}
		return fmt.Sprintf("input.%s is never this; it is one of %s", field, strings.Join(words, ", "))
	}
}

func neverAHost(text string) string {
	if text == "" {
		return ""
	}
	if lower := strings.ToLower(text); lower != text {
		return notLower(lower)
	}
	shown := clip(text, maxRuleBytes)
	name, addr, err := policy.ParseHost(text)
	if addr.IsValid() {
		name = addr.String()
	}
	switch host, _, port := strings.Cut(text, ":"); {
	case err == nil && name == text:
		return ""
	case err == nil:
		return fmt.Sprintf("no host is written so; write %q", clip(name, maxRuleBytes))
	case strings.Contains(text, "://"):
		return fmt.Sprintf("a host is no URL, so this is never one; write the host alone, as in host.matches(input.destination.host, %q)", "example.com")
	case strings.Contains(text, "*"):
		return fmt.Sprintf("== compares letter by letter, so no host equals it; write host.matches(input.destination.host, %q)", shown)
	case port:
		return fmt.Sprintf("hosts have no port, so this is never one of them; write %q, and compare input.destination.port", clip(host, maxRuleBytes))
	}
	return "no host equals this: " + err.Error()
}

func neverRegistrable(text string) string {
	if registered := policy.Registrable(text); neverAHost(text) == "" && registered != text && registered != "" {
		return fmt.Sprintf("the registered domain is %q, so it is never this; compare input.destination.host", clip(registered, maxRuleBytes))
	}
	return ""
}

func neverAMethod(text string) string {
	upper := strings.ToUpper(text)
	switch {
	case text == "CONNECT":
		return `a CONNECT is a tunnel and no request, so no method equals this; write input.via == "connect", or leave it out`
	case text == "*":
		return "no request has this method; leave the comparison out, which then holds for every method"
	case strings.ContainsAny(text, ", "):
		return `a method is one word, so none equals this; write input.http.method in {"GET", "HEAD"}`
	case upper == text:
		return ""
	}
	return fmt.Sprintf("methods are in upper case, and one in lower case is refused before the policy is asked; write %q", clip(upper, maxRuleBytes))
}

func neverAPath(text string) string {
	switch {
	case text == "" || text == "*":
		return ""
	case text[0] != '/':
		return "paths begin with a slash, so this is never one of them"
	case strings.Contains(text, "?"):
		return "input.http.path has no query, so this is never one; compare what urlquery.decode_object(input.http.query) returns"
	case strings.Contains(text, "*"):
		return fmt.Sprintf("== compares letter by letter, so no path equals it; write path.matches(input.http.path, %q)", clip(text, maxRuleBytes))
	}
	return ""
}
