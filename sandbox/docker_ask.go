package sandbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// AskDocker asks the Docker API at a Unix socket, and reads the answer, JSON, into what
// into points at. path is the absolute path of a thing to be read, such as /version.
func AskDocker(socket, path string, into any) error {
	c, err := net.DialTimeout("unix", socket, dockerPatience)
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dockerPatience))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n", path); err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	r, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, dockerBytes)), nil)
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("ask Docker for %s: it answers %s", path, r.Status)
	}
	return json.NewDecoder(r.Body).Decode(into)
}
