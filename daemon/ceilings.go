package daemon

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

func budgetsOf(c *config.Config) (all []egress.SpanBudget) {
	for _, b := range c.File.Budgets {
		all = append(all, egress.SpanBudget{Name: b.Name, Hosts: b.Hosts, Up: b.Up, Per: b.Per})
	}
	return all
}

// countSpent sets the budgets, and counts what the log says was sent in their time before now: a restart gives nobody more.
// A flow that was open when egressd was killed has no end record, so its bytes do not count.
func (d *Daemon) countSpent(now time.Time) error {
	all := budgetsOf(d.Config)
	d.Gate.Ceilings.Set(all)
	dir, err := d.Config.AuditDir()
	if len(all) == 0 || err != nil || d.tailor.OneRun {
		return err
	}
	since := now
	for _, b := range all {
		since = minTime(since, now.Add(-b.Per))
	}
	reader, err := source.At(dir, 0)
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := reader.RewindTo(since); err != nil {
		return err
	}
	ended := []byte(`"kind":"close"`)
	err = reader.Some(new(atomic.Pointer[time.Time]), func(line []byte) bool { return bytes.Contains(line, ended) }, func(_ string, r *record.Record) error {
		if r.Kind != record.KindClose || r.Dst == nil || r.Bytes == nil || r.Bytes.Up == 0 || r.Time.Before(since) {
			return nil
		}
		to, err := policy.ParseDestination(net.JoinHostPort(r.Dst.Host, strconv.Itoa(int(r.Dst.Port))))
		if err == nil {
			d.Gate.Ceilings.Add(cmp.Or(d.sandboxes.Template(r.Sandbox), r.Sandbox), to, r.Bytes.Up, r.Time)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("count for budgets what was sent before: %w", err)
	}
	return nil
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
