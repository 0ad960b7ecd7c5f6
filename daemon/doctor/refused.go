package doctor

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// refusedAge is how far back doctor looks for containers that were refused.
const refusedAge = 24 * time.Hour

// refusedFindings are about containers that were refused in the last day. That egressd refused them is no problem of this machine.
func refusedFindings(c *config.Config, now time.Time) []Finding {
	count, last := refusedSince(c, now.Add(-refusedAge), func(*record.Container) bool { return true })
	if last == nil {
		return nil
	}
	return []Finding{{Check: "refused", Says: fmt.Sprintf("%s in the last day; the last one, %s: %s (egressd why %s)",
		quantity.Plural(count, "container"), cmp.Or(last.Container.Name, last.Container.ID), last.Decision.Reason, last.Flow)}}
}

// RefusedContainer looks in the log for the refusal of a container that the engine no longer has, by its name or the beginning of
// its ID. It returns nil if the log has none.
func RefusedContainer(c *config.Config, name string) *Finding {
	_, last := refusedSince(c, time.Time{}, func(k *record.Container) bool {
		return k.Name == name || len(name) >= len(k.ID) && k.ID != "" && strings.HasPrefix(name, k.ID)
	})
	if last == nil {
		return nil
	}
	return &Finding{"settings", "refused at " + last.Time.Local().Format(time.DateTime) + ", before it started: " + last.Decision.Reason, "egressd why " + last.Flow}
}

// refusedSince counts the containers that were refused, and returns the record of the last one. A log that cannot be read has none:
// other findings say so.
func refusedSince(c *config.Config, since time.Time, of func(*record.Container) bool) (count int, last *record.Record) {
	dir, err := c.AuditDir()
	if err != nil {
		return 0, nil
	}
	from, err := audit.FromTime(dir, since)
	if err != nil {
		return 0, nil
	}
	log, err := source.At(dir, from)
	if err != nil {
		return 0, nil
	}
	defer log.Close()
	_ = log.Some(new(atomic.Pointer[time.Time]), logs.Mention(string(policy.ContainerRefused)), func(_ string, r *record.Record) error {
		if r.Kind == record.KindRefused && r.Decision != nil && r.Decision.Class == string(policy.ContainerRefused) && r.Container != nil && !r.Time.Before(since) && of(r.Container) {
			count += int(r.Times())
			last = r.Clone()
		}
		return nil
	})
	return count, last
}
