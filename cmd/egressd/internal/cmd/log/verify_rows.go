package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/export"
)

// maxKeys is how large a file of keys may be.
const maxKeys = 16 << 20

// A rowsAnswer is what --rows prints as JSON.
type rowsAnswer struct {
	Logs    []verify.RowsReport `json:"logs"`
	Strange int64               `json:"strange"` // rows without a record of egressd
}

// checkRows says which rows of a store are records of which log.
func (o *verifyOptions) checkRows(stdout, stderr io.Writer) error {
	given, err := o.given()
	if err != nil {
		return err
	}
	keys, err := o.rowKeys()
	if err != nil {
		return err
	}
	from := io.Reader(os.Stdin)
	if o.rows != "-" {
		f, err := os.Open(o.rows)
		if err != nil {
			return hint.Failed(err, "egressd log verify --rows FILE")
		}
		defer f.Close()
		from = f
	}
	var all verify.Rows
	answer := rowsAnswer{Logs: []verify.RowsReport{}}
	if answer.Strange, err = export.EachRow(from, func(r export.Found) { all.Add(r.Line, r.Origin) }); err != nil {
		return hint.Failed(err, "egressd log verify --rows FILE, with a row a line")
	}
	reports, err := all.Verify(keys, given)
	if err != nil {
		return hint.Misused(err, "egressd log verify --rows FILE --checkpoint FILE --key FILE")
	}
	if len(reports) == 0 {
		return hint.Misused(errors.New("the rows hold no record of egressd"), "egressd help verify-the-log")
	}
	answer.Logs = append(answer.Logs, reports...)
	if o.json {
		err = cli.PrintJSON(stdout, answer)
	} else {
		err = o.printRows(stdout, stderr, &answer)
	}
	if code := worst(reports); err == nil && code != verify.Good {
		err = cli.Status(code)
	}
	return err
}

// worst returns the code that concerns most: a changed record before a missing one, and that before an unknown key.
func worst(reports []verify.RowsReport) int {
	for _, code := range []int{verify.Tampered, verify.Truncated, verify.Unknown} {
		for i := range reports {
			if reports[i].Code == code {
				return code
			}
		}
	}
	return verify.Good
}

// rowKeys returns the keys of --key: one, or those of a file.
func (o *verifyOptions) rowKeys() ([]string, error) {
	if o.key == "" {
		return nil, nil
	}
	text := o.key
	if verify.CheckKey(text) != nil {
		file, err := durable.Read(o.key, maxKeys)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, hint.Failed(err, "egressd log verify --key FILE")
		}
		text = string(file)
	}
	keys := strings.Fields(text)
	if len(keys) == 0 {
		return nil, hint.Misused(fmt.Errorf("%s holds no key", o.key), "egressd log verify --print-key, on each machine")
	}
	return keys, nil
}

func (o *verifyOptions) printRows(stdout, stderr io.Writer, a *rowsAnswer) error {
	var b strings.Builder
	vouched := true
	for i := range a.Logs {
		r := &a.Logs[i]
		name := r.Origin
		if name == "" {
			name = "a log without a name"
		}
		fmt.Fprintf(&b, "%s: %s: %s, the last is %d\n", name, r.Verdict, quantity.Plural(int(r.Records), "record"), r.Last)
		if len(r.Changed) > 0 {
			fmt.Fprintf(&b, "  changed: a record of %s\n", verify.Spans(r.Changed))
		}
		if r.Broken > 0 {
			fmt.Fprintf(&b, "  changed: %s do not say which record they were\n", quantity.Plural(int(r.Broken), "row"))
		}
		if len(r.Missing) > 0 {
			fmt.Fprintf(&b, "  missing: %s\n", verify.Spans(r.Missing))
		}
		for _, seq := range r.Cut {
			fmt.Fprintf(&b, "  cut: %d\n", seq)
		}
		if r.Doubled > 0 {
			fmt.Fprintf(&b, "  doubled: %s\n", quantity.Plural(int(r.Doubled), "row"))
		}
		fmt.Fprintf(&b, "  the first %s agree with %s and heartbeats\n", quantity.Plural(int(r.Agreed), "record"), quantity.Plural(r.Checkpoints, "checkpoint"))
		if r.UnknownKeys > 0 {
			fmt.Fprintf(&b, "  %s are signed by no known key, and do not count\n", quantity.Plural(r.UnknownKeys, "checkpoint"))
		}
		if r.Unvouched > 0 {
			vouched = false
			fmt.Fprintf(&b, "  no checkpoint covers the last %s\n", quantity.Plural(int(r.Unvouched), "record"))
		}
		if r.Follows != "" {
			fmt.Fprintf(&b, "  it was begun anew: the log before is %s\n", r.Follows)
		}
		if r.FollowedBy != "" {
			fmt.Fprintf(&b, "  it ended, and %s was begun anew\n", r.FollowedBy)
		}
	}
	if a.Strange > 0 {
		fmt.Fprintf(&b, "%s without a record of egressd\n", quantity.Plural(int(a.Strange), "row"))
	}
	_, err := io.WriteString(stdout, printableLines(b.String()))
	if !vouched && o.checkpoint == "" {
		hint.Sayf(stderr, "add --checkpoint FILE, with the checkpoints that audit.anchors sent elsewhere")
	}
	return err
}
