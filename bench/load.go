//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// jobKind is what the load generator does with its connections.
type jobKind string

const (
	connectJob    jobKind = "connect"    // open, first flight, close; many at once
	sequentialJob jobKind = "sequential" // the same, one at a time
	deniedJob     jobKind = "denied"
	httpJob       jobKind = "http"
	tlsJob        jobKind = "tls"
	bulkJob       jobKind = "bulk"
	pingJob       jobKind = "ping"
	holdJob       jobKind = "hold"    // open tunnels and keep them
	releaseJob    jobKind = "release" // check that they live, and close them

	inspectedNewJob   jobKind = "inspected-new"
	inspectedKeptJob  jobKind = "inspected-kept"
	inspectedH2Job    jobKind = "inspected-h2"
	inspectedNamesJob jobKind = "inspected-names"
)

// A job is one order to the load process, one JSON object a line.
type job struct {
	Kind    jobKind       `json:"kind"`
	Proxy   int           `json:"proxy"` // port; 0 goes to the origin directly
	Host    string        `json:"host"`  // what the proxy is asked for
	Origins origins       `json:"origins"`
	Hello   []byte        `json:"hello"`
	Roots   []byte        `json:"roots,omitempty"` // PEM, for the inspected kinds: who vouches for what is heard in the tunnel
	Serial  int           `json:"serial"`          // of no other job in this run
	Workers int           `json:"workers"`
	Length  time.Duration `json:"length"`
	Tunnels int           `json:"tunnels,omitempty"` // to hold
}

// A result is what came of a job. An operation counts when its whole answer
// was as expected.
type result struct {
	Ops      int64         `json:"ops"`
	Bytes    int64         `json:"bytes"`
	Elapsed  time.Duration `json:"elapsed"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Errors   int64         `json:"errors"`
	First    string        `json:"first,omitempty"` // the first error
	Reopened int64         `json:"reopened"`        // kept-alive connections that the other side ended
}

// serveJobs reads jobs from in, runs them in order, and writes their results to out.
func serveJobs(in io.Reader, out io.Writer) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	var held []client
	for {
		var j job
		if err := orders.Decode(&j); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a job: %w", err)
		}
		// A blocked system call keeps its processor; there is one for each worker.
		runtime.GOMAXPROCS(j.Workers + 2)
		r, err := j.do(&held)
		if err != nil {
			return fmt.Errorf("job %s: %w", j.Kind, err)
		}
		if err := answers.Encode(r); err != nil {
			return fmt.Errorf("writing a result: %w", err)
		}
	}
}

// do runs the job; held are the tunnels that jobs have left open.
func (j *job) do(held *[]client) (result, error) {
	switch j.Kind {
	case connectJob:
		return j.play(connectScript(j))
	case deniedJob:
		return j.play(deniedScript(j))
	case httpJob:
		return j.play(httpScript(j))
	case sequentialJob:
		return j.work(startConnect), nil
	case pingJob:
		return j.work(startPing), nil
	case tlsJob:
		return j.work(startTLS), nil
	case bulkJob:
		return j.work(startBulk), nil
	case inspectedNewJob:
		return j.work(startInspectedNew), nil
	case inspectedKeptJob:
		return j.work(startInspectedKept), nil
	case inspectedH2Job:
		return j.work(startInspectedH2), nil
	case inspectedNamesJob:
		return j.work(startInspectedNames(new(atomic.Int64))), nil
	case holdJob:
		return j.hold(held), nil
	case releaseJob:
		return release(held), nil
	}
	return result{}, errors.New("unknown kind")
}

// play goes through a script on as many connections as the job has workers.
func (j *job) play(s *script) (result, error) {
	begin := time.Now()
	t, err := play(s, j.Workers, j.Length)
	return summarise([]tally{t}, time.Since(begin)), err
}

// A tally is what one worker counts.
type tally struct {
	ops, bytes, errors, reopened int64
	first                        error
	times                        []uint32 // nanoseconds, of what succeeded
}

// maxErrors ends a worker that gets nowhere.
const maxErrors = 100

// repeat calls do until end.
func (t *tally) repeat(end time.Time, do func() error) {
	for now := time.Now(); now.Before(end) && t.errors < maxErrors; {
		err := do()
		done := time.Now()
		t.note(done.Sub(now), err)
		now = done
	}
}

func (t *tally) note(took time.Duration, err error) {
	if err != nil {
		t.errors++
		t.first = cmp.Or(t.first, err)
		return
	}
	t.ops++
	t.times = append(t.times, uint32(min(took, 1<<32-1)))
}

// work runs the workers side by side for the job's length.
func (j *job) work(start starter) result {
	tallies := make([]tally, j.Workers)
	operations := make([]operation, j.Workers)
	for i := range operations {
		tallies[i].times = make([]uint32, 0, 1<<16)
		var err error
		if operations[i], err = start(j, &tallies[i]); err != nil {
			return result{Errors: 1, First: err.Error()}
		}
		defer operations[i].close()
	}
	begin := time.Now()
	var workers sync.WaitGroup
	for i, o := range operations {
		workers.Go(func() { tallies[i].repeat(begin.Add(j.Length), o.do) })
	}
	workers.Wait()
	return summarise(tallies, time.Since(begin))
}

func summarise(tallies []tally, elapsed time.Duration) result {
	r := result{Elapsed: elapsed}
	var times []uint32
	for _, t := range tallies {
		r.Ops += t.ops
		r.Bytes += t.bytes
		r.Errors += t.errors
		r.Reopened += t.reopened
		if t.first != nil && r.First == "" {
			r.First = t.first.Error()
		}
		times = append(times, t.times...)
	}
	slices.Sort(times)
	r.P50 = time.Duration(percentile(times, 0.50))
	r.P99 = time.Duration(percentile(times, 0.99))
	return r
}

// hold opens tunnels and keeps them.
func (j *job) hold(held *[]client) result {
	s := connectScript(j)
	buf := make([]byte, 1<<14)
	var t tally
	begin := time.Now()
	for range j.Tunnels {
		before := time.Now()
		c, err := s.open(buf)
		if t.note(time.Since(before), err); err == nil {
			*held = append(*held, c)
		}
		if t.errors == maxErrors {
			break
		}
	}
	return summarise([]tally{t}, time.Since(begin))
}

// release sends a byte through every held tunnel before it closes all.
func release(held *[]client) result {
	echo := &step{[]byte{'?'}, exactly('?')}
	buf := make([]byte, 1<<14)
	var t tally
	begin := time.Now()
	for _, c := range *held {
		before := time.Now()
		err := c.do(echo, buf)
		t.note(time.Since(before), err)
	}
	for _, c := range *held {
		c.close()
	}
	*held = nil
	return summarise([]tally{t}, time.Since(begin))
}
