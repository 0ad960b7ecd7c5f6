package admin

import (
	"bytes"
	"net/http"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
)

// Metrics writes the text format of Prometheus, version 0.0.4. Labels hold values of the operator's
// configuration and constants, and never text chosen by a sandbox.
type Metrics struct {
	b    bytes.Buffer
	name string
}

// Types of metric families.
const (
	Counter = "counter"
	Gauge   = "gauge"
)

// Family begins a family. Its samples follow.
func (m *Metrics) Family(name, kind, help string) {
	m.name = name
	m.b.WriteString("# HELP " + name + " " + strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help) + "\n")
	m.b.WriteString("# TYPE " + name + " " + kind + "\n")
}

// Sample writes a value of the current family, with alternating label names and values.
func (m *Metrics) Sample(value float64, labels ...string) { m.sample(m.name, value, labels) }

func (m *Metrics) sample(name string, value float64, labels []string) {
	m.b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		m.b.WriteByte("{,"[min(i, 1)])
		m.b.WriteString(labels[i] + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(labels[i+1], "?")) + `"`)
	}
	if len(labels) > 1 {
		m.b.WriteByte('}')
	}
	m.b.WriteByte(' ')
	m.b.Write(strconv.AppendFloat(m.b.AvailableBuffer(), value, 'g', -1, 64))
	m.b.WriteByte('\n')
}

// Only writes a family with a single sample.
func (m *Metrics) Only(name, kind, help string, value float64) {
	m.Family(name, kind, help)
	m.Sample(value)
}

// Histogram writes a histogram in seconds.
func (m *Metrics) Histogram(name, help string, h egress.Histogram) {
	m.Family(name, "histogram", help)
	for i, bound := range h.Bounds {
		m.sample(name+"_bucket", float64(h.Below[i]), []string{"le", strconv.FormatFloat(bound.Seconds(), 'g', -1, 64)})
	}
	m.sample(name+"_bucket", float64(h.Count), []string{"le", "+Inf"})
	m.sample(name+"_sum", h.Sum.Seconds(), nil)
	m.sample(name+"_count", float64(h.Count), nil)
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	var m Metrics
	s.gate(&m)
	s.log(&m)
	if s.Collect != nil {
		s.Collect(&m)
	}
	m.process(time.Now())
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.b.Bytes())
}

func (s *Server) gate(m *Metrics) {
	f := s.Gate.Records.Figures()
	m.Family("egressd_decisions_total", Counter, "Decisions that were recorded, by way in, action and class of reason. A class is empty where it was allowed.")
	for _, d := range f.Decisions {
		m.Sample(float64(d.Count), "via", d.Via, "action", d.Action, "class", d.Class)
	}
	m.Family("egressd_requests_total", Counter, "Requests, each counted once: those that have ended, those that were refused, and with via=dns the names that no connection followed within a minute.")
	for _, d := range f.Requests {
		m.Sample(float64(d.Count), "via", d.Via, "action", d.Action, "class", d.Class)
	}
	m.Only("egressd_flows_open", Gauge, "Flows that are open.", float64(f.Open))
	m.Only("egressd_flows_ended_total", Counter, "Flows that have ended.", float64(f.Ended))
	m.Family("egressd_flows_failed_total", Counter, "Flows that ended for a reason that has a class: by the network, or a refusal.")
	for _, d := range f.Failed {
		m.Sample(float64(d.Count), "class", d.Class)
	}
	m.Family("egressd_bytes_total", Counter, "Payload bytes, up to upstreams and down to clients, also of flows that are open.")
	m.Sample(float64(f.Up), "direction", "up")
	m.Sample(float64(f.Down), "direction", "down")
	m.Only("egressd_lookups_total", Counter, "Names that were not cached and had to be asked for, for flows.", float64(f.Lookups))
	m.Histogram("egressd_decide_seconds", "Time that the policy took for each decision: about a name, its addresses, the first bytes, a request.", f.Decided)
	m.Histogram("egressd_connect_seconds", "Time from the start of a flow until its upstream is connected: decisions, name, record and TCP.", f.Connected)
	m.Histogram("egressd_flow_seconds", "Time from the start of a flow to its end.", f.Lasted)
}

func (s *Server) log(m *Metrics) {
	l := s.Log.State()
	available := 1.0
	if l.Err != nil {
		available = 0
	}
	m.Only("egressd_log_available", Gauge, "1 while the audit log admits records; while it does not, nothing passes.", available)
	m.Only("egressd_log_records_total", Counter, "Records of the audit log, also of earlier processes.", float64(l.Written))
	m.Only("egressd_log_durable_records_total", Counter, "Records that are synced.", float64(l.Durable))
	m.Only("egressd_log_signed_records_total", Counter, "Records that the newest durable checkpoint is for.", float64(l.Signed))
	m.Only("egressd_log_refused_records_total", Counter, "Records that could not be written.", float64(l.Refused))
}

// process writes the usual metrics of the process and of Go. It leaves out values that the kernel does not
// show.
func (m *Metrics) process(now time.Time) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err == nil {
		cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano())
		m.Only("process_cpu_seconds_total", Counter, "CPU time, of user and kernel.", cpu.Seconds())
	}
	if f := statFields(); f != nil {
		m.Only("process_virtual_memory_bytes", Gauge, "Virtual memory.", f(23))
		m.Only("process_resident_memory_bytes", Gauge, "Resident memory.", f(24)*float64(os.Getpagesize()))
		if age, ok := ageOf(f(22)); ok {
			m.Only("process_start_time_seconds", Gauge, "Unix time at which the process began.", float64(now.Add(-age).UnixMilli())/1000)
		}
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		m.Only("process_open_fds", Gauge, "Open file descriptors.", float64(len(open)-1)) // minus the descriptor of the folder itself
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil {
		m.Only("process_max_fds", Gauge, "File descriptors that may be open.", float64(files.Cur))
	}
	m.Family("go_info", Gauge, "The version of Go that it was built with.")
	m.Sample(1, "version", runtime.Version())
	m.Only("go_goroutines", Gauge, "Goroutines.", float64(runtime.NumGoroutine()))
	all := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(all)
	m.Only("go_memstats_heap_alloc_bytes", Gauge, "Memory of objects that are in use, or not swept yet.", float64(all[0].Value.Uint64()))
	m.Only("go_memstats_sys_bytes", Gauge, "Memory that the runtime has mapped.", float64(all[1].Value.Uint64()))
	m.Only("go_gc_cycles_total", Counter, "Collections.", float64(all[2].Value.Uint64()))
	m.Only("go_memstats_alloc_bytes_total", Counter, "Memory that was allocated for objects.", float64(all[3].Value.Uint64()))
}

// statFields reads the numbers of /proc/self/stat, counted from 1 as in proc(5).
func statFields() func(n int) float64 {
	text, err := os.ReadFile("/proc/self/stat")
	i := bytes.LastIndexByte(text, ')') // the program name may contain any character
	if err != nil || i < 0 {
		return nil
	}
	fields := strings.Fields(string(text[i+1:]))
	if len(fields) < 23 {
		return nil
	}
	return func(n int) float64 {
		x, _ := strconv.ParseFloat(fields[n-3], 64)
		return x
	}
}

// ageOf returns the time since began, which is in ticks since the system start. The kernel always reports
// ticks of 10 ms.
func ageOf(began float64) (time.Duration, bool) {
	text, err := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(text), " ")
	up, bad := strconv.ParseFloat(first, 64)
	if err != nil || bad != nil {
		return 0, false
	}
	return time.Duration((up - began/100) * float64(time.Second)), true
}
