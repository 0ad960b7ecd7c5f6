package http1

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

// TestSmallChunksComeTogether, as far as they are there.
func TestSmallChunksComeTogether(t *testing.T) {
	const many = 1000
	for says, tt := range map[string]struct{ sent, first string }{
		"many":                   {strings.Repeat("1\r\na\r\n", many) + "0\r\n\r\n", strings.Repeat("a", many)},
		"one":                    {"1\r\na\r\n", "a"},
		"a size cut short":       {"1\r\na\r\n1", "a"},
		"a size without a chunk": {"1\r\na\r\n1\r\n", "a"},
		"a part of the next":     {"1\r\na\r\n5\r\nbc", "abc"},
		"an end cut short":       {"1\r\na\r\n1\r\nb\r", "ab"},
		"a trailer cut short":    {"1\r\na\r\n1\r\nb\r\n0\r\nX: ", "ab"},
		"zeros":                  {"1\r\na\r\n01\r\nb\r\n", "ab"},
		"nothing but zeros":      {"1\r\na\r\n000\r\nx: y", "a"},
		"an extension":           {"1\r\na\r\n1;x=y\r\nb\r\n", "ab"},
		"what is no chunk":       {"1\r\na\r\nzz\r\nb\r\n", "a"},
	} {
		near, far := io.Pipe()
		go io.WriteString(far, tt.sent) // and no more: who waits for more waits for ever
		br := bufio.NewReaderSize(near, 64<<10)
		body := NewBodyReader(br, Framing{Kind: BodyChunked, Length: -1}, Limits{})
		got := make([]byte, 2*many)
		n, err := body.Read(got)
		if string(got[:n]) != tt.first || err != nil {
			t.Errorf("%s: %q, %v, want %q", says, got[:n], err, tt.first)
		}
		near.Close()
	}
}
