package daemon

import (
	"os"
	"runtime"
)

// spareProcessor has the runtime run Go on one thread more where it would on two. An event loop
// waits in epoll_wait(2), and whoever syncs the log in fdatasync(2): where no third is free, the
// runtime's monitor takes each other's processor away, starts a thread that finds nothing to do, and
// looks every 20 µs for a while whether it has to do so again. Where the log does not sync before a
// record counts, nobody is in the second call. The number does not follow the limits of a container from then on.
func (d *Daemon) spareProcessor() {
	const few = 2
	if d.Config.File.Audit.Durability != "process" && os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) == few {
		runtime.GOMAXPROCS(few + 1)
	}
}
