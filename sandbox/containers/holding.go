package containers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
)

// Around returns what the engine at a socket says of the container that a process is in, by the process's control
// groups. It is nil without an engine, for a process outside of containers, and for one in egressd's own container.
func Around(ctx context.Context, socket string, pid int) (*Sight, error) {
	own := containerIDs(controlGroups(os.Getpid()))
	ids := slices.DeleteFunc(containerIDs(controlGroups(pid)), func(id string) bool { return slices.Contains(own, id) })
	if _, err := os.Stat(socket); len(ids) == 0 || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, id := range slices.Compact(ids) {
		if s, err := Inspect(ctx, socket, id); err == nil || !isMissing(err) {
			return s, err
		}
	}
	return nil, nil // it is another engine's
}
