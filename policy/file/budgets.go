package file

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// A SpanLimit bounds what each sandbox sends to some hosts in any span of time of a length. It opens nothing.
type SpanLimit struct {
	// Name is its position, as in "budgets[0]".
	Name string

	// Hosts are those that it counts together. One without a port stands for every port.
	Hosts []policy.Pattern

	// Up is how many bytes may go up: heads and bodies of requests, and what tunnels carry.
	Up int64

	// Per is the length of the span, from a minute to 30 days.
	Per time.Duration
}

// budgets reads the list "budgets".
func (r *reader) budgets(into *[]SpanLimit) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "budgets") {
			b := SpanLimit{Name: fmt.Sprintf("budgets[%d]", i)}
			before := len(r.problems)
			r.mapping(item, b.Name, fields{
				"hosts": r.patterns(b.Name+".hosts", &b.Hosts),
				"up":    r.byteCount(b.Name+".up", &b.Up),
				"per":   r.durationWithin(b.Name+".per", &b.Per, time.Minute, 30*24*time.Hour, "a duration from 1m to 720h"),
			})
			switch {
			case len(r.problems) > before:
			case len(b.Hosts) == 0 || b.Up == 0 || b.Per == 0:
				r.fail(item, "%s needs hosts, up and per; write {hosts: [uploads.example.com], up: 50MB, per: 24h} or the like", b.Name)
			default:
				*into = append(*into, b)
			}
		}
	}
}

// byteCount reads a number of bytes.
func (r *reader) byteCount(what string, into *int64) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var err error
		if n.Kind != yaml.ScalarNode {
			r.fail(n, "%s is %s; write a number of bytes, like 5MB", what, kindOf(n))
		} else if *into, err = quantity.ParseBytes(n.Value); err != nil {
			r.fail(n, "%s: %v", what, err)
		}
	}
}
