package admincmd

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
)

// An Each asks for the same thing about several ids, one after the other, and answers with a T
// for each.
type Each[T any] struct {
	Client *Client
	Method string
	Path   func(id string) string
	Say    func(id string, done *T) string // without JSON
	List   string                          // the command that lists what has ids
	JSON   bool
}

// Run writes the answers, each on a line. An id that is not there, or of which that cannot be
// asked now, is told, and the others are asked about all the same: the error is then the exit
// code alone.
func (e *Each[T]) Run(ctx context.Context, w, talk io.Writer, ids []string) error {
	failed := false
	for _, id := range ids {
		var done T
		status, err := e.Client.Ask(ctx, e.Method, e.Path(id), &done)
		switch {
		case err != nil && (status == http.StatusNotFound || status == http.StatusConflict):
			cli.Explain(talk, fmt.Errorf("%s: %w", id, err), e.List)
			failed = true
		case err != nil:
			return err
		case e.JSON:
			if err := cli.PrintJSON(w, done); err != nil {
				return err
			}
		default:
			fmt.Fprintf(talk, "egressd: %s\n", e.Say(id, &done))
		}
	}
	if failed {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}
