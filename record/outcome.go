package record

// An Outcome is how a flow ended, in its close record. A flow that failed, or that egressd refused once it was open, has a class as its
// outcome.
type Outcome string

// The outcomes that are no classes.
const (
	OutcomeClosed         Outcome = "closed"           // all ended in order
	OutcomeReset          Outcome = "reset"            // one side broke off
	OutcomeClientLeft     Outcome = "client-left"      // the client went before its first bytes, or its request, were complete or answered
	OutcomeCut            Outcome = "cut"              // a later policy, an operator or the end of egressd ended it
	OutcomeIdle           Outcome = "idle-timeout"     // nothing moved for limits.idle_timeout
	OutcomeLifetime       Outcome = "lifetime"         // it has lasted as long as limits.tunnel_lifetime lets it
	OutcomeFirstBytesLate Outcome = "first-bytes-late" // the client's first bytes or handshake were not complete within limits.hello_timeout
	OutcomeHTTP           Outcome = "http"             // a tunnel with plain HTTP in it, whose requests are flows of their own
	OutcomeNamed          Outcome = "named"            // a tunnel to an address, left for one to the host that the client named in it
)
