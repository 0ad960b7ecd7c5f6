package logs

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

func TestTheShadowTableIsBounded(t *testing.T) {
	var s shadowGroups
	for i := range MaxGroups + 5 {
		r := opened("A", strings.Repeat("a", i%50+1)+"."+strings.Repeat("b", i/50+1)+".test", "allow")
		r.Shadow = &record.Shadow{Action: "deny"}
		s.add(r)
	}
	if len(s) != MaxGroups+1 {
		t.Errorf("%d groups", len(s))
	}
}
