package containers

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/egressd/egressd/sandbox"
)

// An Error says why a container cannot be attached.
type Error struct {
	Name, Problem string
	Missing       bool
}

func (e *Error) Error() string { return "container " + e.Name + ": " + e.Problem }

// FirstProcess returns the first process of a container, by the container's name or the beginning of its ID.
func FirstProcess(socket, name string) (pid int, err error) {
	if !sandbox.PlainName(name) {
		return 0, &Error{name, "that is neither a process nor the name of a container", true}
	}
	api := newEngineAPI(socket)
	defer api.close()
	d, err := api.describe(context.Background(), name)
	var answer *answerError
	switch {
	case errors.As(err, &answer) && answer.status == http.StatusNotFound:
		return 0, &Error{name, "there is none", true}
	case errors.As(err, &answer):
		return 0, &Error{name, answer.Error(), false}
	case err != nil:
		return 0, fmt.Errorf("ask Docker about %s: %w", name, err)
	case d.State.Pid <= 0:
		return 0, &Error{name, "it is not running, but " + d.State.Status, false}
	}
	return d.State.Pid, nil
}

// Ask reads a path of the Docker API, such as /version, and decodes the JSON answer into the value that into
// points at.
func Ask(socket, path string, into any) error {
	api := newEngineAPI(socket)
	defer api.close()
	if err := api.get(context.Background(), path, into); err != nil {
		return fmt.Errorf("ask Docker for %s: %w", path, err)
	}
	return nil
}
