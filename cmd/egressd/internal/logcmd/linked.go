package logcmd

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logsource"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
)

// What else the same program of the same sandbox did belongs to a story if it was
// no longer before it or after it than near; most of each is told.
const (
	near     = time.Minute
	mostNear = 10
)

// A linked decision is what the program of a story did shortly before or after it,
// and how that is related.
type linked struct {
	Flow        string    `json:"flow"`
	Time        time.Time `json:"time"`
	Relation    string    `json:"relation"`
	Verdict     string    `json:"verdict"`
	Destination string    `json:"destination"`
	What        string    `json:"what"`
	Why         string    `json:"why"`
	Count       int64     `json:"count,omitempty"` // of decisions, where there are several

	after bool
}

// link looks for what is related to a story.
func (s *Story) link(log *logsource.Reader) error {
	if s.decisive == nil || len(s.records) == 0 {
		return nil
	}
	if err := log.Again(); err != nil {
		return err
	}
	from, to := s.records[0].Time.Add(-near), s.records[len(s.records)-1].Time.Add(near)
	return log.Each(func(_ string, r *egress.Record) error {
		if r.Flow == s.Flow || r.Time.Before(from) || r.Time.After(to) || !logs.Decides(r) || logs.IsLookup(r) || !s.sameProgram(r) {
			return nil
		}
		if r.Kind == egress.KindClose && r.Decision.Action == "allow" { // the decision is a record of its own
			return nil
		}
		after := r.Seq > s.decisive.Seq
		if relation := s.relation(r, after); relation != "" {
			s.tell(linked{
				strings.Clone(r.Flow), r.Time, relation, strings.Clone(r.Decision.Action), logs.Destination(r), logs.What(r), logs.Why(r),
				r.Times(), after,
			})
		}
		return nil
	})
}

// tell keeps what is nearest on both sides, and counts what is left out.
func (s *Story) tell(l linked) {
	if l.Count == 1 {
		l.Count = 0
	}
	same := func(other linked) bool { return other.after == l.after }
	n := 0
	for _, other := range s.Linked {
		if same(other) {
			n++
		}
	}
	if n < mostNear {
		s.Linked = append(s.Linked, l)
		return
	}
	s.Further++
	if !l.after { // the first of those before is the farthest
		s.Linked = append(slices.Delete(s.Linked, slices.IndexFunc(s.Linked, same), slices.IndexFunc(s.Linked, same)+1), l)
	}
}

func (s *Story) sameProgram(r *egress.Record) bool {
	return r.Sandbox == s.decisive.Sandbox && logs.Process(r) == logs.Process(s.decisive)
}

// relation says how r is related to a story, or "" where it is not: after a refusal,
// and before one, everything is that could be another try.
func (s *Story) relation(r *egress.Record, after bool) string {
	d := s.decisive
	refused := s.Decision.Action != "allow" && after || r.Decision.Action != "allow" && !after
	host, other := logs.Host(d), logs.Host(r)
	text := ""
	switch {
	case other == "" || host == "":
		return ""
	case other == host && logs.Port(r) == logs.Port(d):
		text = "the same again"
	case other == host && (r.Dst == nil || d.Dst == nil):
		text = "the same name"
	case other == host:
		text = "the same host, another port"
	case d.Dst != nil && slices.Contains(d.Dst.Addrs, other):
		text = "an address of it, without its name"
	case !refused:
		return ""
	case isAddress(other) && !isAddress(host):
		text = "an address instead of a name"
	case policy.Registrable(other) != "" && policy.Registrable(other) == policy.Registrable(host):
		text = "another name of the same domain"
	default:
		text = "another destination"
	}
	if r.Via != d.Via {
		text += ", by " + r.Via
	}
	return text
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// printLinked tells what the same program did around the story.
func (s *Story) printLinked(b *strings.Builder, colours cli.Palette) {
	by := "program"
	if s.decisive != nil && logs.Process(s.decisive) == "" {
		by = "sandbox"
	}
	for _, after := range []bool{false, true} {
		title := map[bool]string{false: "before", true: "after"}[after]
		for _, l := range s.Linked {
			if l.after != after {
				continue
			}
			if title != "" {
				fmt.Fprintf(b, "  %s, by the same %s\n", title, by)
				title = ""
			}
			count := ""
			if l.Count > 1 {
				count = fmt.Sprintf("%d × ", l.Count)
			}
			fmt.Fprintf(b, "    %s  %s  %s%s: %s  %s  %s  %s\n", quantity.Clock(l.Time, s.records[0].Time), colours.Mark(l.Verdict), count, printable.Text(l.Relation),
				logsource.CutHost(logsource.Cell(l.Destination)), logsource.Cut(logsource.Cell(l.What), logsource.LongestColumn), logsource.Cut(logsource.Cell(l.Why), logsource.LongestCell), printable.Text(l.Flow))
		}
	}
	if s.Further > 0 {
		fmt.Fprintf(b, "    and %d more within a minute\n", s.Further)
	}
}
