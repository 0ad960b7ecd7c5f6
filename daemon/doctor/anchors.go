package doctor

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/logs/sink"
)

// anchorFindings are about the receivers of checkpoints that the policy names.
func anchorFindings(c *config.Config) (all []Finding) {
	for _, place := range c.File.Audit.Anchors {
		all = append(all, anchorFinding(c, "anchors", place, "was sent", "look after the receiver; the newest checkpoint is sent when it takes it"))
	}
	for _, w := range c.File.Audit.Witnesses {
		all = append(all, anchorFinding(c, "witnesses", w.URL, "has cosigned", "ask the witness's operator; the newest checkpoint is sent when it takes it"))
	}
	return all
}

func anchorFinding(c *config.Config, check, place, verb, fix string) Finding {
	s := anchorStateOf(c, place)
	switch {
	case s == nil:
		return Finding{Check: check, Says: place + " begins with the next egressd serve or run"}
	case s.Failing:
		return Finding{check, fmt.Sprintf("%s has the checkpoint of %d records: %s", place, s.Size, s.Error), fix}
	}
	return Finding{Check: check, Says: fmt.Sprintf("%s %s the checkpoint of %d records at %s", place, verb, s.Size, s.SentAt.Format(time.RFC3339))}
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
