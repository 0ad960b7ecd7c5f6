package records

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// Host is the host that r is about, or the name that was asked for.
func Host(r *egress.Record) string {
	switch {
	case r.Dst != nil && r.Dst.Host != "":
		return r.Dst.Host
	case r.DNS != nil:
		return r.DNS.Name
	default:
		return ""
	}
}

// Port is the port that r is about, or "".
func Port(r *egress.Record) string {
	if r.Dst == nil {
		return ""
	}
	return strconv.Itoa(int(r.Dst.Port))
}

// Destination is the host with its port where there is one.
func Destination(r *egress.Record) string {
	switch {
	case r.Dst != nil && strings.Contains(r.Dst.Host, ":"):
		return fmt.Sprintf("[%s]:%d", r.Dst.Host, r.Dst.Port)
	case r.Dst != nil && r.Dst.Port != 0:
		return fmt.Sprintf("%s:%d", r.Dst.Host, r.Dst.Port)
	default:
		return Host(r)
	}
}

// What is the method where one was seen, else the way in.
func What(r *egress.Record) string {
	switch {
	case r.HTTP != nil && r.HTTP.Method != "":
		return r.HTTP.Method
	case r.DNS != nil && r.DNS.Type != "":
		return "dns " + r.DNS.Type
	default:
		return r.Via
	}
}

// Who is the sandbox, and the program in it where that is known.
func Who(r *egress.Record) string {
	program := Process(r)
	switch {
	case program == "":
		return r.Sandbox
	case r.Sandbox == "" || r.Sandbox == "default":
		return program
	default:
		return r.Sandbox + "/" + program
	}
}

// Why is the class of a refusal, or the rule that allowed; a refusal
// that names a rule or a kind of address says which.
func Why(r *egress.Record) string {
	d := r.Decision
	switch {
	case d == nil:
		return ""
	case d.Class == "":
		return d.Rule
	case r.Dst != nil && r.Dst.Class != "":
		return d.Class + " (" + r.Dst.Class + ")"
	case d.Layer != "builtin" && d.Rule != "" && d.Rule != "default":
		return d.Class + " (" + d.Rule + ")"
	default:
		return d.Class
	}
}

// IsLookup reports whether r is a name that egressd looked up for a flow; the
// decision is the flow's own, in a record that follows.
func IsLookup(r *egress.Record) bool {
	return r.Kind == egress.KindDNS && r.Via != string(policy.ViaDNS) && r.DNS != nil
}

// RefusedHost returns the host that r refused because no rule speaks of it, as
// a pattern: with its port where that is not one that a bare host means. It is
// "" for whatever was refused otherwise, and for what is not public.
func RefusedHost(r *egress.Record) string {
	if r.Decision == nil || r.Decision.Class != string(policy.DefaultDeny) || r.Dst != nil && r.Dst.Class != "" {
		return ""
	}
	host := Host(r)
	if _, _, err := policy.ParseHost(host); err != nil {
		return ""
	}
	if port := Port(r); port != "" && port != "80" && port != "443" {
		host = Destination(r)
	}
	pattern, err := policy.ParsePattern(host)
	if err != nil || policy.InSpecialSpace(pattern) {
		return ""
	}
	return host
}

// Allowable returns the host of r as [RefusedHost] does where a line in the
// policy would let r pass, else "". Nothing is offered to a sandbox that has a
// list of its own, since a line for all does not open that.
func Allowable(r *egress.Record) string {
	if r.Flow == "" || r.Decision == nil || r.Decision.Layer == string(policy.PerSandbox) {
		return ""
	}
	return RefusedHost(r)
}
