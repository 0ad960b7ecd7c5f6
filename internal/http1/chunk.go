package http1

import (
	"bufio"
	"strconv"
)

// A ChunkedWriter writes a body in chunks to a buffered writer, which the
// caller flushes. A body that broke off must not be closed: without the last
// chunk its reader knows that something is missing.
type ChunkedWriter struct{ bw *bufio.Writer }

// NewChunkedWriter returns a writer of one body.
func NewChunkedWriter(bw *bufio.Writer) *ChunkedWriter { return &ChunkedWriter{bw} }

// Write writes p as one chunk, and nothing where p is empty.
func (w *ChunkedWriter) Write(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	var head [18]byte
	line := strconv.AppendUint(head[:0], uint64(len(p)), 16)
	line = append(line, "\r\n"...)
	if _, err := w.bw.Write(line); err != nil {
		return 0, err
	}
	if n, err = w.bw.Write(p); err != nil {
		return n, err
	}
	_, err = w.bw.WriteString("\r\n")
	return n, err
}

// Close writes the last chunk and the trailer section, whose fields are valid.
func (w *ChunkedWriter) Close(trailer Fields) error {
	_, err := w.bw.Write(AppendFields([]byte("0\r\n"), trailer))
	return err
}
