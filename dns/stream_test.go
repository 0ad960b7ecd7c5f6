package dns

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"
)

// TestALengthTakesNoMemory: an upstream that says how much is to come, and has nothing come, is
// waited for by every lookup.
func TestALengthTakesNoMemory(t *testing.T) {
	come := func(text string) (msg []byte, err error) {
		return exchangeTCP(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader([]byte(text)), io.Discard}, []byte("asked"))
	}
	if msg, err := come("\x00\x03abcd"); err != nil || string(msg) != "abc" {
		t.Errorf("read %q, %v", msg, err)
	}
	for _, text := range []string{"\x00\x03ab", "\x00\x03", "\xff\xffab"} {
		if _, err := come(text); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q ends with %v", text, err)
		}
	}
	const times = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		_, _ = come("\xff\xffab")
	}
	runtime.ReadMemStats(&after)
	perAnswer := (after.TotalAlloc - before.TotalAlloc) / times
	if perAnswer > 4096 {
		t.Errorf("an answer of two bytes takes %d", perAnswer)
	}
}
