package format

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestAHoleKeepsLinesApart has the halves of a line stand on both sides of a hole.
func TestAHoleKeepsLinesApart(t *testing.T) {
	whole := []byte(`{"v":1,"seq":0,"time":"2026-11-22T00:00:00.000000Z","kind":"a","note":"both halves"}` + "\n")
	f, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const far = 1 << 20
	_, first := f.WriteAt(whole[:20], 0)
	_, second := f.WriteAt(whole[20:], far)
	if err := errors.Join(first, second); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(&dataReader{f, 0})
	if got := string(text); err != nil || len(got) > 64<<10 || !strings.HasPrefix(got, string(whole[:20])+"\x00") || !strings.HasSuffix(got, "\x00"+string(whole[20:])) {
		t.Errorf("%d bytes, %v: %.80q", len(got), err, got)
	}
}
