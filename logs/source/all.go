package source

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
)

// AllRuns is the value of [Source.Run] for the logs of all runs, one after the other.
const AllRuns = "all"

// openRuns opens the logs of all runs. It leaves out runs whose records are in the log of a daemon.
func (s *Source) openRuns() (*Reader, error) {
	all, err := s.ListRuns(0)
	if err != nil {
		return nil, err
	}
	c := &chain{}
	for _, r := range all {
		if !r.Daemon {
			c.dirs = append(c.dirs, r.Log)
		}
	}
	folder, err := s.runsFolder()
	if err != nil {
		return nil, err
	}
	return &Reader{Dir: folder, lines: c, again: func(time.Time) (lines, error) { return &chain{dirs: c.dirs}, nil }}, nil
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
