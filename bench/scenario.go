//go:build linux

package main

import (
	"context"
	"time"
)

// A scenario is one thing that is measured: what is done, and which numbers
// of it count.
type scenario struct {
	name    string
	kind    jobKind
	workers int
	inside  bool // measured with proxies that inspect, only
	h2      bool // and with those of them that speak HTTP/2 inside, only

	unit  string             // of value
	value func(cell) float64 // what is compared with direct's
	added bool               // the difference from direct's says more than the ratio

	costUnit string
	cost     func(cell) float64 // CPU of the proxy an operation

	alone func(*bench, context.Context) ([]row, error) // measures it, where it has no proxies
}

// manyClients is how many connections the load generator has at a time where a scenario does not say otherwise.
const manyClients = 16

// A cell is one scenario with one proxy in one round.
type cell struct {
	result
	cpu         time.Duration
	own, kernel float64 // KiB a tunnel, of the idle scenario
}

func scenarios() []scenario {
	return []scenario{
		{name: "connect", kind: connectJob, workers: manyClients, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "tls", kind: tlsJob, workers: manyClients, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "sequential", kind: sequentialJob, workers: 1, unit: "µs", value: medianMicros, costUnit: "µs", cost: microsPerOp},
		{name: "denied", kind: deniedJob, workers: manyClients, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "http", kind: httpJob, workers: manyClients, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "bulk", kind: bulkJob, workers: 1, unit: "GB/s", value: gigabytesPerSecond, costUnit: "s/GB", cost: secondsPerGigabyte},
		{name: "bulk8", kind: bulkJob, workers: 8, unit: "GB/s", value: gigabytesPerSecond, costUnit: "s/GB", cost: secondsPerGigabyte},
		{name: "ping", kind: pingJob, workers: 1, unit: "µs", value: medianMicros, added: true, costUnit: "µs", cost: microsPerOp},
		{name: "inspected-new", kind: inspectedNewJob, workers: manyClients, inside: true, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "inspected-kept", kind: inspectedKeptJob, workers: manyClients, inside: true, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "inspected-h2", kind: inspectedH2Job, workers: manyClients, inside: true, h2: true, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "inspected-names", kind: inspectedNamesJob, workers: manyClients, inside: true, unit: "/s", value: rate, costUnit: "µs", cost: microsPerOp},
		{name: "names", alone: (*bench).measureNames},
		{name: "starts", alone: (*bench).measureStarts},
		{name: "page", alone: (*bench).measurePage},
		{name: "log", alone: (*bench).measureLog},
		{name: "idle", kind: holdJob, workers: 1, unit: "KiB", value: func(c cell) float64 { return c.own }},
	}
}

func rate(c cell) float64 { return float64(c.Ops) / c.Elapsed.Seconds() }

func medianMicros(c cell) float64 { return micros(c.P50) }

func gigabytesPerSecond(c cell) float64 { return gigabytes(c) / c.Elapsed.Seconds() }

func microsPerOp(c cell) float64 { return micros(c.cpu) / float64(c.Ops) }

func secondsPerGigabyte(c cell) float64 { return c.cpu.Seconds() / gigabytes(c) }

func gigabytes(c cell) float64 { return float64(c.Bytes) / 1e9 }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
