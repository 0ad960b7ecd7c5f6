package policy_test

import (
	"context"
	"fmt"

	"github.com/egressd/egressd/policy"
)

// hosts allows some hosts on port 443 and has no opinion on anything else.
type hosts []string

func (h hosts) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	for _, host := range h {
		if r.Destination.Host == host && r.Destination.Port == 443 {
			return policy.Decision{Verdict: policy.Allow, Rule: host, Layer: policy.User}, nil
		}
	}
	return policy.Decision{Verdict: policy.Abstain}, nil
}

// A policy combines opinions: the strictest verdict counts, and a request that nobody allows is denied.
func Example() {
	p := policy.New(policy.NewBaseline(policy.BaselineOptions{}), hosts{"api.example.com", "169.254.169.254"})
	for _, target := range []string{"API.example.com:443", "evil.test:443", "169.254.169.254:443", "http://example.com"} {
		to, err := policy.ParseDestination(target)
		if err != nil {
			fmt.Println("not a destination:", target)
			continue
		}
		d := p.Decide(context.Background(), &policy.Request{Via: policy.ViaConnect, Destination: to})
		fmt.Printf("%s: %s %q\n", to, d.Verdict.Action(), d.Class)
	}
	// Output:
	// api.example.com:443: allow ""
	// evil.test:443: deny "default-deny"
	// 169.254.169.254:443: deny "address-denied"
	// not a destination: http://example.com
}
