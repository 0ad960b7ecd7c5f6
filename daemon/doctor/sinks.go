package doctor

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/config"
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
		return []Finding{{"sinks", err.Error(), "egressd log sinks"}}
	}
	byName := map[string]*sink.State{}
	for i := range states {
		byName[states[i].Name] = &states[i]
	}
	var all []Finding
	for _, one := range c.File.Audit.Sinks {
		s := byName[one.Name]
		switch {
		case s == nil:
			all = append(all, Finding{Check: "sinks", Says: one.Name + " begins with the next egressd serve"})
		case s.Failing():
			all = append(all, Finding{"sinks", fmt.Sprintf("%s is %d records behind: %s", one.Name, s.LagRecords, s.Error), "look after the receiver at " + s.To + "; the records are sent when it takes them"})
		case s.Lag() > lateSink:
			all = append(all, Finding{"sinks", fmt.Sprintf("%s is %d records and %s behind", one.Name, s.LagRecords, s.Lag()), "start egressd serve, or look after the receiver at " + s.To})
		default:
			all = append(all, Finding{Check: "sinks", Says: fmt.Sprintf("%s has what is in the log up to %d records", one.Name, s.LagRecords)})
		}
	}
	return all
}
