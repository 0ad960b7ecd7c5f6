package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
)

// An Each sends one request for each of several ids, and decodes each response into a T.
type Each[T any] struct {
	Client *client.Client
	Method string
	Path   func(id string) string
	Say    func(id string, done *T) string // without JSON
	List   string                          // the command that lists what has ids
	JSON   bool

	// Next, unless it is nil, makes a command to type next of the daemon's hint about an id that it cannot do this with now.
	Next func(said string) string
}

// Run writes one line for each id. If the daemon does not know an id, or cannot do this with it now, Run says
// so on talk, goes on with the next id, and returns the exit code as its error.
func (e *Each[T]) Run(ctx context.Context, w, talk io.Writer, ids []string) error {
	failed := false
	for _, id := range ids {
		var done T
		status, err := e.Client.Ask(ctx, e.Method, e.Path(id), &done)
		switch {
		case err != nil && (status == http.StatusNotFound || status == http.StatusConflict):
			next, hinted := e.List, (*hint.Error)(nil)
			if status == http.StatusConflict && e.Next != nil && errors.As(err, &hinted) {
				next = e.Next(hinted.Hint)
			}
			hint.Write(talk, fmt.Errorf("%s: %w", id, err), next)
			failed = true
		case err != nil:
			return err
		case e.JSON:
			if err := PrintJSON(w, done); err != nil {
				return err
			}
		default:
			fmt.Fprintf(talk, "egressd: %s\n", e.Say(id, &done))
		}
	}
	if failed {
		return Status(ExitFailed)
	}
	return nil
}
