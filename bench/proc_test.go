//go:build linux

package main

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194560 100 200 0 0 11 22 33 44 20 0 4 0 99"
	for _, name := range []string{"squid", "a b", "x) S 9 (y", "", "))"} {
		got, err := parseStat("4242 (" + name + ")" + rest)
		if want := (stat{4242, 7, 77}); err != nil || got != want {
			t.Errorf("name %q: %v, %v; want %v", name, got, err, want)
		}
	}
}

func TestParseStatRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, text := range []string{
		"",
		"1 (init",
		"1 (init) S 1 2 3",
		"x (init) S 7 1 1 0 -1 4194560 100 200 0 0 11 22 33 44 20",
		"1 (init) S y 1 1 0 -1 4194560 100 200 0 0 11 22 33 44 20",
		"1 (init) S 7 1 1 0 -1 4194560 100 200 0 0 11 22 z 44 20",
	} {
		if got, err := parseStat(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func TestDescendantsIncludeGrandchildrenAndNoSiblings(t *testing.T) {
	all := map[int]stat{
		1: {1, 0, 0}, 10: {10, 1, 0}, 11: {11, 10, 0}, 12: {12, 11, 0}, 20: {20, 1, 0},
	}
	var pids []int
	for _, s := range descendants(all, 10) {
		pids = append(pids, s.pid)
	}
	slices.Sort(pids)
	if want := []int{10, 11, 12}; !slices.Equal(pids, want) {
		t.Errorf("descendants of 10 are %v, want %v", pids, want)
	}
}

func TestChildrenCount(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { child.Process.Kill(); child.Wait() }()
	tree, err := processTree(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(tree, func(s stat) bool { return s.pid == child.Process.Pid }) {
		t.Errorf("child %d is not in %v", child.Process.Pid, tree)
	}
	alone, err := ownKiB(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	both, err := ownKiB(os.Getpid())
	if err != nil || alone <= 0 || both <= alone {
		t.Errorf("child has %d KiB, with its parent %d, error %v", alone, both, err)
	}
}

func TestCPUTimeIsFinerThanATick(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for sum := 0; sum < 1_000_000; sum++ {
		runtime.KeepAlive(sum)
	}
	after, err := cpuTime(os.Getpid())
	if err != nil || after <= before || after%tick == 0 && before%tick == 0 {
		t.Errorf("from %v to %v, error %v", before, after, err)
	}
}

func TestAnEndedProcessIsAnError(t *testing.T) {
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	if got, err := cpuTime(child.Process.Pid); err == nil {
		t.Errorf("CPU time %v of a process that has ended", got)
	}
}

func TestParseSize(t *testing.T) {
	text := []byte("00400000-7fff rollup\nRss:  900 kB\nPss:   123 kB\nPss_Dirty: 7 kB\nCount: 5\n")
	if got, err := parseSize(text, "Pss"); err != nil || got != 123 {
		t.Errorf("Pss is %d, %v", got, err)
	}
	for _, name := range []string{"Swap", "Count", "Ps"} {
		if got, err := parseSize(text, name); err == nil {
			t.Errorf("%s is %d", name, got)
		}
	}
}

func TestSlabBytes(t *testing.T) {
	text := []byte("slabinfo - version: 2.1\n# name <active_objs>\nTCP 3 13 2496 13 8 : tunables\nsock_inode_cache 10 20 832 19 4 : tunables\n")
	if got := slabBytes(text, "sock_inode_cache"); got != 8320 {
		t.Errorf("%d bytes", got)
	}
	if got := slabBytes(text, "sock"); got != 0 {
		t.Errorf("%d bytes of a cache that is not there", got)
	}
}

func TestKernelMemoryCanBeRead(t *testing.T) {
	if got, err := kernelKiB(); err != nil || got <= 0 {
		t.Errorf("%d KiB, %v", got, err)
	}
}
