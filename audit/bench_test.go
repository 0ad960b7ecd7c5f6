package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A record of a usual length: what egress writes for a tunnel that opens.
var usual = []byte(`{"kind":"open","flow":"01KB6ZQ4SZ","sandbox":"ci","via":"connect","src":"127.0.0.1:46744",` +
	`"dst":{"host":"api.anthropic.com","port":443,"addrs":["160.79.104.10"],"addr":"160.79.104.10"},` +
	`"tls":{"sni":"api.anthropic.com","alpn":["h2","http/1.1"],"inspected":false},` +
	`"decision":{"action":"allow","rule":"model-api","layer":"user","policy":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}`)

func benchmarkLog(b *testing.B, o Options) *Log {
	l, err := Create(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(usual)))
	b.ReportAllocs()
	return l
}

// reportCPU adds what the process spent, in the kernel too, to the figures.
func reportCPU(b *testing.B) func() {
	before := processCPU(b)
	return func() {
		b.ReportMetric(float64(processCPU(b)-before)/float64(b.N), "cpu-ns/op")
	}
}

func processCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkAppend(b *testing.B) {
	l := benchmarkLog(b, Options{})
	defer l.Close()
	defer reportCPU(b)()
	for b.Loop() {
		if _, err := l.Append(usual); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendParallel(b *testing.B) {
	l := benchmarkLog(b, Options{})
	defer l.Close()
	defer reportCPU(b)()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := l.Append(usual); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkAppendDurable is 16 goroutines that wait for every record, as
// connections wait before their first byte.
func BenchmarkAppendDurable(b *testing.B) {
	l := benchmarkLog(b, Options{})
	defer l.Close()
	defer reportCPU(b)()
	ctx := context.Background()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			seq, err := l.Append(usual)
			if err == nil {
				err = l.Wait(ctx, seq)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkAppendCallback is one event loop with 64 records under way.
func BenchmarkAppendCallback(b *testing.B) {
	l := benchmarkLog(b, Options{})
	defer l.Close()
	defer reportCPU(b)()
	free := make(chan struct{}, 64)
	var all sync.WaitGroup
	for b.Loop() {
		free <- struct{}{}
		seq, err := l.Append(usual)
		if err != nil {
			b.Fatal(err)
		}
		all.Add(1)
		l.Durable(seq, func(error) { <-free; all.Done() })
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkOpen is one record of a last segment that is checked at the start.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	l, err := Create(dir, Options{})
	if err != nil {
		b.Fatal(err)
	}
	const records = 20000
	for range records {
		if _, err := l.Append(usual); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(records * int64(len(usual)))
	for b.Loop() {
		l, err := Open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpenBrief opens a log that has so many segments, as each egressd run does.
func BenchmarkOpenBrief(b *testing.B) {
	for _, segments := range []int{1, 300} {
		b.Run(fmt.Sprint(segments, " segments"), func(b *testing.B) {
			o := Options{Keys: filepath.Join(b.TempDir(), "keys"), SegmentBytes: 1, Brief: true}
			dir := filepath.Join(b.TempDir(), "log")
			l, err := Create(dir, o)
			for i := 0; err == nil && i < segments; i++ {
				_, err = l.Append([]byte(`{"kind":"run"}`))
			}
			if err = errors.Join(err, l.Close()); err != nil {
				b.Fatal(err)
			}
			o.SegmentBytes = 1 << 20
			for b.Loop() {
				if l, err = Open(dir, o); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// coldVariable names the folder in which a process measures one start.
const coldVariable = "AUDIT_TEST_COLD"

// BenchmarkColdRun does what one egressd run does with its log and with the index, each
// time in a process of its own: what is made once in a process counts every time.
func BenchmarkColdRun(b *testing.B) {
	if dir := os.Getenv(coldVariable); dir != "" {
		before := processCPU(b)
		if err := coldRun(dir); err != nil {
			b.Fatal(err)
		}
		fmt.Printf("cold %d\n", processCPU(b)-before)
		return
	}
	dir := b.TempDir()
	l, err := Create(filepath.Join(dir, "index"), Options{Brief: true})
	if err := errors.Join(err, l.Close()); err != nil {
		b.Fatal(err)
	}
	var all []float64
	for b.Loop() {
		child := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkColdRun$", "-test.benchtime=1x")
		child.Env = append(os.Environ(), coldVariable+"="+dir)
		out, err := child.Output()
		var spent float64
		if at := bytes.Index(out, []byte("cold ")); err == nil && at >= 0 {
			_, err = fmt.Sscanf(string(out[at:]), "cold %g", &spent)
		}
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		all = append(all, spent)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "median-cpu-ns/run")
}

func coldRun(dir string) error {
	index, err := Open(filepath.Join(dir, "index"), Options{Brief: true})
	if err != nil {
		return err
	}
	run, err := Create(filepath.Join(dir, fmt.Sprint(os.Getpid())), Options{Ephemeral: true})
	if err != nil {
		return err
	}
	_, first := run.Append(usual)
	_, key := run.Origin()
	_, second := index.Append(fmt.Appendf(nil, `{"kind":"run","key":"%s"}`, key))
	third := run.Close()
	_, fourth := index.Append([]byte(`{"kind":"run-end"}`))
	return errors.Join(first, second, third, fourth, index.Close())
}
