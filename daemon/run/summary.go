package run

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
)

// summary is what a run came to, in a line.
func summary(c egress.Counts, took time.Duration) string {
	text := fmt.Sprintf("%s, %s to %s, %s down, %s up.", quantity.Duration(took), quantity.Plural(c.Requests, "request"), quantity.Plural(c.Hosts, "host"), quantity.Bytes(c.Down), quantity.Bytes(c.Up))
	if c.Learned > 0 {
		text += fmt.Sprintf(" %d learned.", c.Learned)
	}
	if len(c.Denied) == 0 {
		return text
	}
	const shown = 5
	var all int
	var names []string
	for i, d := range c.Denied {
		all += d.Times
		name := printable.Text(d.Host)
		if d.Times > 1 {
			name += fmt.Sprintf(" ×%d", d.Times)
		}
		if i < shown {
			names = append(names, name)
		}
	}
	if more := len(c.Denied) - shown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%s %d denied: %s.", text, all, strings.Join(names, ", "))
}
