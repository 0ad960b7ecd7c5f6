package containers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/egressd/egressd/integrations/boundary"
)

// Around returns what the engine at a socket says of the container that a process is in, by the process's control
// groups. The description is nil without an engine, for a process outside of containers, and for one in
// egressd's own container.
func Around(ctx context.Context, socket string, pid int) (d boundary.Description, volumes map[string]boundary.Volume, err error) {
	own := containerIDs(controlGroups(os.Getpid()))
	ids := slices.DeleteFunc(containerIDs(controlGroups(pid)), func(id string) bool { return slices.Contains(own, id) })
	if _, err := os.Stat(socket); len(ids) == 0 || errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, id := range slices.Compact(ids) {
		d, volumes, err = Inspect(ctx, socket, id)
		if err == nil || !isMissing(err) {
			return d, volumes, err
		}
	}
	return nil, nil, nil // it is another engine's
}
