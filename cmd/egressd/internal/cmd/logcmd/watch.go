package logcmd

import (
	"context"
	"errors"
	"os"

	tea "charm.land/bubbletea/v2"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/logs/source"
	"github.com/spf13/cobra"
)

func newWatch() *cobra.Command {
	var o watchOptions
	cmd := &cobra.Command{
		Use:   "watch [FILTER…]",
		Short: "Watch the log in a terminal, and answer what is asked",
		Long: `Watch shows the log as it grows: one row for requests that are alike, the newest first.
Requests that wait for a person stand on top.

Keys: arrows, j and k move; / edits the filter; w explains the row; a allows its host
for an hour, d denies it for an hour, each after y; on a question, a approves it once
and d rejects it for ten minutes; q ends. Allow, deny and answers need a running
egressd serve that answers at its admin listener. Each is recorded like that of a command.

Filters are those of egressd log.`,
		Example: `  egressd watch
  egressd watch verdict:deny
  egressd watch --run last`,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.Context(), words)
		},
	}
	cli.FilterFlags(cmd, &o.Source)
	return cmd
}

type watchOptions struct{ source.Source }

func (o *watchOptions) run(ctx context.Context, words []string) error {
	log, f, err := o.Ask(words) // for its errors, before the screen is taken
	if err != nil {
		return err
	}
	log.Close()
	if !cli.IsTerminal(os.Stdin) || !cli.IsTerminal(os.Stdout) {
		return hint.Misused(errors.New("watch needs a terminal"), "egressd log -f, which needs none")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watch{ctx: ctx, dir: log.Dir, flags: o.Flags(), allow: o.AllowFlags(), index: index.New(), colours: cli.PaletteFor(os.Stdout), filter: f, words: words}
	if o.Dir == "" && o.Source.Run == "" {
		w.dial = func() (daemon, error) { return client.Dial(client.Place{Config: o.Config}) }
		if err := w.send("GET", "/readyz", nil, new(struct{})); err != nil {
			w.dial, w.said = nil, "the log alone: "+err.Error()
		}
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_ = w.index.Follow(ctx, log.Dir) // the view shows its error
	}()
	_, err = tea.NewProgram(w, tea.WithContext(ctx)).Run()
	cancel()
	<-reading
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, tea.ErrProgramKilled) {
		return nil
	}
	return err
}
