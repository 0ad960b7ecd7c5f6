//go:build linux

package other

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/sandbox/jail"
)

func TestSelftestPrintsAnEscape(t *testing.T) {
	tried := []jail.WayOut{{Name: "raw sockets"}, {Name: "keys", Escaped: "request_key"}}
	var out bytes.Buffer
	if err := sayAttempts(&out, tried, false); err != cli.Status(1) || out.String() != "✓ raw sockets\n✗ keys: request_key\nself-test 1/2\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	out.Reset()
	if err := sayAttempts(&out, tried, true); err != cli.Status(1) {
		t.Error(err)
	}
	lines := json.NewDecoder(&out)
	for i, want := range tried {
		var a struct {
			jail.WayOut
			OK *bool `json:"ok"`
		}
		if err := lines.Decode(&a); err != nil || a.WayOut != want || a.OK == nil || *a.OK != (i == 0) {
			t.Errorf("%v %+v", err, a)
		}
	}
}
