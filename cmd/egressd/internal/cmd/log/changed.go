package log

import (
	"fmt"
	"io"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs/source"
)

// checkUnchanged begins to verify the log that a command reads. The function that it returns waits for the result. It writes
// a line to w if somebody changed the log or cut it. Without the key of the log, it may find neither.
func (o *logFlags) checkUnchanged(log *source.RecordReader, w io.Writer) (say func()) {
	own := *o // the verification reads it while the command goes on
	own.Talk = nil
	result := make(chan string, 1)
	go func() { result <- own.changed(log.Dir) }()
	return func() {
		if why := <-result; why != "" {
			fmt.Fprintf(w, "egressd: warning: do not rely on this log: %s (egressd log verify%s)\n", printable.Text(why), own.Flags())
		}
	}
}

// changed says why the log in dir, or that of a run, cannot be relied on. It returns "" if nothing speaks against the log.
func (o *logFlags) changed(dir string) string {
	if o.Run != source.AllRuns {
		return o.changedOne(dir)
	}
	runs, err := o.ListRuns(0)
	if err != nil {
		return ""
	}
	for _, run := range runs {
		one := *o
		one.Run = run.ID
		if run.Daemon {
			continue
		}
		if why := one.changedOne(run.Log); why != "" {
			return "run " + run.ID + ": " + why
		}
	}
	return ""
}

func (o *logFlags) changedOne(dir string) string {
	v := verifyOptions{signedSource: signedSource{logFlags: o}}
	report, key, _, err := v.verifyIn(dir, nil, verify.Quick)
	if err != nil {
		return "" // egressd log verify says why it cannot be told
	}
	if report.Code == verify.Tampered || report.Code == verify.Truncated || report.Code == verify.Unknown && key != "" {
		return report.Verdict + ": " + report.Problem
	}
	return ""
}
