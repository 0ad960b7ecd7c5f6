package daemon

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
)

// TestTheLogDoesNotWaitForStandardError to take its troubles. Nobody empties the pipe until then.
func TestTheLogDoesNotWaitForStandardError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		d := &Daemon{Talk: w}
		d.connect()
		var telling sync.WaitGroup
		returned := 0
		for n := range messagesMost + 2 { // one is being written, and one is dropped
			telling.Go(func() { d.audit.troubled(errors.New("a segment cannot be removed")); returned++ })
			if synctest.Wait(); returned <= n {
				t.Error("it waits, and holds what checkpoints are signed with")
				break
			}
		}
		go func() {
			telling.Wait()
			d.audit.messages.writing.Wait()
			w.Close()
		}()
		n := 0
		for lines := bufio.NewScanner(r); lines.Scan(); {
			n++
		}
		if n != messagesMost+1 {
			t.Errorf("%d lines", n)
		}
	})
}
