package compose

import (
	"fmt"
	"os"
	"syscall"
)

// stateOf tells a file or folder from another one. With changes, the state is another one after a new name or new contents, too:
// no program can set the time of these (ctime).
func stateOf(info os.FileInfo, changes bool) string {
	is, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return "unknown"
	case !changes:
		return fmt.Sprint(is.Dev, is.Ino)
	}
	return fmt.Sprint(is.Dev, is.Ino, is.Size, is.Ctim.Nano())
}
