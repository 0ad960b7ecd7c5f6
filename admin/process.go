package admin

import (
	"bytes"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process writes what is customary about a process and about Go. What the kernel does not
// show is left out.
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
		m.Only("process_open_fds", Gauge, "Open file descriptors.", float64(len(open)-1)) // without that of the folder
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

// statFields reads numbers of /proc/self/stat, which proc(5) numbers from 1.
func statFields() func(n int) float64 {
	text, err := os.ReadFile("/proc/self/stat")
	i := bytes.LastIndexByte(text, ')') // the name of the program may hold anything
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

// ageOf is how long ago something began, in ticks after the start of the machine. The
// kernel shows ticks of a hundredth of a second, whatever its own are.
func ageOf(began float64) (time.Duration, bool) {
	text, err := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(text), " ")
	up, bad := strconv.ParseFloat(first, 64)
	if err != nil || bad != nil {
		return 0, false
	}
	return time.Duration((up - began/100) * float64(time.Second)), true
}
