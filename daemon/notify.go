package daemon

import (
	"fmt"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// A notifier tells the service manager how the daemon is.
type notifier struct{ daemon *Daemon }

// notify tells the service manager how the daemon is (sd_notify(3)), where one asked.
func (nm *notifier) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		nm.daemon.Complain(fmt.Errorf("tell the service manager: %w", err))
	}
}

// telling has the service manager know that what f does is a reload.
func (nm *notifier) telling(f func()) {
	nm.notify(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
	f()
	nm.notify(sd.SdNotifyReady)
}

// watchdog ticks at half of the service manager's watchdog interval, or never without one. The goroutine that puts
// policies in force answers the ticks.
func (nm *notifier) watchdog() (tick <-chan time.Time, stop func()) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		nm.daemon.Complain(fmt.Errorf("watchdog of the service manager: %w", err))
	}
	if err != nil || every <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(every / 2)
	return t.C, t.Stop
}
