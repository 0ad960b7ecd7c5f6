package inspect

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestACountdownDoesNotBeginAfterItsEnd, so that nothing that it calls stays in memory.
func TestACountdownDoesNotBeginAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		c := newCountdown(time.Second, func() { calls.Add(1) })
		after := func(d time.Duration) int32 {
			time.Sleep(d)
			synctest.Wait()
			return calls.Load()
		}
		if after(time.Minute) != 0 {
			t.Error("it ran before it began")
		}
		c.begin()
		after(999 * time.Millisecond)
		c.stop()
		if after(time.Minute) != 0 {
			t.Error("it ran out although it was stopped")
		}
		c.begin()
		if after(time.Minute) != 1 {
			t.Error("it did not run out")
		}
		c.begin()
		c.end()
		c.begin()
		if after(time.Minute) != 1 {
			t.Error("it ran out after its end")
		}
	})
}
