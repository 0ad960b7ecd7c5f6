package doctor

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/runs"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/sink"
)

// lateSink is how old a record may be that a sink has not sent.
const lateSink = time.Minute

// sinkFindings are about the sinks of the policy.
func sinkFindings(c *config.Config) []Finding {
	if len(c.File.Audit.Sinks) == 0 {
		return nil
	}
	dir, err := c.AuditDir()
	if err != nil {
		return nil // the finding about the log says so
	}
	states, err := sink.States(dir)
	if err != nil {
		return []Finding{{"sinks", err.Error(), "egressd status --sinks"}}
	}
	byName := map[string]*sink.State{}
	for i := range states {
		byName[states[i].Name] = &states[i]
	}
	var all []Finding
	if folder, err := c.RunsDir(); err == nil {
		if n := runs.Unsent(folder); n > 0 {
			all = append(all, Finding{"sinks", quantity.Plural(n, "run") + " have records that a sink has not got", "look after the receivers; the next egressd run or serve sends the rest"})
		}
	}
	for _, one := range c.File.Audit.Sinks {
		s := byName[one.Name]
		switch {
		case s == nil:
			all = append(all, Finding{Check: "sinks", Says: one.Name + " begins with the next egressd serve or run"})
		case s.Failing():
			all = append(all, Finding{"sinks", fmt.Sprintf("%s is %d records behind: %s", one.Name, s.LagRecords, s.Error), "look after the receiver at " + s.To + "; the records are sent when it takes them"})
		case s.Lacking() > 0:
			all = append(all, Finding{"sinks", fmt.Sprintf("%s lacks %d records: %d refused and sent again, %d thrown away by the receiver, %d removed from the log before they were sent; %s", one.Name, s.Lacking(), len(s.Aside), s.Rejected, s.Missed, s.Error),
				"look after the receiver at " + s.To + "; egressd log export has the records that are in the log"})
		case s.Lag() > lateSink:
			all = append(all, Finding{"sinks", fmt.Sprintf("%s is %d records and %s behind", one.Name, s.LagRecords, s.Lag()), "start egressd serve, or look after the receiver at " + s.To})
		case s.Lossy:
			all = append(all, Finding{Check: "sinks", Says: fmt.Sprintf("%s was sent what is in the log up to %d records; UDP loses records", one.Name, s.LagRecords)})
		default:
			all = append(all, Finding{Check: "sinks", Says: fmt.Sprintf("%s has what is in the log up to %d records", one.Name, s.LagRecords)})
		}
	}
	return all
}

// anchorFindings are about the receivers of checkpoints that the policy names.
func anchorFindings(c *config.Config) (all []Finding) {
	for _, place := range c.File.Audit.Anchors {
		all = append(all, anchorFinding(c, place))
	}
	return all
}

func anchorFinding(c *config.Config, place string) Finding {
	s := anchorStateOf(c, place)
	switch {
	case s == nil:
		return Finding{Check: "anchors", Says: place + " begins with the next egressd serve or run"}
	case s.Failing:
		return Finding{"anchors", fmt.Sprintf("%s has the checkpoint of %d records: %s", place, s.Size, s.Error), "look after the receiver; the newest checkpoint is sent when it takes it"}
	}
	return Finding{Check: "anchors", Says: fmt.Sprintf("%s was sent the checkpoint of %d records at %s", place, s.Size, s.SentAt.Format(time.RFC3339))}
}

// anchorStateOf returns the newest that is known of a receiver, from the daemon's log or
// the index of runs, or nil.
func anchorStateOf(c *config.Config, place string) (newest *sink.AnchorState) {
	var dirs []string
	if dir, err := c.AuditDir(); err == nil {
		dirs = append(dirs, dir)
	}
	if runs, err := c.RunsDir(); err == nil {
		dirs = append(dirs, config.RunsIndexBeside(runs))
	}
	for _, dir := range dirs {
		s, err := sink.AnchorStateOf(dir, place)
		if err == nil && (newest == nil || lastOf(s).After(lastOf(newest))) {
			newest = s
		}
	}
	return newest
}

func lastOf(s *sink.AnchorState) time.Time {
	if s.ErrorAt.After(s.SentAt) {
		return s.ErrorAt
	}
	return s.SentAt
}

// boundFinding compares the space that the log in dir may take with the free space of its disk.
func boundFinding(c *config.Config, dir string) Finding {
	kept, byDefault, err := c.Retained()
	if err != nil {
		return Finding{"log", err.Error(), "ls -ld " + dir}
	}
	says := dir
	switch {
	case byDefault:
		says += ", at most " + quantity.Bytes(kept.Bytes) + " of it, since audit.retain is not set"
	case kept.All:
		says += ", all of it"
	case kept.Bytes > 0:
		says += ", at most " + quantity.Bytes(kept.Bytes) + " of it"
	}
	free, size, err := audit.Space(dir)
	if err == nil && free < audit.Floor(size) {
		return Finding{"log", fmt.Sprintf("%s; its disk has %s free, so denials are summed sooner", says, quantity.Bytes(free)), "free space there, or lower audit.retain.bytes"}
	}
	return Finding{Check: "log", Says: says}
}
