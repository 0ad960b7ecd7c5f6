package world

import (
	"strings"

	"github.com/egressd/egressd/policy"
)

// statusFor and repliesFor are the table of docs/reference/refusals.md.
func statusFor(c policy.Class) []int {
	switch c {
	case policy.MalformedRequest:
		return []int{400, 405, 417, 431, 505}
	case policy.MalformedHost:
		return []int{400}
	case policy.NameMismatch:
		return []int{403, 421} // the latter of a request inside a tunnel
	case policy.UnknownSandbox:
		return []int{407}
	case policy.TooManyFlows, policy.ByteBudget, policy.DNSBudget:
		return []int{429}
	case policy.AuditUnavailable, policy.CredentialUnavailable:
		return []int{503}
	case policy.NetworkTimeout:
		return []int{504}
	case policy.NetworkDNS, policy.NetworkRefused, policy.NetworkUnreachable, policy.NetworkTLS, policy.NetworkReset, policy.ResponseRefused, policy.MalformedResponse, policy.UpstreamRefused:
		return []int{502}
	}
	return []int{403}
}

func repliesFor(classes []policy.Class) (replies []int) {
	for _, c := range classes {
		switch c {
		case policy.MalformedRequest, policy.MalformedHost:
			replies = append(replies, 1, 8)
		case policy.TooManyFlows, policy.ByteBudget, policy.DNSBudget, policy.AuditUnavailable, policy.NetworkTLS, policy.NetworkReset, policy.UpstreamRefused:
			replies = append(replies, 1)
		case policy.NetworkDNS, policy.NetworkTimeout:
			replies = append(replies, 4)
		case policy.NetworkRefused:
			replies = append(replies, 5)
		case policy.NetworkUnreachable:
			replies = append(replies, 3)
		default:
			replies = append(replies, 2)
		}
	}
	return replies
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}
