package egress

import (
	"fmt"

	"github.com/egressd/egressd/policy"
)

// A Refusal is why something did not pass: by policy, by egressd itself, or
// by the network. It is every error that a front end gets from a gate or a
// flow, and front ends render it; nothing in it may be hidden from the
// sandbox except what Decision's documentation says.
type Refusal struct {
	ID          ID
	Destination policy.Destination // zero where none could be parsed
	Method      string             // of an HTTP request that was seen
	Decision    policy.Decision

	cause error
}

// Unwrap returns what the resolver said, where a name server is to say it on, or
// nil. It is not for the text of a reply.
func (r *Refusal) Unwrap() error { return r.cause }

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (%s): %s", r.Decision.Class, r.ID, r.Decision.Reason)
}

var tooManyFlows = policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has too many connections open"}

// stopping is for what comes after Shut.
var stopping = policy.Decision{
	Class:  policy.PolicyNotLoaded,
	Rule:   "stopping",
	Layer:  policy.Builtin,
	Reason: "egressd is stopping",
}

// wouldWait says that Open cannot answer at once. Nothing was recorded.
var wouldWait = &Refusal{Decision: policy.Decision{Reason: "the answer has to be waited for"}}

var unavailable = policy.Decision{
	Class:  policy.AuditUnavailable,
	Rule:   "audit",
	Layer:  policy.Builtin,
	Reason: "what cannot be recorded may not pass",
}
