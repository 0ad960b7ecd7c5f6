//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// tick is the unit of CPU times in /proc; it is the same on every Linux that
// Go runs on.
const tick = 10 * time.Millisecond

// A stat is what bench reads of /proc/PID/stat (proc(5)).
type stat struct {
	pid, parent int
	waited      int64 // ticks of user and system time of children that were waited for
}

// parseStat reads one line of /proc/PID/stat. The name in it may hold blanks
// and parentheses, so fields are counted from the last parenthesis.
func parseStat(text string) (stat, error) {
	pid, rest, ok := strings.Cut(text, " (")
	end := strings.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return stat{}, errors.New("stat: no command name")
	}
	fields := strings.Fields(rest[end+1:])
	if len(fields) < 15 {
		return stat{}, errors.New("stat: too few fields")
	}
	var s stat
	var err error
	if s.pid, err = strconv.Atoi(pid); err != nil {
		return stat{}, fmt.Errorf("stat: %w", err)
	}
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return stat{}, fmt.Errorf("stat: %w", err)
	}
	for _, field := range fields[13:15] { // cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("stat: %w", err)
		}
		s.waited += n
	}
	return s, nil
}

// processTree returns root and its descendants as they are now.
func processTree(root int) ([]stat, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(map[int]stat)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended in between
		}
		if s, err := parseStat(string(text)); err == nil {
			all[s.pid] = s
		}
	}
	tree := descendants(all, root)
	if len(tree) == 0 {
		return nil, fmt.Errorf("process %d has ended", root)
	}
	return tree, nil
}

func descendants(all map[int]stat, root int) []stat {
	var tree []stat
	for _, s := range all {
		for at, ok := s, true; ok; at, ok = all[at.parent] {
			if at.pid == root {
				tree = append(tree, s)
				break
			}
		}
	}
	return tree
}

// cpuTime returns the CPU time that root and its descendants have used.
func cpuTime(root int) (time.Duration, error) {
	tree, err := processTree(root)
	var total time.Duration
	for _, s := range tree {
		total += ownTime(s.pid) + time.Duration(s.waited)*tick
	}
	return total, err
}

// ownTime reads the clock of a process' CPU time (clock_getcpuclockid(3)), which has all its
// threads, those that have ended too; 0 where the process has ended.
func ownTime(pid int) time.Duration {
	const sched = 2 // CPUCLOCK_SCHED of the kernel
	var t syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^pid<<3|sched), uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(t.Nano())
}

// ownKiB returns the memory of root and its descendants: proportional set
// size, or resident size where that cannot be read.
func ownKiB(root int) (int64, error) {
	tree, err := processTree(root)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, s := range tree {
		dir := filepath.Join("/proc", strconv.Itoa(s.pid))
		kib, err := sizeField(filepath.Join(dir, "smaps_rollup"), "Pss")
		if err != nil {
			kib, err = sizeField(filepath.Join(dir, "status"), "VmRSS")
		}
		if err != nil {
			return 0, err
		}
		total += kib
	}
	return total, nil
}

// kernelKiB returns the machine's kernel memory of the kinds that connections
// take: unreclaimable slab, kernel stacks, and socket inodes where
// /proc/slabinfo may be read.
func kernelKiB() (int64, error) {
	slab, err := sizeField("/proc/meminfo", "SUnreclaim")
	if err != nil {
		return 0, err
	}
	stacks, err := sizeField("/proc/meminfo", "KernelStack")
	if err != nil {
		return 0, err
	}
	inodes := int64(0)
	if text, err := os.ReadFile("/proc/slabinfo"); err == nil {
		inodes = slabBytes(text, "sock_inode_cache") / 1024
	}
	return slab + stacks + inodes, nil
}

// sizeField reads a field in KiB from a file of "Name:  123 kB" lines.
func sizeField(path, name string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	kib, err := parseSize(text, name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return kib, nil
}

func parseSize(text []byte, name string) (int64, error) {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) == 3 && fields[0] == name+":" && fields[2] == "kB" {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no field %s", name)
}

// slabBytes returns the bytes of a cache's active objects in the text of
// /proc/slabinfo, 0 where there is no such cache.
func slabBytes(text []byte, cache string) int64 {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[0] != cache {
			continue
		}
		active, err1 := strconv.ParseInt(fields[1], 10, 64)
		size, err2 := strconv.ParseInt(fields[3], 10, 64)
		if err1 == nil && err2 == nil {
			return active * size
		}
	}
	return 0
}
