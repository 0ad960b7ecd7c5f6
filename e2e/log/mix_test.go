package log

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// mixVariable says how many requests TestEveryRequestHasOneDecision makes, instead of a
// few hundred.
const mixVariable = "EGRESSD_E2E_MIX"

// The ways in of the mix, each with its way to name what is asked for, so that a record
// can be told from all others.
var mixWays = []struct {
	name  string
	ask   func(m *world.Mix, key string, deny bool) (allowed bool, err error)
	keyOf func(r *record.Record) string // of a record that decides, "" for others
}{
	{"connect", (*world.Mix).Connect, destinationOf("connect", record.KindOpen)},
	{"socks5", (*world.Mix).Socks, destinationOf("socks5", record.KindOpen)},
	{"http", (*world.Mix).Clear, destinationOf("http", record.KindRequest)},
	{"dns", (*world.Mix).Question, func(r *record.Record) string {
		if r.Via != "dns" || r.Kind != record.KindDNS || r.DNS == nil {
			return ""
		}
		return firstLabel(r.DNS.Name)
	}},
	{"h2", (*world.Mix).Inside, func(r *record.Record) string {
		if r.Kind != record.KindRequest || r.HTTP == nil || r.Dst == nil || r.Dst.Host != "allowed.test" {
			return ""
		}
		return strings.TrimPrefix(r.HTTP.Path, "/")
	}},
}

func destinationOf(via string, kind record.Kind) func(*record.Record) string {
	return func(r *record.Record) string {
		if r.Via != via || r.Kind != kind || r.Dst == nil || r.Dst.Host == "allowed.test" {
			return ""
		}
		return firstLabel(r.Dst.Host)
	}
}

func firstLabel(name string) string {
	label, _, _ := strings.Cut(name, ".")
	return label
}

// TestEveryRequestHasOneDecision asks for many things through every listener at once, each
// thing once, half of them denied. Each has one record that decides, and that is what its
// client was told.
func TestEveryRequestHasOneDecision(t *testing.T) {
	world.Covers(t, "AU-02")
	total := 1000
	if text := os.Getenv(mixVariable); text != "" {
		var err error
		if total, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	d := world.Start(t, world.WithNames("version: 1\nallow:\n  - \"*.allowed.test\"\n  - {host: allowed.test, methods: [GET], paths: [\"/**\"]}\n"+
		"tls: {ca_dir: ca, extra_roots: [lab.pem]}\nlimits: {dns_queries_per_second: 1048576, dns_name_bytes: 1073741824}\n"))
	var next atomic.Int64
	told := make([]bool, total)
	var workers sync.WaitGroup
	for range 8 {
		m := &world.Mix{Daemon: d, H2: d.H2Client(t)}
		workers.Go(func() {
			defer m.Close()
			for i := int(next.Add(1)) - 1; i < total; i = int(next.Add(1)) - 1 {
				way, deny := mixWays[i%len(mixWays)], i/len(mixWays)%2 == 1
				allowed, err := way.ask(m, "m"+strconv.Itoa(i), deny)
				if err != nil || allowed == deny {
					t.Errorf("%s %d: allowed %v, to be denied %v: %v", way.name, i, allowed, deny, err)
				}
				told[i] = allowed
			}
		})
	}
	workers.Wait()
	expectOneEach(t, d, told)
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
}

// expectOneEach compares what was told with what is recorded.
func expectOneEach(t *testing.T, d *world.Daemon, told []bool) {
	t.Helper()
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	decisions := make([]int64, len(told))
	flows := map[string]bool{}
	for i := range records {
		r := &records[i]
		for k, way := range mixWays {
			n, err := strconv.Atoi(strings.TrimPrefix(way.keyOf(r), "m"))
			if err != nil || n%len(mixWays) != k {
				continue
			}
			decisions[n] += r.Times()
			if (r.Decision.Action == "allow") != told[n] {
				t.Errorf("%s %d: the client was told %v, and recorded is %+v", way.name, n, told[n], r.Decision)
			}
			if flows[r.Flow] {
				t.Errorf("%s %d: another decision has the flow %s", way.name, n, r.Flow)
			}
			flows[r.Flow] = true
		}
	}
	for n, times := range decisions {
		if times != 1 {
			t.Errorf("%s %d has %d decisions", mixWays[n%len(mixWays)].name, n, times)
		}
	}
}
