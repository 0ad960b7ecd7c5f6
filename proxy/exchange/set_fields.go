package exchange

import (
	"slices"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// withSet returns the fields of a request with those that the policy sets for its host, and whether the sandbox had sent another
// value for one. It leaves fields as they are.
func withSet(fields http1.Fields, set []policy.SetField) (out http1.Fields, dropped bool) {
	if len(set) == 0 {
		return fields, false
	}
	for _, f := range fields {
		at := slices.IndexFunc(set, func(s policy.SetField) bool { return s.Replaces(f.Name) })
		if at < 0 {
			out = append(out, f)
		} else {
			dropped = dropped || f.Value != set[at].Value
		}
	}
	for _, s := range set {
		out = append(out, http1.Field(s))
	}
	return out, dropped
}

// setFields writes the fields that the policy sets for the host, so that it is asked about the request as it goes up.
func (x *Exchange) setFields() (set []policy.SetField) {
	set = x.Client.Forwarder.Gate.SetFields(x.Destination)
	var dropped bool
	if x.Fields, dropped = withSet(x.Fields, set); dropped {
		x.end.Note = "a header field of the sandbox was replaced by the one that the policy sets"
	}
	return set
}
