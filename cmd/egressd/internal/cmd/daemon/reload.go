package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/printable"
	"github.com/spf13/cobra"
)

func newReload() *cobra.Command {
	var at client.Place
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make egressd serve read its policy again",
		Long: `Reload makes egressd serve read its policy again, as SIGHUP does, and waits for the
result. If the new policy is wrong, the old one stays in force.

Exit codes: 0 the new policy is in force; 1 it is not, or egressd serve does not
answer.`,
		Example: "  egressd policy check && egressd reload",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return reload(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), at, asJSON)
		},
	}
	cli.DaemonFlags(cmd, &at)
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func reload(ctx context.Context, w, talk io.Writer, at client.Place, asJSON bool) error {
	c, err := client.Dial(at)
	if err != nil {
		return err
	}
	var told struct {
		Reloaded bool   `json:"reloaded"`
		Policy   string `json:"policy"`
	}
	if _, err := c.Ask(ctx, http.MethodPost, "/v1/reload", &told); err != nil {
		return err
	}
	if asJSON {
		return cli.PrintJSON(w, told)
	}
	fmt.Fprintf(talk, "egressd: reloaded; policy %s is in force\n", printable.Text(told.Policy))
	return nil
}
