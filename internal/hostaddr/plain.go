//go:build !linux

package hostaddr

import "time"

type source struct{}

func (source) Close() error { return nil }

// Watch reads the addresses, and again each second until Close.
func Watch() (*Watcher, error) {
	w := &Watcher{stop: make(chan struct{}), done: make(chan struct{})}
	if err := w.read(); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
				_ = w.read() // the next one may succeed
			}
		}
	}()
	return w, nil
}
