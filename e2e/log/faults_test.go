package log

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// faultsVariable has calls of all kinds fail, each at six moments.
const faultsVariable = "EGRESSD_E2E_FAULTS"

// A faulty is an egressd whose log fails, and who uses it. Every destination is used
// once.
type faulty struct {
	*world.Daemon
	serial          atomic.Uint32
	wire            int
	passed, refused []string
	cut             []string // reset after they were answered, as tunnels are when the log fails
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{Daemon: world.NewDaemon(t, "version: 1\nallow: [\"203.0.0.0/16:443\"]\n")}
	f.SetAudit(t, "durability: disk, segment_bytes: 65536")
	var err error
	if f.wire, err = f.World.Wire.Mark(); err != nil {
		t.Fatal(err)
	}
	return f
}

// use asks for one more destination, and reports whether it was opened. A refusal has
// to say that it is the log.
func (f *faulty) use(t *testing.T) bool {
	t.Helper()
	n := f.serial.Add(1)
	host := fmt.Sprintf("203.0.%d.%d", 150+n>>8, n&255)
	c, err := f.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	fmt.Fprintf(c, "CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", host)
	a, err := world.ReadAnswer(bufio.NewReader(c), http.MethodConnect)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		f.cut = append(f.cut, host)
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.Status == http.StatusOK {
		f.passed = append(f.passed, host)
		return true
	}
	if a.Status != http.StatusServiceUnavailable || policy.Class(a.Problem().Class) != policy.AuditUnavailable {
		t.Errorf("the answer is %d %s", a.Status, a.Body)
	}
	f.refused = append(f.refused, host)
	return false
}

// end ends what a test that failed has left.
func (f *faulty) end() {
	if f.Alive() {
		f.Kill()
	}
}

// isRefused waits until egressd lets nothing pass, and sees that it stays so.
func (f *faulty) isRefused(t *testing.T) {
	t.Helper()
	if !world.Eventually(20*time.Second, func() bool { return !f.use(t) }) {
		t.Error("nothing is refused")
	}
	for range 10 {
		if f.use(t) {
			t.Error("something passed")
		}
	}
}

// recovers waits until egressd lets something pass again.
func (f *faulty) recovers(t *testing.T) {
	t.Helper()
	if !world.Eventually(20*time.Second, func() bool { return f.use(t) }) {
		t.Errorf("egressd does not recover:\n%s", f.Output.String())
	}
}

