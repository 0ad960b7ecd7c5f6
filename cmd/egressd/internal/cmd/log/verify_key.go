package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
)

// writeKey prints the first public key of the log.
func (o *verifyOptions) writeKey(stdout io.Writer) error {
	dir, err := o.Directory()
	if err != nil {
		return err
	}
	if o.signedSourceIsRun() {
		if dir, err = o.RunsIndex(); err != nil {
			return err
		}
	}
	keys, err := o.keyDir(dir)
	if err != nil {
		return err
	}
	key, err := printedKey(dir, keys)
	if err != nil {
		return err
	}
	if o.json {
		return cli.PrintJSON(stdout, map[string]string{"key": key, "dir": dir})
	}
	_, err = fmt.Fprintln(stdout, key)
	return err
}

// printedKey is the first public key of the log in dir.
func printedKey(dir, keys string) (string, error) {
	key, err := audit.RootKey(dir, keys)
	if errors.Is(err, fs.ErrNotExist) {
		return "", hint.Failed(fmt.Errorf("there is no signed log in %s, or its key is not on this machine", dir), "egressd serve, which begins one")
	}
	return key, explainKey(err)
}

// writeCheckpoint verifies the log, and prints its newest checkpoint.
func (o *verifyOptions) writeCheckpoint(stdout, stderr io.Writer) error {
	report, dir, err := o.verify(nil)
	if err != nil {
		return err
	}
	if report.Code != verify.Good && report.Code != verify.TornTail {
		return notGood(stderr, &verify.NotGoodError{Report: report}, report, dir)
	}
	if o.json {
		return cli.PrintJSON(stdout, map[string]string{"checkpoint": report.Newest})
	}
	_, err = fmt.Fprintln(stdout, report.Newest)
	return err
}

// notGood says that nothing was printed of a log that is not good, and returns the exit code of egressd log verify for it.
func notGood(stderr io.Writer, err error, report *verify.Report, dir string) error {
	hint.Write(stderr, err, "egressd log verify "+shell.Word(dir))
	return cli.Status(report.Code)
}
