package jailinit

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// wakerLooks is the time between two looks at a stopped program.
const wakerLooks = 50 * time.Millisecond

// wake continues egressd, which has stopped with its program, when the program runs again or has ended: a process inside
// may have continued it. Egressd kills this process when it goes on.
func wake(egressd, program string) {
	pid, err := strconv.Atoi(egressd)
	if err != nil {
		os.Exit(exitSetup)
	}
	for ; os.Getppid() == pid; time.Sleep(wakerLooks) {
		if !IsStopped(program) {
			_ = syscall.Kill(pid, syscall.SIGCONT) // each time, since it may not have stopped yet
		}
	}
}

// IsStopped reports whether the process of a number is stopped by a signal.
func IsStopped(pid string) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	state := bytes.LastIndex(text, []byte(") ")) + 2 // behind the name, which may hold anything
	return state >= 2 && state < len(text) && text[state] == 'T'
}
