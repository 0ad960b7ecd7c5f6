package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/records/sink"
	"github.com/spf13/cobra"
)

func newLogSinksCommand() *cobra.Command {
	var o sinksOptions
	cmd := &cobra.Command{
		Use:   "sinks",
		Short: "Show how far each sink of the log is",
		Long: `Sinks shows where egressd serve sends the records of the audit log to, how far each
receiver is behind the end of the log, and why it last failed. It reads files that
are up to a second old, and needs no daemon.`,
		Example: `  egressd log sinks
  egressd log sinks --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cmd.Flags().StringVar(&o.dir, "dir", "", "`DIR` of the audit log (default: the policy's audit.dir)")
	cli.JsonFlag(cmd, &o.json)
	return cmd
}

type sinksOptions struct {
	logSource
	json bool
}

func (o *sinksOptions) run(stdout, stderr io.Writer) error {
	dir, err := o.directory()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return cli.Failed(fmt.Errorf("there is no audit log in %s", dir), "egressd serve, which begins one; or egressd log sinks --dir DIR")
	}
	states, err := sink.States(dir)
	if err != nil {
		return cli.Failed(err, "egressd log sinks --dir DIR, as a user who may read it")
	}
	if o.json {
		out := json.NewEncoder(stdout)
		for _, s := range states {
			if err := out.Encode(s); err != nil {
				return err
			}
		}
		return nil
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", cell(s.Name), s.Type, cell(s.To), s.Format, s.Sent, s.LagRecords,
			lagAge(s), cli.Printable(sinkState(s)))
	}
	return table.Flush()
}

func lagAge(s *sink.State) time.Duration {
	return (time.Duration(s.LagSeconds * float64(time.Second))).Round(time.Second)
}

// sinkState says in words how a sink goes.
func sinkState(s *sink.State) string {
	state := "✓"
	if s.Failing() {
		state = "✗ " + s.Error
	}
	if s.Refused > 0 {
		state += fmt.Sprintf("; %d refused", s.Refused)
	}
	if s.Missed > 0 {
		state += fmt.Sprintf("; %d removed before they were sent", s.Missed)
	}
	return state
}

// lateSink is how old a record may be that a sink has not sent.
const lateSink = time.Minute

// sinkFindings are about the sinks of the policy.
func sinkFindings(c *config.Config) []symptom {
	if len(c.File.Audit.Sinks) == 0 {
		return nil
	}
	dir, err := c.AuditDir()
	if err != nil {
		return nil // the finding about the log says so
	}
	states, err := sink.States(dir)
	if err != nil {
		return []symptom{{"sinks", err.Error(), "egressd log sinks"}}
	}
	byName := map[string]*sink.State{}
	for i := range states {
		byName[states[i].Name] = &states[i]
	}
	var all []symptom
	for _, one := range c.File.Audit.Sinks {
		s := byName[one.Name]
		switch {
		case s == nil:
			all = append(all, symptom{Check: "sinks", Says: one.Name + " begins with the next egressd serve"})
		case s.Failing():
			all = append(all, symptom{"sinks", fmt.Sprintf("%s is %d records behind: %s", one.Name, s.LagRecords, s.Error), "look after the receiver at " + s.To + "; the records are sent when it takes them"})
		case lagAge(s) > lateSink:
			all = append(all, symptom{"sinks", fmt.Sprintf("%s is %d records and %s behind", one.Name, s.LagRecords, lagAge(s)), "start egressd serve, or look after the receiver at " + s.To})
		default:
			all = append(all, symptom{Check: "sinks", Says: fmt.Sprintf("%s has what is in the log up to %d records", one.Name, s.LagRecords)})
		}
	}
	return all
}
