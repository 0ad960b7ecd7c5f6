package jail

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pause looks at all processes until passesStill passes have found nothing more, or for as long as pauseMost: one pass may miss a process
// that ends while /proc is read. A process in an uninterruptible sleep is waited for as long as sleepMost: vfork(2) has a
// parent sleep so until its child goes on.
const (
	passesStill = 6
	pauseMost   = 2 * time.Second
	sleepMost   = 100 * time.Millisecond
	betweenLook = 200 * time.Microsecond // while some have still to stop
)

// Pause stops the processes of the jail that run, parents before their children, so that no shell sees a child stop. It
// returns a function that continues them. all is false if some may run on: a process that starts another one and ends may do so
// sooner than Pause sees it. Without a PID namespace, Pause misses descendants that have lost their parents.
func (j *Jail) Pause() (resume func(), all bool) {
	var stopped []int
	rest := map[int]bool{} // those of stopped that have stopped
	still := 0             // passes that have found nothing more
	for begun := time.Now(); !all && time.Since(begun) < pauseMost; all = still == passesStill {
		still++
		known := j.processes()
		if j.hasOthers(known) {
			still = 0
		}
		awaited := false
		for _, p := range known {
			if slices.Contains(stopped, p.pid) {
				// On a busy machine it may be in fork(2) still, and its child does not get the signal.
				rest[p.pid] = rest[p.pid] || p.rests(time.Since(begun) > sleepMost)
				awaited = awaited || !rest[p.pid]
				continue
			}
			if p.stopped {
				continue
			}
			switch syscall.Kill(p.pid, syscall.SIGSTOP) {
			case nil:
				stopped, still = append(stopped, p.pid), 0
			case syscall.ESRCH: // it has ended, and may have started another one
				still = 0
			}
		}
		if awaited {
			still = 0
			pause := unix.NsecToTimespec(int64(betweenLook))
			_ = unix.Nanosleep(&pause, nil)
		}
	}
	return func() {
		for _, pid := range slices.Backward(stopped) {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}, all
}

// rests reports whether no thread of a process that was told to stop can run on. One that sleeps in the kernel counts as such
// if asleep says so.
func (p process) rests(asleep bool) bool {
	folder := "/proc/" + strconv.Itoa(p.pid) + "/task/"
	threads, _ := os.ReadDir(folder)
	for _, t := range threads {
		text, err := os.ReadFile(folder + t.Name() + "/stat")
		state := bytes.LastIndex(text, []byte(") ")) + 2 // behind the name, which may hold anything
		if err != nil || state < 2 || state >= len(text) {
			continue // it has ended
		}
		if s := text[state]; s != 'T' && s != 't' && s != 'Z' && s != 'X' && (s != 'D' || !asleep) {
			return false
		}
	}
	return true
}

// hasOthers reports whether a process of the jail has a child that is not known: it began, or has ended, since the others were
// looked for. A child that has lost its parent is one of the reaper's, or of another known process.
func (j *Jail) hasOthers(known []process) bool {
	pids := map[int]bool{}
	for _, p := range known {
		pids[p.pid] = true
	}
	isNew := func(child int) bool { return !pids[child] }
	return slices.ContainsFunc(append(known, process{pid: j.reaper}), func(p process) bool { return slices.ContainsFunc(childrenOf(p.pid), isNew) }) ||
		slices.ContainsFunc(j.siblings(), isNew)
}

// siblings returns processes of the jail whose parent is this process, but for the program: a program that is a child of this process can
// make more of its children (CLONE_PARENT).
func (j *Jail) siblings() []int {
	others := slices.DeleteFunc(childrenOf(os.Getpid()), func(pid int) bool { return pid == j.pid || pid == j.reaper })
	return slices.DeleteFunc(others, func(pid int) bool { return depth(pid) <= depth(os.Getpid()) })
}

// depth returns in how many PID namespaces a process is, of those that /proc has.
func depth(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	_, rest, _ := bytes.Cut(text, []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return len(bytes.Fields(line))
}

func childrenOf(pid int) (all []int) {
	folder := "/proc/" + strconv.Itoa(pid) + "/task/"
	threads, _ := os.ReadDir(folder) // none of a process that has ended
	for _, t := range threads {
		text, _ := os.ReadFile(folder + t.Name() + "/children")
		for _, field := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// Holds reports whether a process is in the jail.
func (j *Jail) Holds(pid int) bool {
	return slices.ContainsFunc(j.processes(), func(p process) bool { return p.pid == pid })
}

// LostReaper reports whether the reaper has begun to end, before KillLeft or TakeDown ended it. Then the kernel has killed the
// program with it.
func (j *Jail) LostReaper() bool {
	if j.reaper == 0 {
		return false
	}
	argv, _ := os.ReadFile("/proc/" + strconv.Itoa(j.reaper) + "/cmdline") // empty from the beginning of its end
	return len(argv) == 0
}

// A Remnant is a process that the program has left behind.
type Remnant struct {
	PID  int // outside of the jail
	Name string
}

// Left returns the processes that run on after the program has ended. Without a PID namespace, nobody knows them, and it
// returns none.
func (j *Jail) Left() (all []Remnant) {
	if j.reaper == 0 {
		return nil
	}
	if len(childrenOf(j.reaper)) == 0 && len(j.siblings()) == 0 {
		return nil // all that is left has a parent among them
	}
	for _, p := range j.processes() {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/comm")
		if err == nil && !p.dead {
			all = append(all, Remnant{p.pid, strings.TrimSuffix(string(text), "\n")})
		}
	}
	return all
}

// KillLeft kills what the program has left behind, and returns when none of it runs any more. Without a PID namespace, nobody
// knows these processes, and they go on.
func (j *Jail) KillLeft() {
	j.rest.Close()
	if j.reaper == 0 {
		return
	}
	begun, pause := time.Now(), unix.NsecToTimespec(int64(killLooks))
	for looks := 1; time.Since(begun) < killPatience; looks++ {
		if p, ok := processAt(j.reaper); !ok || p.dead { // which the kernel says when all others are dead
			return
		}
		_ = unix.Nanosleep(&pause, nil) // time.Sleep takes a millisecond at least where all goroutines wait
		if looks%64 > 0 {
			continue
		}
		for _, pid := range j.siblings() { // of which there are hardly ever any
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

const (
	killPatience = 10 * time.Second // for a process that hangs in the kernel
	killLooks    = 100 * time.Microsecond
)

type process struct {
	pid, parent int
	stopped     bool // or dead
	dead        bool
}

// processes returns the processes of the jail but for the reaper, parents before their children. It returns the program, its siblings,
// the children of the reaper, and descendants of all these. It waits for siblings that have ended.
func (j *Jail) processes() (all []process) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]process{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		p, ok := processAt(pid)
		switch {
		case !ok:
		case pid == j.pid:
			all = append(all, p)
		default:
			children[p.parent] = append(children[p.parent], p)
		}
	}
	if j.reaper != 0 {
		all = append(all, children[j.reaper]...)
		for _, pid := range j.siblings() {
			if p, ok := processAt(pid); ok && p.dead {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			} else if ok {
				all = append(all, p)
			}
		}
	}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all
}

func processAt(pid int) (p process, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	rest := text[bytes.LastIndex(text, []byte(") "))+2:] // behind the name, which may hold anything
	f := bytes.Fields(rest)
	const parentAt, threadsAt = 1, 17
	if len(f) <= threadsAt {
		return p, false
	}
	parent, err := strconv.Atoi(string(f[parentAt]))
	threads, _ := strconv.Atoi(string(f[threadsAt]))
	dead := (f[0][0] == 'Z' || f[0][0] == 'X') && threads <= 1 // else its first thread alone has ended
	return process{pid, parent, f[0][0] == 'T' || dead, dead}, err == nil
}
