package run

import (
	"fmt"
	"os"
	"slices"

	"github.com/egressd/egressd/internal/hint"
)

// missingUsers says, for the first line, what the program cannot do because its users and groups are not all mapped; or "".
func (r *runner) missingUsers() string {
	if r.jail.AllUsers() {
		return ""
	}
	if os.Geteuid() == 0 {
		return ", no users but root"
	}
	const unmapped = 65534 // of groups that this process's own user namespace does not map
	others, _ := os.Getgroups()
	others = slices.DeleteFunc(others, func(group int) bool { return group == os.Getegid() || group == unmapped })
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf(", chgrp to your %d other groups fails", len(others))
}

// sayUsers warns where root is not what it is outside.
func (r *runner) sayUsers() {
	if os.Geteuid() == 0 && !r.jail.AllUsers() {
		fmt.Fprintln(r.talk, "egressd: warning: egressd may map no users but root here: chown, ports below 1024, and apt-get and other programs that change their user, fail")
		hint.Sayf(r.talk, "in a container, docker run --cap-add SETFCAP and the capabilities that Docker gives by default")
	}
}
