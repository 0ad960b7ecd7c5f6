package logcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newLogExportCommand() *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export --format FORMAT [FILTER…]",
		Short: "Convert the log to OCSF, ECS, Zeek, EVE or CEF",
		Long: `Export writes the audit log as events for other programs, one per line, oldest
first. It takes the filters of egressd log.

  ocsf  Open Cybersecurity Schema Framework 1.5.0
  ecs   Elastic Common Schema 8.17
  zeek  Zeek's conn, http, dns and ssl as JSON, the log's name in "_path"
  eve   Suricata's EVE: alert, flow, http, tls, dns
  cef   ArcSight's Common Event Format 0

Zeek and EVE events exist only for connections that ended or were refused. For
egressd's own format use egressd log --json.`,
		Example: `  egressd log export --format ocsf since:1d --out events.json
  egressd log export --format cef verdict:deny`,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.OutOrStdout(), words)
		},
	}
	cli.FilterFlags(cmd, &o.Source)
	cmd.Flags().StringVar(&o.format, "format", "", "the `FORMAT`: "+strings.Join(export.Formats(), ", "))
	cmd.Flags().StringVar(&o.out, "out", "", "write to `FILE`; it appears when it is complete")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(export.Formats(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

type exportOptions struct {
	source.Source
	format, out string
}

func (o *exportOptions) run(stdout io.Writer, words []string) error {
	encode, ok := export.Named(o.format)
	if !ok {
		return o.unknownFormat()
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	if o.out == "" {
		return exportTo(stdout, log, f, encode)
	}
	var unread error
	err = durable.Rewrite(o.out, 0o600, func(w io.Writer) error {
		unread = exportTo(w, log, f, encode)
		return unread
	})
	if err != nil && unread == nil {
		return hint.Failed(err, "--out FILE in a folder that you may write")
	}
	return err
}

func (o *exportOptions) unknownFormat() error {
	formats := export.Formats()
	example := "egressd log export --format " + formats[0]
	if o.format == "" {
		return hint.Misused(errors.New("export needs a format: "+strings.Join(formats, ", ")), example)
	}
	if near := spelling.Nearest(strings.ToLower(o.format), formats); near != "" {
		example = "egressd log export --format " + near
	}
	return hint.Misused(fmt.Errorf("there is no format %q; there is %s", o.format, strings.Join(formats, ", ")), example)
}

// exportTo writes what passes the filter. It remembers only the flows that are
// open, so that a filter sees of their ends what it sees of them in egressd log.
func exportTo(w io.Writer, log *source.RecordReader, f *logs.Filter, encode export.Encoder) error {
	out := bufio.NewWriterSize(w, 64<<10)
	from := export.Here()
	var joiner logs.Joiner
	var text []byte
	err := log.Each(func(_ string, r *record.Record) error {
		whole := joiner.Complete(r)
		joiner.Follow(r.Clone()) // r is lent
		if !f.Match(whole) {
			return nil
		}
		text = encode(text[:0], r, from)
		_, err := out.Write(text)
		return err
	})
	return errors.Join(err, out.Flush())
}
