package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/logs/source"
)

// listSinks prints the receivers of the log.
func (o *statusOptions) listSinks(stdout, stderr io.Writer) error {
	dir, err := (&source.Source{Config: o.at.Config, Dir: o.dir}).Directory()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return hint.Failed(fmt.Errorf("there is no log in %s yet: egressd serve has not run", dir), "egressd status --sinks --dir DIR, if the log is elsewhere")
	}
	states, err := sink.States(dir)
	if err != nil {
		return hint.Failed(err, "egressd status --sinks --dir DIR, as a user who may read it")
	}
	if o.json {
		return cli.PrintEach(stdout, states)
	}
	if len(states) == 0 {
		fmt.Fprintf(stderr, "egressd: the log in %s has no sinks\negressd: hint: audit.sinks in the policy file\n", dir)
		return nil
	}
	return printSinks(stdout, states)
}

func printSinks(stdout io.Writer, states []sink.State) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tTYPE\tTO\tFORMAT\tSENT\tBEHIND\tAGE\tSTATE")
	for i := range states {
		s := &states[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", cli.Cell(s.Name), s.Type, cli.Cell(s.To), s.Format, s.Sent, s.LagRecords,
			s.Lag(), printable.Text(sinkState(s)))
	}
	return table.Flush()
}

// sinkState says in words how a sink goes.
func sinkState(s *sink.State) string {
	state := "✓"
	if s.Failing() {
		state = "✗ " + s.Error
	}
	if n := len(s.Aside); n > 0 {
		state += fmt.Sprintf("; %d refused and sent again", n)
	}
	if s.Rejected > 0 {
		state += fmt.Sprintf("; %d thrown away by the receiver", s.Rejected)
	}
	if s.Lossy {
		state += "; UDP loses records"
	}
	if s.Missed > 0 {
		state += fmt.Sprintf("; %d removed before they were sent", s.Missed)
	}
	return state
}
