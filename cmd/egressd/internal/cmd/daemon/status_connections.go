package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
)

// listConnections prints the open tunnels and requests, oldest first.
func (o *statusOptions) listConnections(ctx context.Context, w, talk io.Writer) error {
	c, err := client.Dial(o.at)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	shown := 0
	for after := ""; ; {
		var page admin.Page
		if _, err := c.Ask(ctx, http.MethodGet, "/v1/flows?limit=1000&after="+url.QueryEscape(after), &page); err != nil {
			return err
		}
		for i := range page.Flows {
			f := &page.Flows[i]
			if o.sandbox != "" && f.Sandbox != o.sandbox {
				continue
			}
			if shown++; shown == 1 && !o.json {
				fmt.Fprintln(table, "ID\tDESTINATION\tVIA\tSANDBOX\tRULE\tAGE")
			}
			if o.json {
				err = cli.PrintJSON(w, f)
			} else {
				err = row(table, f)
			}
			if err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if shown == 0 && !o.json {
		fmt.Fprintln(talk, "egressd: no connection is open")
	}
	return table.Flush()
}

func row(w io.Writer, f *egress.OpenFlow) error {
	age := (time.Duration(f.Seconds * float64(time.Second))).Round(time.Second)
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", f.ID, printable.Word(net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))), f.Via, printable.Word(f.Sandbox), printable.Word(f.Rule), age)
	return err
}
