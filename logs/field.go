package logs

import (
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// FieldNames are the names that [Field] takes.
var FieldNames = []string{
	"host", "domain", "destination", "port", "addr", "verdict", "class", "rule", "layer", "policy", "sandbox", "proc", "who", "via",
	"what", "method", "path", "status", "sni", "outcome", "why", "hour", "day",
}

// Field returns a function that reads the named value of a decision. It returns nil for an unknown name.
// The function returns "" for a record without that value.
func Field(name string) func(*record.Record) string {
	switch name {
	case "domain":
		return domainOf
	case "destination":
		return Destination
	case "port":
		return func(r *record.Record) string { return numberText(int(part(r.Dst).Port)) }
	case "status":
		return func(r *record.Record) string { return numberText(part(r.HTTP).Status) }
	case "addr":
		return func(r *record.Record) string { return part(r.Dst).Addr }
	case "proc":
		return Process
	case "who":
		return Who
	case "what":
		return What
	case "why":
		return Why
	case "hour":
		return func(r *record.Record) string { return r.Time.UTC().Format("2006-01-02T15Z") }
	case "day":
		return func(r *record.Record) string { return r.Time.UTC().Format(time.DateOnly) }
	case "kind", "shadow", "marked": // these do not tell decisions apart
		return nil
	}
	return filterTexts[name]
}

func numberText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// domainOf returns the registrable domain of the host, or the host itself if it has none.
func domainOf(r *record.Record) string {
	host := Host(r)
	if strings.Contains(host, ":") || isAddress(host) {
		return host
	}
	if domain := policy.Registrable(host); domain != "" {
		return domain
	}
	return host
}
