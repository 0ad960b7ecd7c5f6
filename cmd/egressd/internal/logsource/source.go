// Package logsource finds the audit log for commands, and reads it with their filters: the
// flags, the completion, and the columns of a table that a sandbox may have filled.
package logsource

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/spf13/cobra"
)

// A Source says where the audit log is: in dir, else where the
// configuration has it.
type Source struct{ Config, Dir, Run string }

// AddFlags adds the flags by which a command is told where the log is.
func AddFlags(cmd *cobra.Command, s *Source) {
	cli.ConfigFlag(cmd, &s.Config)
	cmd.Flags().StringVar(&s.Dir, "dir", "", "`DIR` of the audit log (default: the policy's audit.dir)")
	cmd.Flags().StringVar(&s.Run, "run", "", "the log of a run of egressd run: last, or its `ID`")
	cmd.MarkFlagsMutuallyExclusive("dir", "run")
}

// Open opens the log for reading. It takes no lock: the daemon may be writing.
func (s *Source) Open() (*Reader, error) {
	dir, err := s.Directory()
	if err != nil {
		return nil, err
	}
	r, err := audit.NewReader(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hint.Failed(fmt.Errorf("there is no audit log in %s", dir), "egressd serve, which begins one; or egressd log --dir DIR")
	}
	if err != nil {
		return nil, hint.Failed(err, "egressd log --dir DIR, as a user who may read it")
	}
	return &Reader{Dir: dir, lines: r}, nil
}

// Ask reads the words of a filter, and opens the log that they are about.
func (s *Source) Ask(words []string) (*Reader, *logs.Filter, error) {
	f, err := ParseFilter(words, time.Now())
	if err != nil {
		return nil, nil, err
	}
	if f.Run != "" {
		if s.Dir != "" || s.Run != "" && s.Run != f.Run {
			return nil, nil, hint.Misused(fmt.Errorf("run:%s, and another log by a flag", f.Run), "egressd log --run "+shell.Word(f.Run))
		}
		s.Run = f.Run
	}
	log, err := s.Open()
	return log, f, err
}

// ParseFilter is [logs.ParseFilter] for the words of a command.
func ParseFilter(words []string, now time.Time) (*logs.Filter, error) {
	f, err := logs.ParseFilter(words, now)
	var wrong *logs.FilterError
	if errors.As(err, &wrong) {
		next := wrong.Say
		if wrong.Try != "" {
			next = "egressd log " + wrong.Try
		}
		return nil, hint.Misused(wrong, next)
	}
	return f, err
}

// Directory finds the log without a configuration where there is none, since
// the log may have to be read where nothing else is left.
func (s *Source) Directory() (string, error) {
	if s.Dir != "" {
		return s.Dir, nil
	}
	dir, err := s.daemons()
	if err != nil || s.Run == "" {
		return dir, err
	}
	return config.RunDir(config.RunsBeside(dir), s.Run)
}

// daemons is the folder of the daemon's log.
func (s *Source) daemons() (string, error) {
	cfg, err := config.Load(s.Config)
	var missing *config.NotFoundError
	switch {
	case err == nil:
		return cfg.AuditDir()
	case errors.As(err, &missing) && s.Config == "":
		return config.DefaultAuditDir()
	default:
		return "", fmt.Errorf("%w\nso it is not known where the audit log is; egressd log --dir DIR reads it without a policy", err)
	}
}

// PolicyPath names the policy file for a person.
func (s *Source) PolicyPath() string {
	path, err := config.Find(s.Config)
	if err != nil {
		return "egressd.yaml"
	}
	return path
}

// Flags are those that lead another command to the same log and policy.
func (s *Source) Flags() string {
	text := ""
	if s.Config != "" {
		text += " --config " + shell.Word(s.Config)
	}
	if s.Dir != "" {
		text += " --dir " + shell.Word(s.Dir)
	}
	if s.Run != "" {
		text += " --run " + shell.Word(s.Run)
	}
	return text
}

// Answering are the flags of egressd allow, behind the id of a refusal: where a daemon can be
// asked to let it pass for a while, it is.
func (s *Source) Answering() string {
	if cfg, err := config.Load(s.Config); err == nil && s.Run == "" && cfg.File.Listen.Admin != "" {
		return s.Flags()
	}
	return " --save" + s.Flags()
}
