package jail

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// users are what a user namespace maps, each to itself.
type users struct {
	uids, gids []syscall.SysProcIDMap
	setGroups  bool // programs may change their groups
}

func ids(id int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
}

// allUsers returns all users and groups that this process knows. ok is false unless this process is root and has the
// capabilities that the kernel asks for, and those that the program is to keep: no program gets more than its caller has.
func allUsers() (all users, ok bool) {
	if os.Geteuid() != 0 || os.Getuid() != 0 {
		return all, false
	}
	var has [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &has[0]) != nil {
		return all, false
	}
	for _, c := range append([]uint{unix.CAP_SETFCAP}, jailinit.RootCapabilities[:]...) {
		if has[0].Effective&(1<<c) == 0 {
			return all, false
		}
	}
	groups, err := os.ReadFile("/proc/self/setgroups")
	all = users{mappedIn("/proc/self/uid_map"), mappedIn("/proc/self/gid_map"), err == nil && strings.TrimSpace(string(groups)) == "allow"}
	return all, len(all.uids) > 0 && len(all.gids) > 0
}

// mappedIn returns the ids in a file of user_namespaces(7), each mapped to itself.
func mappedIn(path string) (all []syscall.SysProcIDMap) {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var inside, outside, size int
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &size); err != nil {
			return nil
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return all
}
