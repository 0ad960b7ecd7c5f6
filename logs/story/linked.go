package story

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const (
	near     = time.Minute // before the first and after the last record of a story
	mostNear = 10          // linked decisions that a story keeps on each side
)

// A Linked decision is a decision for the story's program and sandbox, at most a minute before or after the story.
type Linked struct {
	Flow        string    `json:"flow"`
	Time        time.Time `json:"time"`
	Relation    string    `json:"relation"`
	Verdict     string    `json:"verdict"`
	Destination string    `json:"destination"`
	What        string    `json:"what"`
	Why         string    `json:"why"`
	Count       int64     `json:"count,omitempty"` // of equal decisions, if there were several

	After bool `json:"-"` // it came after the decisive record
}

// Link fills Linked and Further from the log.
func (s *Story) Link(log *source.RecordReader) error {
	if s.Decisive == nil || len(s.Records) == 0 {
		return nil
	}
	from, to := s.Records[0].Time.Add(-near), s.Records[len(s.Records)-1].Time.Add(near)
	if err := log.RewindTo(from); err != nil {
		return err
	}
	inSandbox, ofProgram := logs.Mention(s.Decisive.Sandbox), logs.Mention(logs.Process(s.Decisive))
	may := func(line []byte) bool { return inSandbox(line) && ofProgram(line) }
	var until atomic.Pointer[time.Time]
	until.Store(&to)
	return log.Some(&until, may, func(_ string, r *record.Record) error {
		if r.Flow == s.Flow || r.Time.Before(from) || r.Time.After(to) || !logs.Decides(r) || logs.IsLookup(r) || !s.sameProgram(r) {
			return nil
		}
		if r.Kind == record.KindClose && r.Decision.Action == "allow" { // the decision has a record of its own
			return nil
		}
		after := r.Seq > s.Decisive.Seq
		if relation := s.relation(r, after); relation != "" {
			s.keep(Linked{
				strings.Clone(r.Flow), r.Time, relation, strings.Clone(r.Decision.Action), logs.Destination(r), logs.What(r), logs.Why(r),
				r.Times(), after,
			})
		}
		return nil
	})
}

// keep adds l, and keeps only the nearest decisions on each side of the story.
func (s *Story) keep(l Linked) {
	if l.Count == 1 {
		l.Count = 0
	}
	same := func(other Linked) bool { return other.After == l.After }
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
	if !l.After { // the first one before the story is the farthest
		s.Linked = append(slices.Delete(s.Linked, slices.IndexFunc(s.Linked, same), slices.IndexFunc(s.Linked, same)+1), l)
	}
}

func (s *Story) sameProgram(r *record.Record) bool {
	return r.Sandbox == s.Decisive.Sandbox && logs.Process(r) == logs.Process(s.Decisive)
}

// relation says how r is related to the story, or returns "". After a refusal each other destination is
// related, because the program may have tried another way; so is a refusal before the story.
func (s *Story) relation(r *record.Record, after bool) string {
	d := s.Decisive
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
