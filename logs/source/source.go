// Package source finds the audit log that a user means and reads it.
//
//	s := source.Source{Run: "last"}
//	log, filter, err := s.Ask([]string{"verdict:deny"})
//	defer log.Close()
//	err = log.Decisions(filter, func(r *record.Record) { … })
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// A Source names an audit log: the folder Dir, else the log of the run Run (or of [AllRuns]), else the daemon's log. If the
// daemon has written none, the Source names the log of the last run. The daemon's log is in the folder Daemon if it is known.
// Otherwise the policy file Config names its folder.
//
// [Source.Ask] adds Since and Until to the filter as since: and until:, unless they are "".
type Source struct {
	Config, Dir, Run, Daemon string
	Since, Until             string
	Talk                     io.Writer // is told of a run that was taken for want of a daemon's log; may be nil

	followed string // the folder of the run that Ask has found, or ""
}

// A NoLogError says that there is no log in a folder.
type NoLogError struct{ Dir string }

func (e *NoLogError) Error() string {
	return fmt.Sprintf("there is no log in %s yet: egressd serve has not run", e.Dir)
}

// Open opens the log for reading. It takes no lock, so the daemon may go on writing.
func (s *Source) Open() (*RecordReader, error) {
	s.settle()
	if s.Dir == "" && s.Run == AllRuns {
		return s.openRuns()
	}
	dir, err := s.Directory()
	if err != nil {
		return nil, err
	}
	r, err := audit.NewReader(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hint.Failed(&NoLogError{dir}, "for the last egressd run: egressd log --run last; for all runs: egressd log --run all; for a log elsewhere: egressd log --dir DIR")
	}
	if err != nil {
		return nil, hint.Failed(err, "egressd log --dir DIR, as a user who may read it")
	}
	return readerOf(dir, r), nil
}

// Ask parses the words of a filter and opens the log that the filter is about.
func (s *Source) Ask(words []string) (*RecordReader, *logs.Filter, error) {
	words = slices.Clone(words)
	if s.Since != "" {
		words = append(words, "since:"+s.Since)
	}
	if s.Until != "" {
		words = append(words, "until:"+s.Until)
	}
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
	s.settle()
	if s.Run != "" && s.Run != AllRuns {
		run, err := s.run()
		if err != nil {
			return nil, nil, err
		}
		folder, err := s.runsFolder()
		if err != nil {
			return nil, nil, err
		}
		s.followed = filepath.Join(folder, run.ID)
		if run.Daemon {
			f.During(run.Sandbox, run.Began, run.Ended)
			s.Run, s.Daemon = "", run.Log
		}
	}
	log, err := s.Open()
	if err == nil && f.NamesNumbers() && s.Run != AllRuns {
		err = Resolve(f, log.Dir)
	}
	return log, f, err
}

// Record returns a record of the log in dir by its number.
func Record(dir string, seq int64) (found *record.Record, err error) {
	err = eachFrom(dir, seq, func(r *record.Record) bool {
		found = r
		return false
	})
	if err == nil && (found == nil || found.Seq != seq) {
		err = hint.Failed(fmt.Errorf("there is no record %d in %s", seq, dir), "egressd log verify, which says how many there are")
	}
	return found, err
}

// Resolve is [logs.Filter.Resolve] for the log in dir.
func Resolve(f *logs.Filter, dir string) error {
	return f.Resolve(func(from int64, do func(*record.Record) bool) error { return eachFrom(dir, from, do) })
}

// eachFrom calls do with the records of the log in dir, from a number on, until do returns false.
func eachFrom(dir string, from int64, do func(*record.Record) bool) error {
	lines, err := audit.NewReader(dir, from)
	if err != nil {
		return hint.Failed(err, "keep a copy of "+dir+" as it is")
	}
	defer lines.Close()
	for more := true; more; {
		line, err := lines.Next()
		if err == io.EOF {
			return nil
		}
		var r *record.Record
		if err == nil {
			r, err = record.Decode(line)
		}
		if err != nil {
			return hint.Failed(err, "keep a copy of "+dir+" as it is")
		}
		more = do(r)
	}
	return nil
}

// settle takes the last run if no log was named, no daemon has written one, and there are runs.
func (s *Source) settle() {
	if s.Dir != "" || s.Run != "" || s.Daemon != "" {
		return
	}
	dir, err := s.daemonLog()
	if err != nil {
		return
	}
	if hasLog(dir) {
		return
	}
	runs := s.Runs()
	last := slices.IndexFunc(runs, func(id string) bool { return hasLog(filepath.Join(config.RunsBeside(dir), id)) })
	if last < 0 {
		return
	}
	s.Run = runs[last]
	if s.Talk != nil {
		fmt.Fprintf(s.Talk, "egressd: the log of the last run, %s (--run all reads those of all runs)\n", s.Run)
	}
}

func hasLog(dir string) bool {
	paths, err := audit.Segments(dir)
	return err == nil && len(paths) > 0
}

// DaemonLog returns the folder of the log of egressd serve, which is an error if there is none.
func (s *Source) DaemonLog() (string, error) {
	dir, err := s.daemonLog()
	if err == nil && !hasLog(dir) {
		err = &NoLogError{dir}
	}
	return dir, err
}

