package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
)

// writeProof prints a proof that a record is in the log.
func (o *verifyOptions) writeProof(stdout, stderr io.Writer) error {
	seq, err := o.number(o.prove)
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
	var damaged *verify.NotGoodError
	switch {
	case errors.As(err, &damaged):
		return notGood(stderr, err, damaged.Report, dir)
	case errors.Is(err, verify.ErrNotSigned):
		return hint.Failed(err, "the same in a second, while egressd serve runs")
	case err != nil:
		return hint.Failed(err, "egressd log --json, for the numbers of the records that are there")
	}
	return cli.PrintJSON(stdout, p)
}

// number finds the record that is meant.
func (o *verifyOptions) number(text string) (int64, error) {
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

// checkProof checks the proof in a file, without the log.
func (o *verifyOptions) checkProof(stdout io.Writer) error {
	if o.key == "" {
		return hint.Misused(errors.New("log verify --proof needs the key of the log"), "egressd log verify --proof "+shell.Word(o.proof)+" --key KEY")
	}
	key, err := o.keyOf("")
	if err != nil {
		return err
	}
	var in io.Reader = os.Stdin
	if o.proof != "-" {
		f, err := os.Open(o.proof)
		if errors.Is(err, fs.ErrNotExist) {
			return hint.Failed(err, "egressd log verify --prove ID > FILE")
		}
		if err != nil {
			return hint.Failed(err, "egressd log verify --proof FILE")
		}
		defer f.Close()
		in = f
	}
	p, err := verify.ParseProof(in)
	if err != nil {
		return hint.Misused(fmt.Errorf("%s is not a proof: %w", o.proof, err), "egressd log verify --prove ID > FILE")
	}
	code, err := p.Check(key)
	if code != verify.Good {
		fmt.Fprintf(stdout, "not proved: %s\n", printable.Text(err.Error()))
		return cli.Status(code)
	}
	_, err = fmt.Fprintf(stdout, "proved: record %d of %d\n%s\n", p.Index, p.Size, p.Record)
	return err
}
