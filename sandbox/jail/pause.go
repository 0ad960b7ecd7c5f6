package jail

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// passesMost bounds how often Pause looks for processes that were started meanwhile.
const passesMost = 8

// Pause stops the processes of the jail that run, parents before their children, so that no shell sees a child stop. It
// returns a function that continues them. Without a PID namespace, Pause misses descendants that have lost their parents.
func (j *Jail) Pause() (resume func()) {
	var stopped []int
	for range passesMost {
		running := 0
		for _, p := range j.processes() {
			if p.stopped || slices.Contains(stopped, p.pid) || syscall.Kill(p.pid, syscall.SIGSTOP) != nil {
				continue
			}
			stopped = append(stopped, p.pid)
			running++
		}
		if running == 0 {
			break
		}
	}
	return func() {
		for _, pid := range slices.Backward(stopped) {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// Holds reports whether a process is in the jail.
func (j *Jail) Holds(pid int) bool {
	return slices.ContainsFunc(j.processes(), func(p process) bool { return p.pid == pid })
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
	number := strconv.Itoa(j.reaper)
	if children, err := os.ReadFile("/proc/" + number + "/task/" + number + "/children"); err == nil && len(children) == 0 {
		return nil // where all that is left has a parent among them
	}
	for _, p := range j.processes() {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/comm")
		if err == nil && !p.dead {
			all = append(all, Remnant{p.pid, strings.TrimSuffix(string(text), "\n")})
		}
	}
	return all
}

type process struct {
	pid, parent int
	stopped     bool // or dead
	dead        bool
}

// processes returns the processes of the jail but for the reaper, parents before their children. All descend from the program,
// or have the reaper for a parent.
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
	if len(f) < 2 {
		return p, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	dead := f[0][0] == 'Z' || f[0][0] == 'X'
	return process{pid, parent, f[0][0] == 'T' || dead, dead}, err == nil
}
