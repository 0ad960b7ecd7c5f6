package logs

import (
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
func Destination(r *egress.Record) string { return string(appendDestination(nil, r)) }

func appendDestination(b []byte, r *egress.Record) []byte {
	switch {
	case r.Dst != nil && strings.Contains(r.Dst.Host, ":"):
		b = append(append(append(b, '['), r.Dst.Host...), ']', ':')
	case r.Dst != nil && r.Dst.Port != 0:
		b = append(append(b, r.Dst.Host...), ':')
	default:
		return append(b, Host(r)...)
	}
	return strconv.AppendUint(b, uint64(r.Dst.Port), 10)
}

// What is the method where one was seen, else the way in.
func What(r *egress.Record) string { return string(appendWhat(nil, r)) }

func appendWhat(b []byte, r *egress.Record) []byte {
	switch {
	case r.HTTP != nil && r.HTTP.Method != "":
		return append(b, r.HTTP.Method...)
	case r.DNS != nil && r.DNS.Type != "":
		return append(append(b, "dns "...), r.DNS.Type...)
	default:
		return append(b, r.Via...)
	}
}

// Who is the sandbox, and the program in it where that is known.
func Who(r *egress.Record) string { return string(appendWho(nil, r)) }

func appendWho(b []byte, r *egress.Record) []byte {
	program := Process(r)
	switch {
	case program == "":
		return append(b, r.Sandbox...)
	case r.Sandbox == "" || r.Sandbox == "default":
		return append(b, program...)
	default:
		return append(append(append(b, r.Sandbox...), '/'), program...)
	}
}

// Why is the class of a refusal, or the rule that allowed; a refusal
// that names a rule or a kind of address says which.
func Why(r *egress.Record) string { return string(appendWhy(nil, r)) }

func appendWhy(b []byte, r *egress.Record) []byte {
	d := r.Decision
	detail := ""
	switch {
	case d == nil:
		return b
	case d.Class == "":
		return append(b, d.Rule...)
	case r.Dst != nil && r.Dst.Class != "":
		detail = r.Dst.Class
	case d.Layer != "builtin" && d.Rule != "" && d.Rule != "default":
		detail = d.Rule
	default:
		return append(b, d.Class...)
	}
	return append(append(append(append(b, d.Class...), " ("...), detail...), ')')
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
