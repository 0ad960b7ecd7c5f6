package log

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
)

// A runReport is what came of verifying the log of one run. Error says why it was not read.
type runReport struct {
	Run string `json:"run"`
	*verify.Report
	Error string `json:"error,omitempty"`
}

// verifyRuns verifies the log of each run that has one, the newest first, and exits with the code that concerns most.
func (o *verifyOptions) verifyRuns(stdout, stderr io.Writer) error {
	if o.checkpoint != "" || o.printKey || o.printCheckpoint || o.prove != "" {
		return hint.Misused(errors.New("with --run all, log verify takes no checkpoint and prints no key and no proof"), "the same command with --run last, or with an ID that egressd log --runs lists")
	}
	runs, err := o.ListRuns(0)
	if err != nil {
		return err
	}
	all, elsewhere := []runReport{}, 0
	for _, run := range runs {
		if run.Daemon {
			elsewhere++
			continue
		}
		one := *o
		one.signedSource.Run = run.ID
		report, _, err := one.verify(nil)
		r := runReport{Run: run.ID, Report: report}
		if err != nil {
			r.Error = err.Error()
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return hint.Failed(errors.New("there is no run with a log of its own"), "egressd log verify")
	}
	if o.json {
		err = cli.PrintEach(stdout, all)
	} else {
		err = printRuns(stdout, all)
	}
	if elsewhere > 0 {
		fmt.Fprintf(stderr, "egressd: the records of %s are in the log of egressd serve\n", quantity.Plural(elsewhere, "further run"))
	}
	if code := worstOfRuns(all); err == nil && code != verify.Good {
		if !o.json {
			hint.Sayf(stderr, "egressd log verify --run ID, for each that is not good, and keep a copy of its folder as it is")
		}
		return cli.Status(code)
	}
	return err
}

func printRuns(stdout io.Writer, all []runReport) error {
	good := 0
	for _, r := range all {
		text := ""
		switch {
		case r.Error != "":
			text = "not read: " + r.Error
		case r.Code == verify.Good:
			good++
			text = "good: " + quantity.Plural(int(r.Records), "record")
		default:
			text = r.Verdict + ": " + r.Problem
		}
		if _, err := fmt.Fprintf(stdout, "%s  %s\n", printable.Text(r.Run), printable.Text(text)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(stdout, "%d of %s good\n", good, quantity.Plural(len(all), "log"))
	return err
}

// worstOfRuns returns the code that concerns most: a changed record, the end of a log that is gone, an unknown key, a log that cannot be
// read, and a last write that was cut off.
func worstOfRuns(all []runReport) int {
	order := []int{verify.Tampered, verify.Truncated, verify.Unknown, exitUnread, verify.TornTail, verify.Good}
	worst := len(order) - 1
	for _, r := range all {
		code := exitUnread
		if r.Error == "" {
			code = r.Code
		}
		worst = min(worst, slices.Index(order, code))
	}
	return order[worst]
}
