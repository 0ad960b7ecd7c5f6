package stage_test

import (
	"bytes"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/stage"
)

// TestTheUsualNetworkIsThatOfRun: else each jail would make two.
func TestTheUsualNetworkIsThatOfRun(t *testing.T) {
	four, six := egress.DefaultSynthetic().Own()
	if u := stage.Usual; !bytes.Equal(u.IPv4, four.AsSlice()) || !bytes.Equal(u.IPv6, six.AsSlice()) || u.Redirect {
		t.Errorf("%+v, where a sandbox has %v and %v", u, four, six)
	}
}