// saysOutage looks for what standard error and the log have to say of an outage that is over:
// what failed, what to do, that it goes on, and a record that begins a segment.
func (f *faulty) saysOutage(t *testing.T) {
	t.Helper()
	for _, want := range []string{"requests get 503 audit-unavailable: ", "egressd tries again by itself\n", "egressd: the audit log can be written again"} {
		if !world.Eventually(20*time.Second, func() bool { return strings.Contains(f.Output.String(), want) }) {
			t.Errorf("egressd does not say %q:\n%s", want, f.Output.String())
		}
	}
	segments, err := audit.Segments(f.Log.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range segments[1:] {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if first, _, _ := strings.Cut(string(text), "\n"); !strings.Contains(first, `"kind":"recovery"`) {
			t.Errorf("%s begins with %s", filepath.Base(path), first)
		}
	}
	if len(segments) < 2 {
		t.Error("the log went on in the segment that failed")
	}
}

// check looks at the wire and at the log when all is over: what passed is recorded,
// and what was refused did not pass.
func (f *faulty) check(t *testing.T, wantCode int) {
	t.Helper()
	if code, said := verifies(t, f.Daemon); code != wantCode {
		t.Errorf("the log is %d, want %d: %s", code, wantCode, said)
	}
	records, err := f.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []string
	for _, r := range records {
		if r.Kind == record.KindOpen && r.Dst != nil && r.Decision != nil && r.Decision.Action == "allow" {
			recorded = append(recorded, r.Dst.Host)
		}
	}
	packets, err := f.World.Wire.Since(f.wire)
	if err != nil {
		t.Fatal(err)
	}
	unsynced := map[string]bool{} // a connection is begun while the record is being synced
	for _, p := range packets {
		host := p.To.Addr().String()
		if !strings.HasPrefix(host, "203.0.") {
			continue
		}
		if slices.Contains(f.refused, host) {
			unsynced[host] = true
		}
		if wantCode == verify.Good && !slices.Contains(recorded, host) {
			t.Errorf("a packet went to %s, and no record says so", host)
		}
	}
	if wantCode != verify.Good && len(unsynced) > 1 { // the sync that failed is the only one
		t.Errorf("%v were refused, and packets went there", slices.Sorted(maps.Keys(unsynced)))
	}
}

// A logFault is what strace makes of the system calls of egressd on its log.
type logFault struct{ calls, effect string }

func (l logFault) String() string { return l.calls + " " + l.effect }

// strace returns the arguments that have the effect on such calls at a moment, or always.
func (l logFault) strace(f *faulty, moment string) []string {
	args := []string{"-f", "-o", filepath.Join(f.Dir, "trace"), "-P", f.Log.Dir, "-P", filepath.Join(f.Log.Dir, "lock")}
	for n := 1; n <= 5; n++ {
		for _, extension := range []string{"log", "ckpt"} {
			args = append(args, "-P", filepath.Join(f.Log.Dir, fmt.Sprintf("%08d.%s", n, extension)))
		}
	}
	return append(args, "-e", "trace="+l.calls, "-e", fmt.Sprintf("inject=%s:%s%s", l.calls, l.effect, moment))
}

func (f *faulty) injected(t *testing.T) bool {
	t.Helper()
	trace, err := os.ReadFile(filepath.Join(f.Dir, "trace"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(trace), "(INJECTED)")
}

// TestSystemCallsOnTheLogFail has system calls on the log fail for a while: nothing
// passes, and egressd goes on by itself.
func TestSystemCallsOnTheLogFail(t *testing.T) {
	world.Covers(t, "AU-15")
	for _, fault := range []logFault{{"write", "error=ENOSPC"}, {"write", "error=EIO"}, {"fdatasync", "error=EIO"}, {"fdatasync,openat", "error=ENOSPC"}} {
		t.Run(fault.String(), func(t *testing.T) {
			f := newFaulty(t)
			t.Cleanup(f.end)
			f.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", f.Config))
			if !f.use(t) {
				t.Fatal("refused before the fault")
			}
			f.while(t, fault, func() { f.isRefused(t) })
			if !f.injected(t) {
				t.Error("no call failed")
			}
			f.recovers(t)
			f.saysOutage(t)
			f.Stop(t)
			f.check(t, verify.Good)
		})
	}
}

// while has calls of egressd fail while do runs.
func (f *faulty) while(t *testing.T, fault logFault, do func()) {
	t.Helper()
	for range 10 {
		if f.attached(t, fault, do) {
			return
		}
	}
	t.Error("strace does not get hold of all threads")
}

// attached attaches strace and does something, but where a thread that was being made
// has got away, which would make its calls as ever.
func (f *faulty) attached(t *testing.T, fault logFault, do func()) bool {
	t.Helper()
	cmd := exec.Command("strace", append(fault.strace(f, ""), "-p", strconv.Itoa(f.Cmd.Process.Pid))...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	if !lines.Scan() || !strings.Contains(lines.Text(), "attached") {
		t.Errorf("strace: %s", lines.Text())
	}
	all := f.traced(t)
	if all {
		do()
	}
	cmd.Process.Signal(syscall.SIGTERM)
	for lines.Scan() {
		continue
	}
	cmd.Wait()
	return all
}

// traced reports whether every thread of egressd is traced.
func (f *faulty) traced(t *testing.T) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", f.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		if status, err := os.ReadFile(path); err == nil && strings.Contains(string(status), "TracerPid:\t0\n") {
			return false
		}
	}
	return len(threads) > 0
}

// TestFaultsFromTheStart has one call of each thread fail, at one of several moments
// from the start on: egressd goes on by itself, or does not start and starts the next
// time. It takes minutes: only with EGRESSD_E2E_FAULTS set. Calls that only a log makes
// that a crash has left, or that retention makes shorter, fail in TestEveryCallFails of
// package audit.
func TestFaultsFromTheStart(t *testing.T) {
	faults, moments := []logFault{{"renameat,renameat2,rename", "error=EIO"}}, []int{1}
	if os.Getenv(faultsVariable) != "" {
		moments = []int{1, 2, 3, 4, 6, 9}
		for _, calls := range []string{"write", "fdatasync", "fsync", "openat", "mkdirat,mkdir", "write,fdatasync,openat", "newfstatat,lstat", "flock"} {
			faults = append(faults, logFault{calls, "error=EIO"}, logFault{calls, "error=ENOSPC"})
		}
	}
	for _, fault := range faults {
		injected, refused := 0, 0
		for _, moment := range moments {
			t.Run(fmt.Sprintf("%s %d", fault, moment), func(t *testing.T) {
				f := newFaulty(t)
				f.startWith(t, fault, fmt.Sprintf(":when=%d", moment))
				if f.injected(t) {
					injected++
				}
				refused += len(f.refused)
			})
		}
		if injected == 0 {
			t.Errorf("%s: no call failed", fault)
		}
		t.Logf("%s: a call failed in %d runs, %d requests were refused", fault, injected, refused)
	}
}

