package daemon

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

const frugalRego = `package egress

allow contains {"rule": "api", "max_bytes_up": 1000, "log": true} if host.matches(input.destination.host, "api.test")

deny contains {"rule": "enough"} if {
	input.http.method == "POST"
	input.usage.bytes_up > 2500
}

deny contains {"rule": "scan"} if input.usage.denied_minute >= 5
`

// TestServeBoundsWhatASandboxSends spends a budget for each request, then one for
// all, and then asks for too much.
func TestServeBoundsWhatASandboxSends(t *testing.T) {
	far := secureUpstream(t)
	w := serveRego(t, "rego: [policy]\n", map[string]string{"policy/egress.rego": frugalRego, "roots.pem": far.roots})
	client := w.clientOf(t)
	post := func(method string, size int) (int, string) {
		t.Helper()
		request, err := http.NewRequest(method, "https://api.test:"+far.port+"/", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body)
	}
	for _, row := range []struct {
		method string
		size   int
		status int
		says   string
	}{
		{"POST", 1000, 200, "POST /"},
		{"POST", 1001, 429, `"class":"byte-budget"`},
		{"POST", 1000, 200, "POST /"},
		{"POST", 1000, 200, "POST /"},
		{"POST", 1, 403, `"rule":"enough"`},
		{"GET", 0, 200, "GET /"},
		{"POST", 1, 403, `"rule":"enough"`},
		{"POST", 1, 403, `"rule":"enough"`},
		{"POST", 1, 403, `"rule":"enough"`},
	} {
		if status, body := post(row.method, row.size); status != row.status || !strings.Contains(body, row.says) {
			t.Errorf("%s of %d bytes: %d %s", row.method, row.size, status, body)
		}
	}
	if status, body := w.connect(t, "api.test:"+far.port); status != 403 || !strings.Contains(body, `"rule":"scan"`) {
		t.Errorf("a tunnel after five refusals: %d %s", status, body)
	}
	r := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindRequest && r.Decision.Class == "byte-budget"
	})
	if r.Decision == nil || r.Decision.Rule != "api" || !r.Decision.Log {
		t.Errorf("the record of the large request is %+v", r)
	}
}
