package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/records"
	"github.com/spf13/cobra"
)

// A logSource says where the audit log is: in dir, else where the
// configuration has it.
type logSource struct{ config, dir, run string }

func logFlags(cmd *cobra.Command, s *logSource) {
	cli.ConfigFlag(cmd, &s.config)
	cmd.Flags().StringVar(&s.dir, "dir", "", "`DIR` of the audit log (default: the policy's audit.dir)")
	cmd.Flags().StringVar(&s.run, "run", "", "the log of a run of egressd run: last, or its `ID`")
	cmd.MarkFlagsMutuallyExclusive("dir", "run")
}

// open opens the log for reading. It takes no lock: the daemon may be writing.
func (s *logSource) open() (*logReader, error) {
	dir, err := s.directory()
	if err != nil {
		return nil, err
	}
	r, err := audit.NewReader(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Failed(fmt.Errorf("there is no audit log in %s", dir), "egressd serve, which begins one; or egressd log --dir DIR")
	}
	if err != nil {
		return nil, cli.Failed(err, "egressd log --dir DIR, as a user who may read it")
	}
	return &logReader{dir: dir, lines: r}, nil
}

// ask reads the words of a filter, and opens the log that they are about.
func (s *logSource) ask(words []string) (*logReader, *records.Filter, error) {
	f, err := parseFilter(words, time.Now())
	if err != nil {
		return nil, nil, err
	}
	if f.Run != "" {
		if s.dir != "" || s.run != "" && s.run != f.Run {
			return nil, nil, cli.Misused(fmt.Errorf("run:%s, and another log by a flag", f.Run), "egressd log --run "+cli.ShellWord(f.Run))
		}
		s.run = f.Run
	}
	log, err := s.open()
	return log, f, err
}

// parseFilter is [records.ParseFilter] for the words of a command.
func parseFilter(words []string, now time.Time) (*records.Filter, error) {
	f, err := records.ParseFilter(words, now)
	var wrong *records.FilterError
	if errors.As(err, &wrong) {
		hint := wrong.Say
		if wrong.Try != "" {
			hint = "egressd log " + wrong.Try
		}
		return nil, cli.Misused(wrong, hint)
	}
	return f, err
}

// negated writes "-host:x" as "!host:x" where it is an argument of a command that takes a filter,
// before it is taken for a flag. Behind "--" there are no flags.
func negated(args []string) []string {
	if len(args) == 0 || !slices.Contains([]string{"log", "suggest", "replay"}, args[0]) {
		return args
	}
	args = slices.Clone(args)
	for i, word := range args {
		if word == "--" {
			break
		}
		key, _, found := strings.Cut(word, ":")
		if name, dashed := strings.CutPrefix(key, "-"); found && dashed && len(name) > 1 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") == "" {
			args[i] = "!" + word[1:]
		}
	}
	return args
}

// directory finds the log without a configuration where there is none, since
// the log may have to be read where nothing else is left.
func (s *logSource) directory() (string, error) {
	if s.dir != "" {
		return s.dir, nil
	}
	dir, err := s.daemons()
	if err != nil || s.run == "" {
		return dir, err
	}
	return config.RunDir(config.RunsBeside(dir), s.run)
}

// daemons is the folder of the daemon's log.
func (s *logSource) daemons() (string, error) {
	cfg, err := config.Load(s.config)
	var missing *config.NotFoundError
	switch {
	case err == nil:
		return cfg.AuditDir()
	case errors.As(err, &missing) && s.config == "":
		return config.DefaultAuditDir()
	default:
		return "", fmt.Errorf("%w\nso it is not known where the audit log is; egressd log --dir DIR reads it without a policy", err)
	}
}

// policyPath names the policy file for a person.
func (s *logSource) policyPath() string {
	path, err := config.Find(s.config)
	if err != nil {
		return "egressd.yaml"
	}
	return path
}

// A logReader goes over the records of an audit log in their order.
type logReader struct {
	dir   string
	lines *audit.Reader
}

func (l *logReader) close() { l.lines.Close() }

// each calls do with every record that is in the log now: its line and what it
// says, both lent until do returns.
func (l *logReader) each(do func(string, *egress.Record) error) error {
	return l.scan(do, func(do func(string, *egress.Record) error) error { return records.Scan(l.lines, do) })
}

// joined is each with records that j has completed.
func (l *logReader) joined(j *records.Joiner, do func(string, *egress.Record) error) error {
	return l.scan(do, func(do func(string, *egress.Record) error) error { return records.ScanJoined(l.lines, j, do) })
}

// decisions calls do with every decision that is in the log now and passes a
// filter, and with what its flow came to. They are lent until do returns.
func (l *logReader) decisions(f *records.Filter, do func(*egress.Record)) error {
	return l.damage(records.ScanDecisions(l.lines, func(r *egress.Record) {
		if f.Match(r) {
			do(r)
		}
	}))
}

// scan tells an error of do from one of the log.
func (l *logReader) scan(do func(string, *egress.Record) error, scan func(func(string, *egress.Record) error) error) error {
	var own error
	err := scan(func(line string, r *egress.Record) error {
		own = do(line, r)
		return own
	})
	if own != nil {
		return own
	}
	return l.damage(err)
}

func (l *logReader) damage(err error) error {
	if err == nil {
		return nil
	}
	return cli.Failed(err, "keep a copy of "+l.dir+" as it is")
}

// again reads the log from its beginning once more.
func (l *logReader) again() error {
	l.lines.Close()
	lines, err := audit.NewReader(l.dir, 0)
	if err != nil {
		return l.damage(err)
	}
	l.lines = lines
	return nil
}

// follow calls do with every record that comes, completed by j, until ctx ends.
func (l *logReader) follow(ctx context.Context, j *records.Joiner, do func(string, *egress.Record) error) error {
	for {
		err := l.lines.Follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return cli.Failed(err, "egressd log -f")
		}
		if err := l.joined(j, do); err != nil {
			return err
		}
	}
}
