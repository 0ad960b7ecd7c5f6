package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// A ContainerError says why a container is not there to be attached to.
type ContainerError struct {
	Name, Problem string
	Missing       bool
}

func (e *ContainerError) Error() string { return "container " + e.Name + ": " + e.Problem }

const (
	dockerPatience = 10 * time.Second
	dockerBytes    = 4 << 20 // of an answer
)

// ContainerProcess asks the Docker API at a Unix socket for the first process of a
// container, by its name or the beginning of its ID. Podman answers the same.
func ContainerProcess(socket, name string) (pid int, err error) {
	if !PlainName(name) {
		return 0, &ContainerError{name, "that is neither a process nor the name of a container", true}
	}
	c, err := net.DialTimeout("unix", socket, dockerPatience)
	if err != nil {
		return 0, fmt.Errorf("ask Docker about %s: %w", name, err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dockerPatience))
	if _, err := fmt.Fprintf(c, "GET /containers/%s/json HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n", name); err != nil {
		return 0, fmt.Errorf("ask Docker about %s: %w", name, err)
	}
	r, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, dockerBytes)), nil)
	if err != nil {
		return 0, fmt.Errorf("ask Docker about %s: %w", name, err)
	}
	defer r.Body.Close()
	return containerIn(name, r)
}

func containerIn(name string, r *http.Response) (int, error) {
	var is struct {
		Message string
		State   struct {
			Pid    int
			Status string
		}
	}
	switch err := json.NewDecoder(r.Body).Decode(&is); {
	case r.StatusCode == http.StatusNotFound:
		return 0, &ContainerError{name, "there is none", true}
	case r.StatusCode != http.StatusOK:
		return 0, &ContainerError{name, strings.TrimSpace("Docker answers " + r.Status + " " + is.Message), false}
	case err != nil:
		return 0, errors.Join(&ContainerError{name, "Docker answers what cannot be read", false}, err)
	case is.State.Pid <= 0:
		return 0, &ContainerError{name, "it is not running, but " + is.State.Status, false}
	}
	return is.State.Pid, nil
}
