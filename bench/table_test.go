//go:build linux

package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func scenarioNamed(t *testing.T, name string) scenario {
	t.Helper()
	chosen, err := scenariosNamed([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return chosen[0]
}

func counted(ops int64, cpu time.Duration) cell {
	return cell{result: result{Ops: ops, Elapsed: time.Second}, cpu: cpu}
}

func TestARowIsTheMedianOfItsRounds(t *testing.T) {
	bases := []cell{counted(1000, 0), counted(2000, 0), counted(1000, 0)}
	cells := []cell{counted(500, 50*time.Millisecond), counted(500, 100*time.Millisecond), counted(400, 10*time.Millisecond)}
	cells[2].Errors, cells[2].First = 3, "ended"
	r := summariseCells(scenarioNamed(t, "connect"), "squid", cells, bases)
	if r.Value != 500 || *r.Ratio != (ratio{0.4, 0.25, 0.5}) || *r.CPU != 100 || r.Errors != 3 || r.First != "ended" {
		t.Errorf("%+v, ratio %v, CPU %v", r, *r.Ratio, *r.CPU)
	}
}

func TestAPingShowsWhatIsAdded(t *testing.T) {
	base := cell{result: result{P50: 10 * time.Microsecond, Ops: 1}}
	c := cell{result: result{P50: 26 * time.Microsecond, Ops: 1}}
	r := summariseCells(scenarioNamed(t, "ping"), "x", []cell{c}, []cell{base})
	if *r.Added != 16 || r.measured() != "26.0 µs (+16.0)" {
		t.Errorf("added %v, %q", *r.Added, r.measured())
	}
}

func TestBulkCostsSecondsAGigabyte(t *testing.T) {
	c := cell{result: result{Bytes: 4e9, Elapsed: 2 * time.Second}, cpu: time.Second}
	r := summariseCells(scenarioNamed(t, "bulk"), "x", []cell{c}, []cell{c})
	if r.Value != 2 || *r.CPU != 0.25 || r.CPUUnit != "s/GB" {
		t.Errorf("%v %s at %v %s", r.Value, r.Unit, *r.CPU, r.CPUUnit)
	}
}

func TestDirectsKernelMemoryIsTakenFromEveryRound(t *testing.T) {
	got := lessKernel([]cell{{kernel: 10}, {kernel: 12}}, []cell{{kernel: 4}, {kernel: 5}})
	if got[0].kernel != 6 || got[1].kernel != 7 {
		t.Errorf("%v", got)
	}
}

func rowsForTable() []row {
	return []row{
		{Scenario: "connect", Proxy: direct, Value: 41000, Unit: "/s"},
		{Scenario: "connect", Proxy: "squid", Value: 10660, Unit: "/s", Ratio: &ratio{0.26, 0.251, 0.27}, CPU: numberOf(130.4), CPUUnit: "µs"},
		{Scenario: "ping", Proxy: "squid", Value: 46, Unit: "µs", Added: numberOf(36), Ratio: &ratio{4.6, 4.5, 4.7}, CPU: numberOf(12), CPUUnit: "µs", Errors: 2, First: "late"},
		{Scenario: "idle", Proxy: "squid", Value: 31, Unit: "KiB", Kernel: numberOf(6.004)},
		{Scenario: "http", Proxy: "x", Value: number(math.NaN()), Unit: "/s", Reopened: 7},
	}
}

func TestTheTableIsAligned(t *testing.T) {
	var got strings.Builder
	if err := writeTable(&got, rowsForTable()); err != nil {
		t.Fatal(err)
	}
	const want = `
SCENARIO  PROXY   MEASURED                    ÷ DIRECT  MIN–MAX    PROXY CPU  NOTE
connect   direct  41000/s                     –         –          –          
connect   squid   10660/s                     0.26      0.25–0.27  130 µs     
ping      squid   46.0 µs (+36.0)             4.60      4.50–4.70  12.0 µs    ! 2 errors
idle      squid   31.0 own + 6.00 kernel KiB  –         –          –          
http      x       ?/s                         –         –          –          ends every connection
! ping, squid: 2 wrong or failed, the first: late
`
	if got.String() != want[1:] {
		t.Errorf("table is\n%s\nwant%s", got.String(), want)
	}
}

func TestJSONIsOneObjectALine(t *testing.T) {
	var got strings.Builder
	if err := writeJSON(&got, rowsForTable()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(got.String()), "\n")
	if len(lines) != len(rowsForTable()) {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if !strings.Contains(lines[4], `"value":null`) {
		t.Errorf("what is not known is %s", lines[4])
	}
}
