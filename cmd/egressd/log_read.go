package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
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

// flags are those that lead another command to the same log and policy.
func (s *logSource) flags() string {
	text := ""
	if s.config != "" {
		text += " --config " + cli.ShellWord(s.config)
	}
	if s.dir != "" {
		text += " --dir " + cli.ShellWord(s.dir)
	}
	return text
}
