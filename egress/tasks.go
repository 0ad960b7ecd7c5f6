package egress

import "sync"

// tasks are goroutines that somebody waits for. Unlike with a [sync.WaitGroup], more may start during the wait. The
// zero value has none.
type tasks struct {
	mu   sync.Mutex // guards what follows
	n    int
	none chan struct{} // closed when there are none; nil if nobody waits
}

// start runs task on a goroutine.
func (t *tasks) start(task func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		defer t.done()
		task()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// wait returns once there are none.
func (t *tasks) wait() {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	<-none
}
