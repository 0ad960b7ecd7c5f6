package waysin

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestHeadsCountAsWhatGoesUp sends data in queries and cookies:
// each is bounded, its size stands in the log and its text does not, and a rule over
// what a sandbox has sent ends it.
func TestHeadsCountAsWhatGoesUp(t *testing.T) {
	world.Covers(t, "LC-03")
	const each, budget = 8000, 100_000
	d := world.StartRego(t, "version: 1\nrego: [policy]\nlimits: {head_bytes: 20000}\n", `package egress

allow contains {"rule": "here"} if input.destination.host == "allowed.test"
deny contains {"rule": "enough"} if input.usage.bytes_up > 100000
`)
	query, cookie := strings.Repeat("q", each), strings.Repeat("c", each)
	ask := func(scheme, query, cookie string) int {
		t.Helper()
		r, err := http.NewRequest("GET", scheme+"://allowed.test/count?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Cookie", "c="+cookie)
		response, err := d.HTTPClient(nil).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	if status := ask("http", query+query, cookie); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a head of %d bytes is answered %d", 3*each, status)
	}
	sent := 0
	for status := http.StatusOK; status == http.StatusOK && sent < 2*budget/each; {
		if status = ask("http", query, cookie); status == http.StatusOK {
			sent++
		} else if status != http.StatusForbidden {
			t.Errorf("status %d", status)
		}
	}
	if most := budget/(2*each) + 1; sent != most {
		t.Errorf("%d requests were let through, and %d are the budget", sent, most)
	}
	var sizes []int64
	if !world.Eventually(world.Settling, func() bool { sizes = sizesUp(t, d); return len(sizes) == sent }) {
		t.Errorf("%d requests were sent, and %d have a size: %d", sent, len(sizes), sizes)
	}
	for _, n := range sizes {
		if n < 2*each || n > 2*each+1000 {
			t.Errorf("the log has %d bytes for a head of %d and a little", n, 2*each)
		}
	}
	if d.Log.Holds(query[:100]) || d.Log.Holds(cookie[:100]) {
		t.Error("a query or a cookie stands in the log")
	}
}

// sizesUp are the bytes that went up, of each request that ended.
func sizesUp(t *testing.T, d *world.Daemon) (all []int64) {
	t.Helper()
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Kind == record.KindClose && r.Bytes != nil && r.Bytes.Up > 0 {
			all = append(all, r.Bytes.Up)
		}
	}
	return all
}
