package log

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
	"github.com/spf13/cobra"
)

// exitUnread is for log verify where there is nothing to judge.
const exitUnread = 5

// maxGiven is how large a file of checkpoints may be.
const maxGiven = 256 << 20

func newVerify(flags *logFlags) *cobra.Command {
	o := verifyOptions{signedSource: signedSource{logFlags: flags}}
	cmd := &cobra.Command{
		Use:   "verify [DIR]",
		Short: "Verify that no record was changed or removed, and prove single ones",
		Long: `Verify reads the whole log and compares it with its signed checkpoints. It can do so
while egressd writes. On the machine that writes the log it knows the key;
elsewhere pass --key. --print-key prints the first public key; all later keys are
derived from its signatures. With --run it is the key for all runs of your user.
--run all verifies the log of each run, a line each, and exits with the code that
concerns most.

Somebody with today's key can cut off the end of a log. Only a checkpoint that you
kept elsewhere (--checkpoint) shows that. --print-checkpoint verifies the log and
prints its newest one: a signed note (C2SP tlog-checkpoint) with the number of records
and the hash of all of them.

--prove prints a proof that one record is in the log: the first of the given id, or the
one with the given number, one or two seconds after it was written. Anybody who has the
key can check the proof with --proof FILE, without the log.

--rows FILE says which rows of a store are records of which log, and which records are
missing, cut, doubled or changed: JSON lines of VictoriaLogs, hits of Elasticsearch, or
the lines of a file. It needs no log. --checkpoint and --key, here also a file with a key
a line, say what the rows have to be; the heartbeats among them are compared, too.

Exit codes: 0 good; 1 tampered, with the records concerned; 2 truncated, or not
the log of the given checkpoint; 3 only the last write was cut off, which the next
start repairs; 4 the key is unknown or did not sign this log; 5 usage, or the log
could not be read. Of --proof: 0 proved, 1 not proved, 4 another key. Of --rows: 1 a
record was changed, 2 one is missing or cut, 4 no checkpoint is signed by the key. egressd help audit-format has the format.`,
		Example: `  egressd log verify
  egressd log verify ./copy --key egressd/8f0c…+6a1b22c3+AQ… --checkpoint kept.txt
  egressd log verify --run all
  egressd log verify --print-key > log-key.txt
  egressd log verify --print-checkpoint | ssh auditor 'cat >> checkpoints.txt'
  egressd log verify --prove 01KB6ZQ4SZ > proof.json
  egressd log verify --proof proof.json --key log-key.txt
  egressd log verify --rows rows.jsonl --checkpoint kept.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Refuse(cmd, "since", "until"); err != nil {
				return asUnread(err)
			}
			return asUnread(o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args))
		},
	}
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { o.Talk = cmd.ErrOrStderr() }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return asUnread(cli.FlagError(cmd, err)) })
	o.keyFlag(cmd)
	cmd.Flags().StringVar(&o.checkpoint, "checkpoint", "", "`FILE` of checkpoints of this log that you kept elsewhere")
	cmd.Flags().BoolVar(&o.printKey, "print-key", false, "print the public key that verifies the log")
	cmd.Flags().BoolVar(&o.printCheckpoint, "print-checkpoint", false, "print the newest checkpoint of the log")
	cmd.Flags().StringVar(&o.prove, "prove", "", "print a proof that the record `ID|SEQ` is in the log")
	cmd.Flags().StringVar(&o.proof, "proof", "", "check the proof in `FILE` instead (- for standard input)")
	cmd.Flags().StringVar(&o.rows, "rows", "", "check the rows of a store in `FILE` instead (- for standard input)")
	cmd.MarkFlagsMutuallyExclusive("print-key", "print-checkpoint", "prove", "proof", "rows")
	cmd.MarkFlagsMutuallyExclusive("print-key", "print-checkpoint", "prove", "proof", "checkpoint")
	return cmd
}

// asUnread gives errors of a command whose answer is its exit code the code that is
// no answer.
func asUnread(err error) error {
	if _, answer := errors.AsType[cli.Status](err); err == nil || answer {
		return err
	}
	return &hint.Error{Code: exitUnread, Err: err, Hint: hint.Next(err)}
}

// A signedSource is a log and the key that it is verified with.
type signedSource struct {
	*logFlags
	key string
}

func (o *signedSource) keyFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.key, "key", "", "public `KEY` of the log, or a file with it (default: this machine's)")
}

type verifyOptions struct {
	signedSource
	checkpoint string

	// Of these, one at most is asked for instead of the log as a whole.
	printKey, printCheckpoint bool
	prove, proof, rows        string
}

func (o *verifyOptions) run(stdout, stderr io.Writer, args []string) error {
	if len(args) > 1 || len(args) == 1 && (o.Dir != "" || o.signedSource.Run != "") {
		return hint.Misused(errors.New("log verify takes one folder"), "egressd log verify DIR")
	}
	if len(args) == 1 {
		o.Dir = args[0]
	}
	switch {
	case o.signedSource.Run == source.AllRuns && o.proof == "" && o.rows == "":
		return o.verifyRuns(stdout, stderr)
	case o.printKey:
		return o.writeKey(stdout)
	case o.printCheckpoint:
		return o.writeCheckpoint(stdout, stderr)
	case o.prove != "":
		return o.writeProof(stdout, stderr)
	case o.proof != "":
		return o.checkProof(stdout)
	case o.rows != "":
		if o.Dir != "" || o.signedSource.Run != "" {
			return hint.Misused(errors.New("--rows needs no log: it reads rows of a store"), "egressd log verify --rows FILE --checkpoint FILE")
		}
		return o.checkRows(stdout, stderr)
	}
	given, err := o.given()
	if err != nil {
		return err
	}
	report, dir, err := o.verify(given)
	if err != nil {
		return err
	}
	if o.json {
		err = cli.PrintJSON(stdout, report)
	} else {
		err = o.print(stdout, stderr, report, dir)
	}
	if err == nil && report.Code != verify.Good {
		err = cli.Status(report.Code)
	}
	return err
}

// given reads the checkpoints that were kept elsewhere.
func (o *verifyOptions) given() ([]byte, error) {
	if o.checkpoint == "" {
		return nil, nil
	}
	given, err := durable.Read(o.checkpoint, maxGiven)
	if err != nil {
		return nil, hint.Failed(err, "egressd log verify --checkpoint FILE")
	}
	if len(strings.TrimSpace(string(given))) == 0 {
		return nil, hint.Misused(fmt.Errorf("%s holds no checkpoint", o.checkpoint), "egressd log verify --print-checkpoint, which prints one")
	}
	return given, nil
}

// verify finds the log, its key and, for a run, what the index of runs has of it.
func (o *verifyOptions) verify(given []byte) (*verify.Report, string, error) {
	if o.signedSourceIsRun() && o.OfDaemon() {
		return nil, "", hint.Misused(errors.New("the records of this run are in the log of egressd serve"), "egressd log verify")
	}
	dir, err := o.Directory()
	if err != nil {
		return nil, "", err
	}
	report, _, where, err := o.verifyIn(dir, given, verify.Log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", hint.Failed(fmt.Errorf("there is no log in %s", dir), "egressd log verify DIR")
	}
	return report, where, err
}

// verifyIn has a function of package verify read the log in dir. The key is "" if this machine does not know it. The folder where is
// dir, or the index of runs if the index is not good.
func (o *verifyOptions) verifyIn(dir string, given []byte, read func(dir, key string, given []byte) (*verify.Report, error)) (_ *verify.Report, key, where string, _ error) {
	key, ended, given, err := o.find(dir, given)
	var notGood *verify.NotGoodError
	switch {
	case errors.As(err, &notGood): // the index is not good: so is what it vouches for
		return notGood.Report, key, config.RunsIndexBeside(filepath.Dir(dir)), nil
	case err != nil:
		return nil, "", "", err
	}
	if ended != "" {
		given = append(append([]byte(ended+"\n"), given...), '\n')
	}
	report, err := read(dir, key, given)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = hint.Failed(err, "egressd log verify DIR --key KEY --checkpoint FILE, as a user who may read it")
	}
	return report, key, dir, err
}

// find returns the root key of the log in dir ("" if it is unknown), the last checkpoint of a run that has ended, and
// the given checkpoints of this log.
func (o *signedSource) find(dir string, given []byte) (key, ended string, left []byte, err error) {
	if o.signedSourceIsRun() {
		return o.findRun(dir, given)
	}
	key, err = o.keyOf(dir)
	return key, "", given, err
}

func (o *signedSource) signedSourceIsRun() bool { return o.Source.Run != "" }

// keyOf returns the key that was given, else the one that this machine knows.
func (o *signedSource) keyOf(dir string) (string, error) {
	if o.key == "" {
		return o.known(dir)
	}
	key := o.key
	if verify.CheckKey(key) != nil {
		text, err := durable.Read(o.key, 4<<10)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", hint.Failed(err, "egressd log verify --key KEY")
		}
		key = strings.TrimSpace(string(text))
	}
	if err := verify.CheckKey(key); err != nil {
		return "", hint.Misused(fmt.Errorf("--key is neither the key of a log nor a file that holds one: %w", err), "egressd log verify --print-key, on the machine that writes the log")
	}
	return key, nil
}

// known returns the root key of a log of this machine, or "".
func (o *signedSource) known(dir string) (string, error) {
	keys, err := o.keyDir(dir)
	if err != nil {
		return "", err
	}
	key, err := audit.RootKey(dir, keys)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	return key, explainKey(err)
}

// explainKey gives an error about a key the line that says what to do.
func explainKey(err error) error {
	if refusal, ok := errors.AsType[*audit.Refusal](err); ok {
		return hint.Failed(err, refusal.Fix)
	}
	return err
}

// keyDir finds the folder of keys without a configuration where there is none.
func (o *signedSource) keyDir(dir string) (string, error) {
	cfg, err := config.Load(o.Config)
	if err == nil {
		return cfg.KeyDir()
	}
	var missing *config.NotFoundError
	if !errors.As(err, &missing) && o.Dir == "" {
		return "", err
	}
	return config.DefaultKeyDir(func() (string, error) { return dir, nil })
}

func (o *signedSource) findRun(dir string, given []byte) (key, ended string, left []byte, err error) {
	index := config.RunsIndexBeside(filepath.Dir(dir))
	root, err := o.keyOf(index)
	if err != nil {
		return "", "", nil, err
	}
	mine, left, err := verify.CheckpointsOf(given, root)
	if err != nil {
		return "", "", nil, hint.Failed(err, "egressd log verify --run ID --checkpoint FILE")
	}
	report, err := verify.Log(index, root, mine)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil, hint.Failed(fmt.Errorf("there is no index of runs in %s", index), "egressd log verify DIR --key KEY, with the folder of the run and its key")
	}
	if err != nil {
		return "", "", nil, hint.Failed(err, "egressd log verify "+index)
	}
	if report.Code != verify.Good && report.Code != verify.TornTail {
		report.Problem = "the index of runs: " + report.Problem
		return "", "", nil, &verify.NotGoodError{Report: report}
	}
	key, ended, err = runRecord(index, filepath.Base(dir))
	return key, ended, left, err
}

func runRecord(index, run string) (key, ended string, err error) {
	r, err := audit.NewReader(index, 0)
	if err != nil {
		return "", "", hint.Failed(err, "egressd log verify "+index)
	}
	defer r.Close()
	for {
		line, err := r.Next()
		if err == io.EOF {
			return key, ended, nil
		}
		if err != nil {
			return "", "", hint.Failed(err, "egressd log verify "+index)
		}
		var record struct{ Kind, Run, Key, Checkpoint string }
		if err := json.Unmarshal(line, &record); err != nil || record.Run != run {
			continue
		}
		switch {
		case record.Kind == "run" && key == "":
			key = record.Key
		case record.Kind == "run-end" && ended == "":
			ended = record.Checkpoint
		}
	}
}

func (o *verifyOptions) print(stdout, stderr io.Writer, r *verify.Report, dir string) error {
	var b strings.Builder
	next := ""
	switch r.Code {
	case verify.Good, verify.TornTail:
		fmt.Fprintf(&b, "%s: %s in %s, %s\n", r.Verdict, quantity.Plural(int(r.Records), "record"), quantity.Plural(int(r.Segments), "segment"), quantity.Plural(int(r.Epochs), "signing key"))
		if r.Removed > 0 {
			fmt.Fprintf(&b, "audit.retain removed %d segments; their hashes are still here\n", r.Removed)
		}
		if r.Code == verify.TornTail {
			fmt.Fprintf(&b, "%s: the last %d bytes are an incomplete record; the next start moves them aside\n", r.Problem, r.TornBytes)
		}
		if r.Unsigned > 0 {
			fmt.Fprintf(&b, "the last %d records are not signed yet\n", r.Unsigned)
		}
		if r.Unvouched > 0 {
			fmt.Fprintf(&b, "no checkpoint from elsewhere covers the last %d records: somebody with this machine's key could replace them or cut off the end\n", r.Unvouched)
			if o.checkpoint == "" {
				next = "keep checkpoints on another machine (egressd log verify --print-checkpoint" + o.Flags() + "), and verify with --checkpoint FILE"
			}
		}
	default:
		fmt.Fprintf(&b, "%s: %s\n", r.Verdict, r.Problem)
		if stopped := r.Stopped(); stopped != "" {
			fmt.Fprintf(&b, "%s\n", stopped)
		}
		next = verifyHint(r.Code, dir)
	}
	_, err := io.WriteString(stdout, printableLines(b.String()))
	if next != "" {
		hint.Sayf(stderr, "%s", next)
	}
	return err
}

func verifyHint(code int, dir string) string {
	if code == verify.Unknown {
		return "egressd log verify " + shell.Word(dir) + " --key KEY, with the key that egressd log verify --print-key printed on the machine of the log"
	}
	return "keep a copy of " + shell.Word(dir) + " as it is"
}

func printableLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(printable.Text(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return b.String()
}
