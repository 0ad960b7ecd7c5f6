package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/record"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestReadyNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	var why []string
	w.Missing = func() []string { return why }
	if status, text := w.ask(t, "GET", "/readyz", "", nil); status != 200 || text != "{\"ready\":true}\n" {
		t.Errorf("%d %s", status, text)
	}
	why = []string{"127.0.0.1:3128 is not served"}
	if status, text := w.ask(t, "GET", "/readyz", "", nil); status != 503 || !strings.Contains(text, why[0]) {
		t.Errorf("with a listener lost: %d %s", status, text)
	}
	why = nil
	w.Log.Close()
	if status, text := w.ask(t, "GET", "/readyz", "", nil); status != 503 || !strings.Contains(text, "admits no records") {
		t.Errorf("without a log: %d %s", status, text)
	}
	if status, _ := w.ask(t, "GET", "/healthz", "", nil); status != 200 {
		t.Errorf("it lives, and answers %d", status)
	}
}

func TestTheLatencyOfDecisions(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	const none = `{"count":0,"half_ms":0,"most_95_ms":0,"most_99_ms":0}`
	if status, text := w.ask(t, "GET", "/v1/latency", "", nil); status != 200 || text != `{"decided":`+none+`,"connected":`+none+"}\n" {
		t.Errorf("%d %s", status, text)
	}
	w.open(t, "93.184.216.34:443").Close(egress.End{})
	var l Latency
	if _, text := w.ask(t, "GET", "/v1/latency", "", nil); json.Unmarshal([]byte(text), &l) != nil || l.Decided.Count == 0 || l.Decided.Half <= 0 || l.Connected.Count > 0 {
		t.Errorf("after a flow that was not connected: %s", text)
	}
	if _, text := w.ask(t, "GET", "/metrics", "", nil); !strings.Contains(text, "egressd_decide_seconds_count "+strconv.FormatInt(l.Decided.Count, 10)+"\n") {
		t.Errorf("metrics do not agree with %+v", l)
	}
}

func TestFlowsAreListedByPage(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	var ids []string
	for range 7 {
		f := w.open(t, "93.184.216.34:443")
		defer f.Close(egress.End{})
		ids = append(ids, f.ID().String())
	}
	var got []string
	pages := 0
	for after := ""; ; pages++ {
		var p Page
		status, text := w.ask(t, "GET", "/v1/flows?limit=3&after="+after, "", nil)
		if err := json.Unmarshal([]byte(text), &p); err != nil || status != 200 || p.Open != 7 {
			t.Fatalf("%d %s %v", status, text, err)
		}
		for _, f := range p.Flows {
			if f.Host != "93.184.216.34" || f.Port != 443 || f.Sandbox != "default" || f.Rule != "test" || f.Began.IsZero() {
				t.Errorf("%+v", f)
			}
			got = append(got, f.ID)
		}
		if after = p.Next; after == "" {
			break
		}
	}
	if !slices.Equal(got, ids) || pages != 2 {
		t.Errorf("%q on %d pages, want %q on 3", got, pages+1, ids)
	}
	for _, q := range []string{"limit=0", "limit=1001", "limit=x", "after=x", "after=01KB6ZQ4SU"} {
		if status, text := w.ask(t, "GET", "/v1/flows?"+q, "", nil); status != 400 {
			t.Errorf("%s: %d %s", q, status, text)
		}
	}
}

func TestAFlowIsCutAndThatIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	f, other := w.open(t, "93.184.216.34:443"), w.open(t, "93.184.216.35:443")
	defer other.Close(egress.End{})
	id := f.ID().String()
	if status, text := w.ask(t, "DELETE", "/v1/flows/"+id, "", nil); status != 200 || !strings.Contains(text, id) {
		t.Fatalf("%d %s", status, text)
	}
	if !f.WasCut() || other.WasCut() {
		t.Errorf("cut: %t; the other: %t", f.WasCut(), other.WasCut())
	}
	f.Close(egress.End{Outcome: "closed"})
	if ends := w.records(t, record.KindClose); len(ends) != 1 || ends[0].Outcome != "cut" {
		t.Errorf("the end is %+v", ends)
	}
	asked := w.records(t, record.KindAdmin)
	if len(asked) != 1 || !strings.HasPrefix(asked[0].Note, "cut flow "+id+", asked by the token, from 127.0.0.1:") || asked[0].Src == "" {
		t.Errorf("recorded %+v", asked)
	}
	for _, gone := range []string{id, "01KB6ZQ4SZ", "x", "..", "01kb6zq4sz"} {
		if status, text := w.ask(t, "DELETE", "/v1/flows/"+gone, "", nil); status == 200 {
			t.Errorf("%s was cut: %s", gone, text)
		}
	}
}

func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	w := newWorld(t)
	reloads := 0
	w.Reload = func(context.Context, string) (any, error) { reloads++; return nil, nil }
	w.listen(t)
	f := w.open(t, "93.184.216.34:443")
	defer f.Close(egress.End{})
	w.Log.Close()
	if status, text := w.ask(t, "DELETE", "/v1/flows/"+f.ID().String(), "", nil); status != 503 || f.WasCut() {
		t.Errorf("%d %s, cut %t", status, text, f.WasCut())
	}
	if status, text := w.ask(t, "POST", "/v1/reload", "", nil); status != 503 || reloads != 0 {
		t.Errorf("%d %s, reloaded %d times", status, text, reloads)
	}
}

