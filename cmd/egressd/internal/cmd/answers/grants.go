package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/spf13/cobra"
)

func newGrants() *cobra.Command {
	var at client.Place
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "List temporary rules",
		Long: `Grants lists the temporary rules of egressd allow and egressd deny: their ids,
sandboxes, time left, the request that each answers, and who added it. It asks
the running egressd serve. For rules that ended, see egressd log kind:admin.`,
		Example: "  egressd grants\n  egressd grants revoke GK3Q7XA",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.RunGroup(cmd, args)
			}
			return list(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), at, asJSON)
		},
	}
	cmd.PersistentFlags().StringVar(&at.Config, "config", "", "policy `FILE` that egressd serve has (default: the first that exists, as everywhere)")
	cmd.PersistentFlags().StringVar(&at.Admin, "admin", "", cli.AdminUsage)
	cmd.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	cmd.AddCommand(newRevoke(&at, &asJSON))
	return cmd
}

func newRevoke(at *client.Place, asJSON *bool) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "revoke ID…",
		Short: "Remove temporary rules",
		Long: `Revoke removes temporary rules from the running egressd serve, and cuts connections
that only they allowed.

Exit codes: 0 all are removed; 1 there was no such rule, or egressd serve does
not answer.`,
		Example: "  egressd grants revoke GK3Q7XA\n  egressd grants revoke --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			return revoke(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), *at, *asJSON, all, args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return completeGrants(cmd.Context(), *at, args, word), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove all of them")
	return cmd
}

// ask reads what is granted.
func ask(ctx context.Context, at client.Place) (*client.Client, []admin.Grant, error) {
	c, err := client.Dial(at)
	if err != nil {
		return nil, nil, err
	}
	var found admin.GrantList
	_, err = c.Ask(ctx, http.MethodGet, "/v1/grants", &found)
	return c, found.Grants, err
}

func list(ctx context.Context, w, talk io.Writer, at client.Place, asJSON bool) error {
	_, grants, err := ask(ctx, at)
	if err != nil {
		return err
	}
	if asJSON {
		return cli.PrintEach(w, grants)
	}
	if len(grants) == 0 {
		fmt.Fprintln(talk, "egressd: no temporary rule is in force")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tVERDICT\tHOST\tSANDBOX\tLEFT\tUNTIL\tFROM\tBY")
	for i := range grants {
		g := &grants[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable.Word(g.ID), printable.Text(g.Does()), printable.Word(g.Text()), printable.Word(cmp.Or(g.Sandbox, "(all)")),
			left(g), quantity.Clock(g.Until, time.Now()), printable.Word(cmp.Or(g.From, "–")), printable.Word(g.By))
	}
	return table.Flush()
}

func revoke(ctx context.Context, w, talk io.Writer, at client.Place, asJSON, all bool, ids []string) error {
	if len(ids) == 0 == !all {
		return hint.Misused(errors.New("revoke takes ids, or --all"), "egressd grants, then egressd grants revoke ID")
	}
	for _, id := range ids {
		if strings.ContainsFunc(id, func(r rune) bool { return r > 'z' || r < '0' }) {
			return hint.Misused(fmt.Errorf("%q is not the id of a grant", id), "egressd grants, which lists them")
		}
	}
	c, grants, err := ask(ctx, at)
	if err != nil {
		return err
	}
	if all {
		for i := range grants {
			ids = append(ids, grants[i].ID)
		}
	}
	each := cli.Each[admin.Revoked]{
		Client: c, Method: http.MethodDelete, List: "egressd grants", JSON: asJSON,
		Path: func(id string) string { return "/v1/grants/" + url.PathEscape(strings.ToUpper(id)) },
		Say: func(_ string, done *admin.Revoked) string {
			g := &done.Revoked
			return fmt.Sprintf("%s is taken back: %s %s to %s", printable.Text(g.ID), g.Does(), printable.Text(g.Text()), printable.Text(whom(g)))
		},
	}
	return each.Run(ctx, w, talk, ids)
}

// completeWithin is how long who presses a key waits.
const completeWithin = time.Second

// completeGrants offers what is granted, and has nobody to tell of errors.
func completeGrants(ctx context.Context, at client.Place, given []string, word string) (all []string) {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	_, grants, err := ask(ctx, at)
	if err != nil {
		return nil
	}
	for i := range grants {
		if g := &grants[i]; strings.HasPrefix(g.ID, strings.ToUpper(word)) && !slices.Contains(given, g.ID) {
			all = append(all, printable.Text(g.ID)+"\t"+printable.Text(g.Does()+" "+g.Text()+" to "+whom(g)))
		}
	}
	return all
}
