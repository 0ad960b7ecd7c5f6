package proxy

import (
	"testing"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/policy"
)

// TestASecondHelloIsTheFirstButForItsFingerprint changes each field of what a hello claims.
func TestASecondHelloIsTheFirstButForItsFingerprint(t *testing.T) {
	claim := func() *policy.ClientHello {
		return &policy.ClientHello{ServerName: "a.test", ALPN: []string{"h2"}, JA4: "t13d"}
	}
	for name, c := range fieldtest.Each(claim) {
		if sameClaim(c, claim()) != (name == "JA4") {
			t.Errorf("with another %s it is the same: %t", name, name != "JA4")
		}
	}
}
