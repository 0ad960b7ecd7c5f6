package admin

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestAPageIsRecordedOnce asks for ports that may be those of a page, and for others.
func TestAPageIsRecordedOnce(t *testing.T) {
	w := newWorld(t)
	held := map[uint16]bool{}
	w.Page = func(port uint16) bool { known := held[port]; held[port] = true; return known }
	w.listen(t)
	for path, want := range map[string]int{"/v1/pages/80": 400, "/v1/pages/70000": 400, "/v1/pages/x": 400, "/v1/pages/-1": 400} {
		if status, text := w.ask(t, "PUT", path, "", nil); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for range 3 {
		if status, text := w.ask(t, "PUT", "/v1/pages/40001", "", nil); status != 200 || !strings.Contains(text, `"port":40001`) {
			t.Errorf("%d %s", status, text)
		}
	}
	if len(held) != 1 || !held[40001] {
		t.Errorf("kept away from %v", held)
	}
	notes := 0
	for _, r := range w.records(t, record.KindAdmin) {
		if strings.HasPrefix(r.Note, "a page at port 40001 of loopback, asked by ") {
			notes++
		}
	}
	if notes != 1 {
		t.Errorf("%d records of it", notes)
	}
}
