package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// within gives the gate one budget for allowed.test.
func within(t *testing.T, w *world, up int64, hosts ...string) {
	t.Helper()
	var patterns []policy.Pattern
	for _, host := range append(hosts, "*.nothing.test") {
		p, err := policy.ParsePattern(host)
		if err != nil {
			t.Fatal(err)
		}
		patterns = append(patterns, p)
	}
	w.Gate.Ceilings.Set([]egress.SpanBudget{{Name: "budgets[0]", Hosts: patterns, Up: up, Per: time.Hour}})
}

// TestHeadsAreWithinABudget sends small requests until one is refused: what they carry in fields and paths counts. Other hosts
// are not concerned.
func TestHeadsAreWithinABudget(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		within(t, w.world, 20_000, "allowed.test")
		var arrived atomic.Int64
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { arrived.Add(int64(len(r.Header.Get("X-Data")))) }, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		passed := 0
		for ; passed < 200; passed++ {
			r := ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil, "X-Data: "+strings.Repeat("d", 900))
			if r.StatusCode != 200 {
				r.refused(t, 429, policy.ByteBudget)
				break
			}
		}
		if passed < 10 || passed > 22 || arrived.Load() > 20_000 {
			t.Errorf("%d requests passed, with %d bytes of data", passed, arrived.Load())
		}
		other := w.visitor(t, overH2, "other.test", o.port)
		if r := ask(t, other, "GET", o.url("other.test", "/"), nil, "X-Data: x"); r.StatusCode != 200 {
			t.Errorf("another host: %s", r.all())
		}
		denied := w.recorded(t, func(r record.Record) bool {
			return r.Kind == record.KindRequest && r.Decision.Class == string(policy.ByteBudget) || r.Outcome == record.Outcome(policy.ByteBudget)
		})
		if denied.Decision != nil && denied.Decision.Rule != "budgets[0]" {
			t.Errorf("recorded %+v", denied.Decision)
		}
	})
}

// TestAnnouncedBytesAreWithinABudget: a request that announces more than is left is refused before it is told to go on, and many
// at once together send no more than the budget.
func TestAnnouncedBytesAreWithinABudget(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		within(t, w.world, 100_000, "allowed.test")
		var arrived atomic.Int64
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			arrived.Add(n)
		}, nil)
		if !overH2 {
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideRequest("POST", "allowed.test", o.port, "/public/x", "Content-Length: 100001", "Expect: 100-continue"))
			if got := c.rest(); !strings.HasPrefix(got, "HTTP/1.1 429 ") {
				t.Errorf("answered %q", got)
			}
		}
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		done := make(chan int)
		for range 8 {
			go func() {
				r, err := http.NewRequestWithContext(t.Context(), "POST", o.url("allowed.test", "/public/x"), strings.NewReader(strings.Repeat("x", 40_000)))
				if err != nil {
					done <- 0
					return
				}
				resp, err := rt.RoundTrip(r)
				if err != nil {
					done <- 0
					return
				}
				resp.Body.Close()
				done <- resp.StatusCode
			}()
		}
		passed := 0
		for range 8 {
			if <-done == 200 {
				passed++
			}
		}
		awaitDials(rt)
		if passed > 2 || arrived.Load() > 100_000 {
			t.Errorf("%d requests passed, %d bytes arrived", passed, arrived.Load())
		}
	})
}

// TestATunnelIsWithinABudget: an opaque tunnel ends at the budget, in small pieces and in large ones, and the next is refused.
func TestATunnelIsWithinABudget(t *testing.T) {
	for _, piece := range []int{100, 200_000} {
		t.Run(fmt.Sprint(piece), func(t *testing.T) {
			w := newWorld(t, "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow:\n  - {host: \"allowed.test:*\", tls: any}\n", nil)
			within(t, w, 500_000, "allowed.test")
			o := newTill(t)
			for range 3 { // of which the second ends early and the third is refused
				c := w.dial(t).send(connectTo("allowed.test", o.port))
				line, _ := c.in.ReadString('\n')
				if !strings.Contains(line, " 200 ") {
					continue
				}
				for range 300_000 / piece {
					if _, err := io.WriteString(c, strings.Repeat("x", piece)); err != nil {
						break
					}
				}
				c.Close()
				<-o.gone
			}
			if got := o.got.Load(); got > 500_000 || got < 300_000 {
				t.Errorf("%d bytes arrived", got)
			}
		})
	}
}
