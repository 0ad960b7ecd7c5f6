package dns

import "fmt"

// A Kind says why a lookup gave no addresses. Kinds are errors themselves, so
// that errors.Is(err, dns.NotFound) asks for one. The zero Kind is no failure.
type Kind uint8

const (
	NotFound      Kind = iota + 1 // no such name (NXDOMAIN), or no address behind it (NODATA)
	Timeout                       // no upstream answered in time
	ServerFailure                 // SERVFAIL, an upstream that cannot be reached, an alias chain without end
	Refused                       // REFUSED
	Malformed                     // a name that is not canonical, asked for or answered, or a broken message
	Busy                          // too many lookups are under way
)

var kindTexts = [...]string{
	NotFound:      "no such name or no address",
	Timeout:       "the name server did not answer in time",
	ServerFailure: "the name server failed",
	Refused:       "the name server refused",
	Malformed:     "malformed name or answer",
	Busy:          "too many lookups at once",
}

func (k Kind) Error() string {
	if k == 0 || int(k) >= len(kindTexts) {
		return "unknown failure"
	}
	return kindTexts[k]
}

// An Error is a lookup that failed. Its text may be shown to a sandbox: it
// names neither an upstream nor anything that an upstream said.
type Error struct {
	Name string // as it was asked for, canonical or not
	Kind Kind

	Exists bool // the name does, where Kind is NotFound: it has no address
}

func (e *Error) Error() string { return fmt.Sprintf("lookup %q: %v", e.Name, e.Kind) }

// Unwrap returns e.Kind.
func (e *Error) Unwrap() error { return e.Kind }

// Timeout reports whether trying again may help because nothing answered. It
// is what [net.Error] asks, for callers that do not import this package.
func (e *Error) Timeout() bool { return e.Kind == Timeout }
