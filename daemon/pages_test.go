package daemon

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/policy"
)

// TestNoRuleOpensThePortOfAPage asks a policy whose file opens the very address and port.
func TestNoRuleOpensThePortOfAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pages
		at := netip.MustParseAddrPort("127.0.0.1:40001")
		if p.keep(40001) || !p.keep(40001) || !slices.Contains(p.where(), at) {
			t.Errorf("kept: %v", p.where())
		}
		var unsafe []policy.Rule
		for _, text := range []string{"127.0.0.1:40001", "127.0.0.1:40002"} {
			pattern, err := policy.ParsePattern(text)
			if err != nil {
				t.Fatal(err)
			}
			unsafe = append(unsafe, policy.Rule{Pattern: pattern})
		}
		b := policy.NewBaseline(policy.BaselineOptions{AdminListeners: p.where, Unsafe: unsafe})
		verdict := func(port string) policy.Verdict {
			dst, err := policy.ParseDestination("127.0.0.1:" + port)
			if err != nil {
				t.Fatal(err)
			}
			d, err := b.Evaluate(t.Context(), &policy.Request{Via: policy.ViaConnect, Destination: dst})
			if err != nil {
				t.Fatal(err)
			}
			return d.Verdict
		}
		if v := verdict("40001"); v != policy.Deny {
			t.Errorf("the page: %v", v)
		}
		if v := verdict("40002"); v == policy.Deny {
			t.Errorf("another port: %v, so that the test tells nothing", v)
		}
		time.Sleep(admin.PageLease + time.Second)
		if v := verdict("40001"); v == policy.Deny {
			t.Errorf("after the page has gone: %v", v)
		}
		for port := range uint16(100) {
			p.keep(50000 + port)
		}
		if n := len(p.where()); n > mostPages {
			t.Errorf("%d ports are kept", n)
		}
	})
}
