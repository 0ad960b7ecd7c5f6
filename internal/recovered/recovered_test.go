package recovered

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fail panics where a stack has to name it.
func fail(after func()) {
	defer Log("failing", after)
	panic("no such thing")
}

func TestAPanicIsLoggedWithItsStackOnceASecond(t *testing.T) {
	var said bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		for range 5 {
			fail(func() { calls++ })
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if calls != 5 || len(lines) != 1 {
			t.Fatalf("%d calls, %d lines:\n%s", calls, len(lines), &said)
		}
		for _, part := range []string{"level=ERROR", "doing=failing", `panic="no such thing"`, "recovered.fail(", "unlogged=0"} {
			if !strings.Contains(lines[0], part) {
				t.Errorf("%q is not in %s", part, lines[0])
			}
		}
		time.Sleep(every)
		said.Reset()
		fail(nil)
		if !strings.Contains(said.String(), "unlogged=4") {
			t.Errorf("said %s", &said)
		}
	})
}

func TestNothingIsSaidWithoutAPanic(t *testing.T) {
	func() {
		defer Log("nothing", func() { t.Error("it was told of a panic") })
	}()
}

// TestNobodyElseRecovers looks through the whole tree: a panic that nobody is told of is never mended.
func TestNobodyElseRecovers(t *testing.T) {
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "recovered.go" {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte("recover()")) {
			t.Errorf("%s calls recover: defer recovered.Log instead", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
