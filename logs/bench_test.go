package logs

import (
	"io"
	"os"
	"testing"

	"github.com/egressd/egressd/audit"
)

// benchLog is a log of n records; set EGRESSD_BENCH_LOG to keep it.
func benchLog(tb testing.TB, n, hosts int) string {
	dir := os.Getenv("EGRESSD_BENCH_LOG")
	if dir == "" {
		dir = tb.TempDir()
	}
	if _, err := os.Stat(dir + "/00000001.log"); err != nil {
		newLogWriter(tb, dir).ordinary(n, hosts)
	}
	return dir
}

func BenchmarkReader(b *testing.B) {
	dir := benchLog(b, 1_000_000, 500)
	for b.Loop() {
		r, err := audit.NewReader(dir, 0)
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for {
			if _, err := r.Next(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
			n++
		}
		r.Close()
		b.ReportMetric(float64(n), "records")
	}
}

func BenchmarkOverview(b *testing.B) {
	dir := benchLog(b, 1_000_000, 500)
	b.ReportAllocs()
	for b.Loop() {
		r, err := audit.NewReader(dir, 0)
		if err != nil {
			b.Fatal(err)
		}
		var o Overview
		if err := ScanDecisions(r, &Filter{}, OutcomeOpen, o.Add); err != nil {
			b.Fatal(err)
		}
		r.Close()
		b.ReportMetric(float64(o.Len()), "groups")
	}
}