func TestAReloadSaysWhatCameOfIt(t *testing.T) {
	w := newWorld(t)
	var failure error
	w.Reload = func(_ context.Context, why string) (any, error) {
		if !strings.HasPrefix(why, "asked by the token, from 127.0.0.1:") {
			t.Errorf("asked: %q", why)
		}
		return map[string]bool{"reloaded": true}, failure
	}
	w.listen(t)
	if status, text := w.ask(t, "POST", "/v1/reload", "", nil); status != 200 || text != "{\"reloaded\":true}\n" {
		t.Errorf("%d %s", status, text)
	}
	failure = errors.New("line 3 is wrong")
	if status, text := w.ask(t, "POST", "/v1/reload", "", nil); status != 422 || !strings.Contains(text, "line 3 is wrong") {
		t.Errorf("%d %s", status, text)
	}
	if asked := w.records(t, record.KindAdmin); len(asked) != 2 {
		t.Errorf("recorded %+v", asked)
	}
}

func TestQuestionsAreReadStrictly(t *testing.T) {
	w := newWorld(t)
	w.Explain = func(q ExplainRequest) (any, error) {
		if q.Request == "" {
			return nil, errors.New("nothing is asked")
		}
		return q, nil
	}
	w.listen(t)
	const kind = "application/json"
	for _, row := range []struct {
		kind, body string
		status     int
	}{
		{kind, `{"request":"example.com","sandbox":"ci"}`, 200},
		{kind + "; charset=utf-8", `{"request":"example.com"}`, 200},
		{"text/plain", `{"request":"example.com"}`, 415},
		{"", `{"request":"example.com"}`, 415},
		{kind, `{}`, 400},
		{kind, `{"request":"example.com","verdict":"allow"}`, 400},
		{kind, `{"request":"example.com"}{}`, 400},
		{kind, `{"request":`, 400},
		{kind, `{"request":"` + strings.Repeat("a", bodyMost) + `"}`, 413},
	} {
		status, text := w.ask(t, "POST", "/v1/explain", row.body, func(r *http.Request) { r.Header.Set("Content-Type", row.kind) })
		if status != row.status {
			t.Errorf("%s %.40s: %d %.80s, want %d", row.kind, row.body, status, text, row.status)
		}
	}
}

// TestMetricsAreWellFormedAndHoldNothingOfASandbox lets Prometheus's own linter judge.
func TestMetricsAreWellFormedAndHoldNothingOfASandbox(t *testing.T) {
	w := newWorld(t)
	w.Collect = func(m *Metrics) {
		m.Family("egressd_sink_behind_records", Gauge, "A \\ and\na line.")
		m.Sample(3, "sink", "a\"b\\c\nd\xff")
	}
	w.listen(t)
	w.open(t, "93.184.216.34:443").Close(egress.End{Up: 3, Outcome: "network-refused"})
	defer w.open(t, "93.184.216.34:443").Close(egress.End{})
	for _, name := range []string{"secret-data-1.evil.test:22", "secret-data-2.evil.test:22"} {
		w.open(t, name)
	}
	status, text := w.ask(t, "GET", "/metrics", "", nil)
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, line := range []string{
		`egressd_decisions_total{via="connect",action="deny",class="rule-deny"} 2`,
		`egressd_decisions_total{via="connect",action="allow",class=""} 2`,
		`egressd_flows_open 1`,
		`egressd_flows_ended_total 1`,
		`egressd_flows_failed_total{class="network-refused"} 1`,
		`egressd_flow_seconds_count 1`,
		`egressd_log_available 1`,
		`egressd_sink_behind_records{sink="a\"b\\c\nd?"} 3`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, "evil") {
		t.Error("a name that a sandbox chose is in them")
	}
}

// TestAReloadThatCannotBeDoneIsNotThePolicysFault: nothing in it has to be corrected.
func TestAReloadThatCannotBeDoneIsNotThePolicysFault(t *testing.T) {
	w := newWorld(t)
	w.listen(t)
	var err error
	w.Reload = func(context.Context, string) (any, error) { return nil, err }
	for _, row := range []struct {
		err    error
		status int
		hint   bool // to correct the policy
	}{
		{errors.New("line 3: no"), 422, true},
		{hint.Failed(errors.New("the listeners changed"), "restart egressd serve"), 422, false},
		{&Unavailable{http.StatusServiceUnavailable, "egressd is stopping", ""}, 503, false},
		{&Unavailable{http.StatusGatewayTimeout, "the reload goes on", "egressd status"}, 504, false},
	} {
		err = row.err
		status, text := w.ask(t, "POST", "/v1/reload", "", nil)
		if status != row.status || !strings.Contains(text, err.Error()) || strings.Contains(text, "correct it") != row.hint || status == 422 && !row.hint && !strings.Contains(text, `"restart egressd serve; what was in force still is"`) {
			t.Errorf("%v: %d %s", err, status, text)
		}
	}
}
