package logcmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
)

func newLogProveCommand() *cobra.Command {
	var o proveOptions
	cmd := &cobra.Command{
		Use:   "prove ID|SEQ",
		Short: "Prove that one record is in the log",
		Long: `Prove prints a proof that a record is in the log: the first record of the given id,
or the record with the given number. Anybody who has the log's key can check the
proof with --check, without the log. A record can be proved one or two seconds
after it was written.

Exit codes of --check: 0 proved; 1 not proved; 4 the proof begins with another
key; 5 usage, or the file is not a proof.`,
		Example: `  egressd log prove 01KB6ZQ4SZ > proof.json
  egressd log prove --check proof.json --key egressd/8f0c…+6a1b22c3+AQ…`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.check != "" {
				return asUnread(o.checkFile(cmd.OutOrStdout(), args))
			}
			return o.prove(cmd.OutOrStdout(), args)
		},
	}
	cli.OneLogFlags(cmd, &o.Source)
	o.keyFlag(cmd)
	cmd.Flags().StringVar(&o.check, "check", "", "check the proof in `FILE` instead (- for standard input)")
	return cmd
}

type proveOptions struct {
	signedSource
	check string
}

func (o *proveOptions) prove(stdout io.Writer, args []string) error {
	if len(args) != 1 {
		return hint.Misused(errors.New("log prove takes the id of a flow, or the number of a record"), "egressd log prove ID")
	}
	seq, err := o.number(args[0])
	if err != nil {
		return err
	}
	dir, err := o.Directory()
	if err != nil {
		return err
	}
	key, _, _, err := o.find(dir, nil)
	if err != nil {
		return err
	}
	p, err := verify.Prove(dir, key, seq)
	var notGood *verify.NotGoodError
	switch {
	case errors.As(err, &notGood):
		return hint.Failed(err, "egressd log verify "+shell.Word(dir))
	case errors.Is(err, verify.ErrNotSigned):
		return hint.Failed(err, "the same in a second, while egressd serve runs")
	case err != nil:
		return hint.Failed(err, "egressd log --json, for the numbers of the records that are there")
	}
	return cli.PrintJSON(stdout, p)
}

// number finds the record that is meant.
func (o *proveOptions) number(text string) (int64, error) {
	if seq, err := strconv.ParseInt(text, 10, 64); err == nil {
		return seq, nil
	}
	log, err := o.Open()
	if err != nil {
		return 0, err
	}
	defer log.Close()
	found := int64(-1)
	err = log.Each(func(_ string, r *record.Record) error {
		if found < 0 && r.Flow != "" && strings.HasPrefix(r.Flow, text) {
			found = r.Seq
		}
		return nil
	})
	if err == nil && found < 0 {
		err = hint.Failed(fmt.Errorf("no record in %s is of a flow %q", log.Dir, text), "egressd log -f, which shows ids")
	}
	return found, err
}

func (o *proveOptions) checkFile(stdout io.Writer, args []string) error {
	if len(args) > 0 || o.key == "" {
		return hint.Misused(errors.New("log prove --check needs the key of the log, and no record"), "egressd log prove --check FILE --key KEY")
	}
	key, err := o.keyOf("")
	if err != nil {
		return err
	}
	var in io.Reader = os.Stdin
	if o.check != "-" {
		f, err := os.Open(o.check)
		if errors.Is(err, fs.ErrNotExist) {
			return hint.Failed(err, "egressd log prove ID > FILE")
		}
		if err != nil {
			return hint.Failed(err, "egressd log prove --check FILE")
		}
		defer f.Close()
		in = f
	}
	p, err := verify.ParseProof(in)
	if err != nil {
		return hint.Misused(fmt.Errorf("%s is not a proof: %w", o.check, err), "egressd log prove ID > FILE")
	}
	code, err := p.Check(key)
	if code != verify.Good {
		fmt.Fprintf(stdout, "not proved: %s\n", printable.Text(err.Error()))
		return cli.Status(code)
	}
	_, err = fmt.Fprintf(stdout, "proved: record %d of %d\n%s\n", p.Index, p.Size, p.Record)
	return err
}
