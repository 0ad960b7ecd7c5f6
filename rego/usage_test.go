package rego_test

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

func TestUsageIsRead(t *testing.T) {
	for condition, used := range map[string]policy.Usage{
		"input.usage.flows_open == 1":        {FlowsOpen: 1},
		"input.usage.flows_minute == 2":      {FlowsMinute: 2},
		"input.usage.requests_minute == 3":   {RequestsMinute: 3},
		"input.usage.denied_minute == 4":     {DeniedMinute: 4},
		"input.usage.bytes_up == 5000000000": {BytesUp: 5_000_000_000},
		"input.usage.bytes_down == 6":        {BytesDown: 6},
		"input.usage == {\"flows_open\": 1, \"flows_minute\": 2, \"requests_minute\": 3, \"denied_minute\": 4, \"bytes_up\": 5, \"bytes_down\": 6}": {
			FlowsOpen: 1, FlowsMinute: 2, RequestsMinute: 3, DeniedMinute: 4, BytesUp: 5, BytesDown: 6,
		},
	} {
		e := load(t, "package egress\nallow contains {\"rule\": \"r\"} if "+condition)
		if !e.ReadsUsage() {
			t.Errorf("%s: not seen to read usage", condition)
		}
		r := to(t, "a.test:443") // most of it is not known yet: usage is
		if d := evaluate(t, e, r); d.Verdict != policy.Abstain {
			t.Errorf("%s holds without use: %+v", condition, d)
		}
		r.Usage = &used
		for range 2 {
			if d := evaluate(t, e, r); d.Verdict != policy.Allow {
				t.Errorf("%s: %+v", condition, d)
			}
			r.Usage = &used
		}
	}
}

// TestWhatReadsUsageIsNotCached asks twice about one request in two states.
func TestWhatReadsUsageIsNotCached(t *testing.T) {
	e := load(t, `package egress
allow contains {"rule": "a"} if input.destination.host == "a.test"
deny contains {"rule": "enough"} if input.usage.bytes_up > 1000
deny contains {"rule": "big"} if { input.http.method == "POST"; input.usage.requests_minute >= 10 }
`)
	r := to(t, "a.test:443")
	r.Usage = &policy.Usage{BytesUp: 1000}
	if d := evaluate(t, e, r); d.Verdict != policy.Inspect { // while a POST could still be one of few
		t.Errorf("%+v", d)
	}
	r.Usage = &policy.Usage{BytesUp: 1001}
	if d := evaluate(t, e, r); d.Verdict != policy.Deny || d.Rule != "enough" {
		t.Errorf("%+v", d)
	}
	for n, want := range map[int64]policy.Verdict{9: policy.Allow, 10: policy.Deny} {
		r := sends(t, "a.test:443", "POST", "/")
		r.Usage = &policy.Usage{RequestsMinute: n}
		if d := evaluate(t, e, r); d.Verdict != want {
			t.Errorf("after %d requests: %+v", n, d)
		}
	}
}

func TestUsageThatNobodyCountedIsAnError(t *testing.T) {
	e := load(t, "package egress\nallow contains {\"rule\": \"r\"}\ndeny contains {\"rule\": \"d\"} if input.usage.bytes_up > 1")
	r := to(t, "a.test:443")
	r.Usage = nil
	if d, err := e.Evaluate(context.Background(), &r); err == nil || !strings.Contains(err.Error(), "input.usage") {
		t.Errorf("%+v, %v", d, err)
	}
	e = load(t, "package egress\nallow contains {\"rule\": \"r\"}")
	if d := evaluate(t, e, r); e.ReadsUsage() || d.Verdict != policy.Allow {
		t.Errorf("a policy that does not read it: %+v", d)
	}
	if _, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\nallow contains {\"rule\": \"r\"} if input.usage.byte_up > 1")}}, rego.Options{}); err == nil {
		t.Error("a field of usage that does not exist is taken")
	}
}

func TestBudgets(t *testing.T) {
	for _, row := range []struct {
		name, text string
		request    policy.Request
		verdict    policy.Verdict
		most       int64
	}{
		{"of a tunnel", `allow contains {"rule": "r", "max_bytes_up": 1000}`, to(t, "a.test:443"), policy.Allow, 1000},
		{"none", `allow contains {"rule": "r"}`, to(t, "a.test:443"), policy.Allow, 0},
		{"the smaller of two that hold", `allow contains {"rule": "a", "max_bytes_up": 1000}
			allow contains {"rule": "b", "max_bytes_up": 10}`, to(t, "a.test:443"), policy.Allow, 10},
		{"one beside one without", `allow contains {"rule": "a"}
			allow contains {"rule": "b", "max_bytes_up": 10}`, to(t, "a.test:443"), policy.Allow, 10},
		{"one that does not hold", `allow contains {"rule": "a"}
			allow contains {"rule": "b", "max_bytes_up": 10} if input.destination.port == 80`, to(t, "a.test:443"), policy.Allow, 0},
		{"one that depends on the request", `allow contains {"rule": "a"}
			allow contains {"rule": "b", "max_bytes_up": 10} if input.http.method == "POST"`, to(t, "a.test:443"), policy.Inspect, 0},
		{"that one, for a request of it", `allow contains {"rule": "a"}
			allow contains {"rule": "b", "max_bytes_up": 10} if input.http.method == "POST"`, sends(t, "a.test:443", "POST", "/"), policy.Allow, 10},
		{"that one, for another request", `allow contains {"rule": "a"}
			allow contains {"rule": "b", "max_bytes_up": 10} if input.http.method == "POST"`, sends(t, "a.test:443", "GET", "/"), policy.Allow, 0},
		{"one that is computed", `allow contains {"rule": "a", "max_bytes_up": 10 * 1024}`, to(t, "a.test:443"), policy.Allow, 10240},
		{"one in a member that quotes the request", `allow contains {"rule": "a"}
			allow contains {"rule": "b", "reason": input.http.path, "max_bytes_up": 10}`, to(t, "a.test:443"), policy.Inspect, 0},
		{"one of a deny", `allow contains {"rule": "a"}
			deny contains {"rule": "b", "max_bytes_up": 10}`, to(t, "a.test:443"), policy.Deny, 0},
	} {
		d := evaluate(t, load(t, "package egress\n"+row.text), row.request)
		if d.Verdict != row.verdict || d.MaxBytesUp != row.most {
			t.Errorf("%s: %v with %d, want %v with %d", row.name, d.Verdict, d.MaxBytesUp, row.verdict, row.most)
		}
	}
}

func TestAMarkIsThatOfAnyRuleThatHolds(t *testing.T) {
	for text, want := range map[string]bool{
		`allow contains {"rule": "a"}`:                                                     false,
		`allow contains {"rule": "a", "log": true}`:                                        true,
		`allow contains {"rule": "a", "log": false}`:                                       false,
		`deny contains {"rule": "a", "log": true}`:                                         true,
		`ask contains {"rule": "a", "log": true}`:                                          true,
		`deny contains {"rule": "d"}` + "\n" + `allow contains {"rule": "a", "log": true}`: true,
		`allow contains {"rule": "a", "log": true} if input.destination.port == 80` + "\n" + `allow contains {"rule": "b"}`: false,
	} {
		if d := evaluate(t, load(t, "package egress\n"+text), to(t, "a.test:443")); d.Log != want {
			t.Errorf("%s: marked %v", text, d.Log)
		}
	}
}
