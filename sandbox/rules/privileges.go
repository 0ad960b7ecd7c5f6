package rules

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Privileges of a process decide whether it can evade rules that tell users apart.
type Privileges struct {
	UIDs           []uint32 // real, effective, saved, and that of files
	Capabilities   uint64   // in any of its sets, the bounding set too
	NewPrivileges  bool     // may get more by execve(2)
	UnfilteredCall bool     // no filter of system calls
}

// ReadPrivileges returns those of this process (proc_pid_status(5)).
func ReadPrivileges() (Privileges, error) { return readPrivileges("/proc/self/status") }

func readPrivileges(path string) (p Privileges, err error) {
	f, err := os.Open(path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if err := p.take(name, strings.Fields(value)); err != nil {
			return p, fmt.Errorf("%s: %s: %w", path, name, err)
		}
		seen[name] = true
	}
	for _, name := range []string{"Uid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"} {
		if !seen[name] {
			return p, fmt.Errorf("%s does not tell %s", path, name)
		}
	}
	return p, nil
}

func (p *Privileges) take(name string, value []string) error {
	switch name {
	case "Uid":
		for _, one := range value {
			uid, err := strconv.ParseUint(one, 10, 32)
			if err != nil {
				return err
			}
			p.UIDs = append(p.UIDs, uint32(uid))
		}
	case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
		set, err := strconv.ParseUint(strings.Join(value, " "), 16, 64)
		if err != nil {
			return err
		}
		p.Capabilities |= set
	case "NoNewPrivs":
		p.NewPrivileges = strings.Join(value, " ") != "1"
	case "Seccomp":
		p.UnfilteredCall = strings.Join(value, " ") != "2"
	}
	return nil
}

// SeesProcessOf reports whether this process's PID namespace shows a process of a user.
func SeesProcessOf(uid uint32) (bool, error) {
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return false, err
	}
	if len(found) == 0 {
		return false, errors.New("/proc shows no process")
	}
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			continue // it has ended
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid == uid {
			return true, nil
		}
	}
	return false, nil
}