func (f *faulty) startWith(t *testing.T, fault logFault, moment string) {
	t.Helper()
	t.Cleanup(f.end)
	args := append([]string{"-D", "-qq"}, fault.strace(f, moment)...)
	if !f.Begin(t, exec.Command("strace", append(args, world.Egressd.Path(), "serve", "--config", f.Config)...)) {
		if said := f.Output.String(); !strings.Contains(said, "egressd: hint: ") {
			t.Errorf("egressd does not start, and says:\n%s", said)
		}
		f.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", f.Config))
	}
	for range 8 {
		f.use(t)
	}
	f.recovers(t)
	f.Stop(t)
	f.check(t, verify.Good)
}

// TestFaultsOfTheFolder takes from egressd where its log is, while it runs.
func TestFaultsOfTheFolder(t *testing.T) {
	world.Covers(t, "AU-14", "AU-17")
	for name, row := range map[string]struct {
		breaks, mends func(t *testing.T, f *faulty)
		code          int
	}{
		"a full disk": {
			func(t *testing.T, f *faulty) { fillDisk(t, f.Log.Dir) },
			func(t *testing.T, f *faulty) { remove(t, filepath.Join(f.Log.Dir, "ballast")) }, verify.Good,
		},
		"RLIMIT_FSIZE": {
			func(t *testing.T, f *faulty) { f.limitFiles(t, 10) },
			func(t *testing.T, f *faulty) { f.limitFiles(t, unix.RLIM_INFINITY) }, verify.Good,
		},
		"the folder is elsewhere": {
			func(t *testing.T, f *faulty) { rename(t, f.Log.Dir, f.Log.Dir+"2") },
			func(t *testing.T, f *faulty) { rename(t, f.Log.Dir+"2", f.Log.Dir) }, verify.Good,
		},
		"read-only": {
			func(t *testing.T, f *faulty) {
				mount(t, f.Log.Dir, f.Log.Dir, syscall.MS_BIND, syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY)
			},
			func(t *testing.T, f *faulty) { unmount(t, f.Log.Dir) }, verify.Good,
		},
		"the segment is gone": {
			func(t *testing.T, f *faulty) { remove(t, filepath.Join(f.Log.Dir, "00000001.log")) },
			nil, verify.Truncated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t)
			if err := os.Mkdir(f.Log.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if name == "a full disk" {
				mount(t, "tmpfs", f.Log.Dir)
			}
			t.Cleanup(f.end)
			f.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", f.Config))
			for range 3 {
				if !f.use(t) {
					t.Fatalf("refused before the fault:\n%s", f.Output.String())
				}
			}
			row.breaks(t, f)
			f.isRefused(t)
			if row.mends != nil {
				row.mends(t, f)
				f.recovers(t)
				f.saysOutage(t)
			}
			f.Stop(t)
			f.check(t, row.code)
			if !strings.Contains(f.Output.String(), "the audit log admits no records") {
				t.Errorf("egressd says nothing of it:\n%s", f.Output.String())
			}
		})
	}
}

// mount mounts a small tmpfs, or binds a folder with flags, until the test ends.
func mount(t *testing.T, what, at string, flags ...uintptr) {
	t.Helper()
	kind, options := "", ""
	if what == "tmpfs" {
		kind, options, flags = "tmpfs", "size=256k,mode=700", []uintptr{0}
	}
	for _, flag := range flags {
		if err := syscall.Mount(what, at, kind, flag, options); err != nil {
			t.Fatal(err)
		}
	}
	if kind != "" {
		t.Cleanup(func() { syscall.Unmount(at, syscall.MNT_DETACH) })
	}
}

func unmount(t *testing.T, at string) {
	t.Helper()
	if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

// fillDisk writes until there is no room.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// limitFiles bounds the size of the files that egressd writes.
func (f *faulty) limitFiles(t *testing.T, n uint64) {
	t.Helper()
	limit := unix.Rlimit{Cur: n, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(f.Cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		t.Fatal(err)
	}
}