// Ended reports whether the run that [Source.Ask] found has ended, so that its log gets no more records. It returns false if
// Ask found no single run.
func (s *Source) Ended() bool {
	if s.followed == "" {
		return false
	}
	r := ReadRun(s.followed)
	return !r.Running
}

// ParseFilter is [logs.ParseFilter] with a hint for words that are wrong.
func ParseFilter(words []string, now time.Time) (*logs.Filter, error) {
	f, err := logs.ParseFilter(words, now)
	if wrong, ok := errors.AsType[*logs.FilterError](err); ok {
		next := wrong.Say
		if wrong.Try != "" {
			next = "egressd log " + wrong.Try
		}
		return nil, hint.Misused(wrong, next)
	}
	return f, err
}

// Directory returns the folder of the log. Without a policy file it returns the default folder, so that a
// log stays readable after the configuration is gone.
func (s *Source) Directory() (string, error) {
	s.settle()
	if s.Dir != "" {
		return s.Dir, nil
	}
	if s.Run == "" {
		return s.daemonLog()
	}
	run, err := s.run()
	return run.Log, err
}

func (s *Source) daemonLog() (string, error) {
	if s.Daemon != "" {
		return s.Daemon, nil
	}
	cfg, err := config.Places(s.Config)
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

// PolicyPath returns the path of the policy file, to show to a person.
func (s *Source) PolicyPath() string {
	path, err := config.Find(s.PolicyFile())
	if err != nil {
		return "egressd.yaml"
	}
	return path
}

// Flags returns the flags with which another command reads the same log and policy, each with a space before it.
func (s *Source) Flags() string {
	text := ConfigFlag(s.PolicyFile())
	if s.Dir != "" {
		text += " --dir " + shell.Word(s.Dir)
	}
	if s.Run != "" {
		text += " --run " + shell.Word(s.Run)
	}
	return text
}

// PolicyFile returns Config, or the policy file that --config of the run named, or "" for the usual one.
func (s *Source) PolicyFile() string {
	if s.Config != "" || s.Dir != "" || s.Run == "" || s.Run == AllRuns {
		return s.Config
	}
	run, err := s.run()
	if err != nil {
		return ""
	}
	return run.Policy
}

// ConfigFlag returns --config for a policy file, with a space before it; "" for the usual one.
func ConfigFlag(path string) string {
	if path == "" {
		return ""
	}
	return " --config " + shell.Word(path)
}

// AllowFlags returns [Source.Flags] for egressd allow --from ID. Without a daemon to ask, it adds --save.
func (s *Source) AllowFlags() string {
	if cfg, err := config.Load(s.Config); err == nil && s.Run == "" && cfg.MayAskAdmin() {
		return s.Flags()
	}
	whole := *s
	whole.Config, whole.Run = s.PolicyFile(), "" // the id is found in any run
	return " --save" + whole.Flags()
}

// AllRuns is the value of [Source.Run] for the logs of all runs, one after the other.
const AllRuns = "all"

// openRuns opens the logs of all runs. It leaves out runs whose records are in the log of a daemon.
func (s *Source) openRuns() (*RecordReader, error) {
	all, err := s.ListRuns(0)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, r := range all {
		if !r.Daemon {
			dirs = append(dirs, r.Log)
		}
	}
	folder, err := s.runsFolder()
	if err != nil {
		return nil, err
	}
	return Several(folder, dirs), nil
}

// Several returns a reader of several logs, of which dirs has the newest first. Their common folder is for errors.
func Several(folder string, dirs []string) *RecordReader {
	l := &RecordReader{Dir: folder, lines: &chain{dirs: dirs}, again: func(time.Time) (lines, error) { return &chain{dirs: dirs}, nil }}
	if len(dirs) > 0 {
		l.last = dirs[0]
	}
	return l
}

// A chain reads several logs. It opens one at a time.
type chain struct {
	dirs []string // the newest first
	read int      // how many of dirs are done, or open
	log  *audit.Reader
}

func (c *chain) Take(buffer []byte) (audit.Block, error) {
	for {
		if c.log == nil {
			if err := c.open(); err != nil {
				return audit.Block{}, err
			}
			continue
		}
		block, err := c.log.Take(buffer)
		if err != io.EOF {
			return block, err
		}
		c.Close()
	}
}

// open opens the next log. A run that is over before it has a log is passed over.
func (c *chain) open() (err error) {
	if c.read == len(c.dirs) {
		return io.EOF
	}
	c.read++
	c.log, err = audit.NewReader(c.dirs[len(c.dirs)-c.read], 0)
	if errors.Is(err, fs.ErrNotExist) {
		c.log = nil
		return nil
	}
	return err
}

func (c *chain) Close() error {
	if c.log == nil {
		return nil
	}
	log := c.log
	c.log = nil
	return log.Close()
}

func (c *chain) Follow(context.Context) error {
	return hint.Misused(errors.New("the runs that are over have nothing new"), "egressd log -f --run last")
}
