package index

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/egressd/egressd/logs"
)

// BenchmarkMillion reads the log in EGRESSD_BENCH_LOG, which BenchmarkOverview of package logs makes, and
// asks it questions.
func BenchmarkMillion(b *testing.B) {
	dir := os.Getenv("EGRESSD_BENCH_LOG")
	if dir == "" {
		b.Skip("EGRESSD_BENCH_LOG names no log")
	}
	x := New()
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			p, changed := x.Progress()
			if p.CaughtUp || p.Err != nil {
				cancel()
				return
			}
			<-changed
		}
	}()
	if err := x.Follow(ctx, dir); err != nil {
		b.Fatal(err)
	}
	p, _ := x.Progress()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.Logf("%d rows, %d shapes in %s; heap %d MiB", p.Rows, p.Shapes, time.Since(began), m.HeapInuse>>20)
	for _, words := range []string{"", "verdict:deny", "host:h7.npm.test since:2h", "up:>4k sandbox:ci-1"} {
		f, err := logs.ParseFilter(logs.SplitFilter(words), time.Now())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(words, func(b *testing.B) {
			for b.Loop() {
				x.Sum(context.Background(), f, nil)
			}
		})
	}
}
