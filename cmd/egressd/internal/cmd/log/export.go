package log

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newExport(flags *logFlags) *cobra.Command {
	o := exportOptions{logFlags: flags}
	cmd := &cobra.Command{
		Use:   "export --format FORMAT [FILTER…]",
		Short: "Convert the log to CSV, OCSF or ECS",
		Long: `Export writes the audit log for other programs, one record per line, oldest
first. It takes the filters of egressd log, which its help lists.

  json  egressd's own records, with the origin of the log and an id
  csv   a header and a row per record, for spreadsheets and databases
  ocsf  Open Cybersecurity Schema Framework 1.5.0
  ecs   Elastic Common Schema 8.17

egressd help export-formats has the columns, and a table for CEF, EVE and Zeek.`,
		Example: `  egressd log export --format ocsf since:1d --output events.json
  egressd log export --format csv verdict:deny --output denied.csv`,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.Filters(cmd, &o.Source)
	cmd.Flags().StringVar(&o.format, "format", "", "the `FORMAT`: "+strings.Join(exportFormats(), ", "))
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "write to `FILE`; it appears when it is complete")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(exportFormats(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

type exportOptions struct {
	*logFlags
	format, output string
}

// exportFormats are those of sinks, egressd's own and CSV.
func exportFormats() []string { return append([]string{"json", "csv"}, export.Formats()...) }

func (o *exportOptions) run(stdout, stderr io.Writer, words []string) error {
	if o.json && o.format == "" {
		o.format = "json"
	}
	encode, header, ok := export.ToFile(o.format)
	if !ok {
		return o.unknownFormat()
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	defer o.checkUnchanged(log, stderr)()
	if o.output == "" {
		return log.Export(stdout, f, header, encode)
	}
	var unread error
	err = durable.Rewrite(o.output, 0o600, func(w io.Writer) error {
		unread = log.Export(w, f, header, encode)
		return unread
	})
	if err != nil && unread == nil {
		return hint.Failed(err, "--output FILE in a folder that you may write")
	}
	return err
}

func (o *exportOptions) unknownFormat() error {
	formats := exportFormats()
	example := "egressd log export --format " + formats[0]
	if o.format == "" {
		return hint.Misused(errors.New("export needs a format: "+strings.Join(formats, ", ")), example)
	}
	if instead := file.RemovedFormat(o.format); instead != "" {
		return hint.Misused(fmt.Errorf("there is no format %q: %s", o.format, instead), "egressd log --json")
	}
	if near := spelling.Nearest(strings.ToLower(o.format), formats); near != "" {
		example = "egressd log export --format " + near
	}
	return hint.Misused(fmt.Errorf("there is no format %q; there is %s", o.format, strings.Join(formats, ", ")), example)
}
