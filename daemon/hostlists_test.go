package daemon

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestAListInAFileIsReadAgain writes into the file, which keeps its name and its inode, replaces it, and spoils it.
func TestAListInAFileIsReadAgain(t *testing.T) {
	w := serveRego(t, "allow: [\"*.test:2\"]\ndeny_file: [lists/blocked.txt]\n", map[string]string{"lists/blocked.txt": "a.test:*\n"})
	path := filepath.Join(w.dir, "lists", "blocked.txt")
	denied := func(host string) bool {
		c, err := net.Dial("tcp", w.proxy)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "CONNECT %s:1 HTTP/1.1\r\nHost: %[1]s:1\r\n\r\n", host)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		return strings.Contains(string(body), string(policy.RuleDeny))
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	until("the file is not in force", func() bool { return denied("a.test") && !denied("b.test") })
	w.write(t, "lists/blocked.txt", "b.test:*\n")
	until("what was written into the file is not in force", func() bool { return denied("b.test") && !denied("a.test") })
	w.write(t, "lists/next.txt", "c.test:*\n")
	if err := os.Rename(filepath.Join(w.dir, "lists", "next.txt"), path); err != nil {
		t.Fatal(err)
	}
	until("the file that replaced it is not in force", func() bool { return denied("c.test") && !denied("b.test") })
	said := func(text string) func() bool {
		return func() bool {
			select {
			case said := <-w.said:
				return strings.Contains(said, text)
			default:
				return false
			}
		}
	}
	w.write(t, "lists/blocked.txt", "d.test:*\nno pattern\n")
	until("nothing is said of the line that is skipped", said("blocked.txt:2:1: deny_file[0]: 1 of 2 lines skipped"))
	until("the lines beside one that is skipped are not in force", func() bool { return denied("d.test") && !denied("c.test") })
	w.write(t, "lists/blocked.txt", "no pattern\n")
	until("nothing is said of a file of which nothing is read", said("blocked.txt:1:1: none of its 1 lines"))
	if !denied("d.test") {
		t.Error("the broken file took the place of the good one")
	}
}
