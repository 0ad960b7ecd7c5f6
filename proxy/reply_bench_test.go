package proxy

import (
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
)

// What is written for each CONNECT that is refused.
func BenchmarkRefusal(b *testing.B) {
	dst, err := policy.ParseDestination("registry.elsewhere.test:443")
	if err != nil {
		b.Fatal(err)
	}
	r := &egress.Refusal{ID: 0x3_1234_5678, Destination: dst, Decision: policy.Decision{
		Class: policy.DefaultDeny, Rule: "default", Layer: policy.Builtin, Reason: "no rule allows registry.elsewhere.test:443",
	}}
	b.ReportAllocs()
	for b.Loop() {
		answer.HTTP(r, answer.Recipient{Agent: "curl/8.5.0"})
	}
}
