package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newCut() *cobra.Command {
	var at client.Place
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "cut ID…",
		Short: "Cut open connections",
		Long: `Cut closes open connections in the running egressd serve, and records who asked. The
policy does not change, so a sandbox may connect again: use egressd deny to
prevent that.

Exit codes: 0 all are cut; 1 one was not open, or could not be cut.`,
		Example: "  egressd status --connections\n  egressd cut 01KB6ZQ4SZ",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cut(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), at, asJSON, args)
		},
	}
	cli.DaemonFlags(cmd, &at)
	cli.JSONFlag(cmd, &asJSON)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func cut(ctx context.Context, w, talk io.Writer, at client.Place, asJSON bool, ids []string) error {
	if len(ids) == 0 {
		return hint.Misused(errors.New("there is nothing to cut"), "egressd status --connections"+at.Flags()+", then egressd cut ID"+at.Flags())
	}
	for _, id := range ids {
		if _, ok := record.ParseID(id); !ok {
			return hint.Misused(fmt.Errorf("%q is not the id of a flow", id), "egressd status --connections"+at.Flags()+", which lists them")
		}
	}
	c, err := client.Dial(at)
	if err != nil {
		return err
	}
	type answer struct {
		Cut string `json:"cut"`
	}
	each := cli.Each[answer]{
		Client: c, Method: http.MethodDelete, List: "egressd status --connections" + at.Flags(), JSON: asJSON,
		Path: func(id string) string { return "/v1/flows/" + id },
		Say:  func(id string, _ *answer) string { return id + " is cut" },
	}
	return each.Run(ctx, w, talk, ids)
}
