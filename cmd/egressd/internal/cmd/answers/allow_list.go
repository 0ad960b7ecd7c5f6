package answers

import (
	"cmp"
	"context"
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
)

// granted reads what is granted.
func (o *options) granted(ctx context.Context) (*client.Client, []admin.Grant, error) {
	c, err := o.dial()
	if err != nil {
		return nil, nil, err
	}
	var found admin.GrantList
	_, err = c.Ask(ctx, http.MethodGet, "/v1/grants", &found)
	return c, found.Grants, err
}

// list prints the temporary rules of egressd allow and egressd deny.
func (o *options) list(ctx context.Context, w, talk io.Writer) error {
	_, grants, err := o.granted(ctx)
	if err != nil {
		return err
	}
	if o.json {
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

// allOfThem is what --undo takes for all temporary rules.
const allOfThem = "all"

// undo takes temporary rules back, and cuts connections that only they allowed.
func (o *options) undo(ctx context.Context, w, talk io.Writer, ids []string) error {
	all := len(ids) == 1 && ids[0] == allOfThem
	for _, id := range ids {
		if strings.ContainsFunc(id, func(r rune) bool { return r > 'z' || r < '0' }) {
			return hint.Misused(fmt.Errorf("%q is not the id of a temporary rule", id), "egressd allow --list"+o.at()+", which lists them")
		}
	}
	c, grants, err := o.granted(ctx)
	if err != nil {
		return err
	}
	if all {
		ids = nil
		for i := range grants {
			ids = append(ids, grants[i].ID)
		}
	}
	each := cli.Each[admin.Revoked]{
		Client: c, Method: http.MethodDelete, List: "egressd allow --list" + o.at(), JSON: o.json,
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
func (o *options) completeGrants(ctx context.Context, given []string, word string) (all []string) {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	_, grants, err := o.granted(ctx)
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
