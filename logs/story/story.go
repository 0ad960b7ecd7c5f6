// Package story tells from the audit log what happened to one request: it finds the records of the flow,
// picks the decisive one, and looks for related attempts of the same program.
package story

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const (
	maxRecords    = 200 // kept of one flow: an inspected tunnel can hold any number of requests. The end is always kept.
	maxCandidates = 5   // ids that are named if a prefix fits several
)

// A Story is all that the log says about one flow.
type Story struct {
	Flow     string            `json:"flow"`
	Decision *record.Decision  `json:"decision"`
	Shadow   *record.Shadow    `json:"shadow,omitempty"` // the decision of the shadow policy, if it differs
	Fix      string            `json:"fix,omitempty"`    // the command that would allow the request, without the flags of [source.Source.AllowFlags]
	Change   string            `json:"change,omitempty"` // what would have to change if no command allows the request
	Times    int64             `json:"times,omitempty"`  // number of equal refusals, if there were several
	Signal   *record.Signal    `json:"signal,omitempty"` // an alarm beside the decision
	Shared   bool              `json:"shared,omitempty"` // other requests were answered with the same id
	LeftOut  int               `json:"left_out,omitempty"`
	Linked   []Linked          `json:"linked,omitempty"`  // set by Link
	Further  int               `json:"further,omitempty"` // number of linked decisions that Linked leaves out
	Lines    []json.RawMessage `json:"records"`           // Records as the log has them

	Answer   *Answer          `json:"-"` // to the question of Decision
	Records  []*record.Record `json:"-"`
	Decisive *record.Record   `json:"-"` // the record of Decision; nil if the flow has no decision
	End      *record.Record   `json:"-"` // nil if the flow is open
}

var errTooMany = errors.New("too many ids begin alike")

// An unknownError is the cause if [Find] does not find an id in the log.
type unknownError struct{ id, dir string }

func (e *unknownError) Error() string { return fmt.Sprintf("id %q is not in the log %s", e.id, e.dir) }

// FindAnywhere is [Find] in the log that s names. If s names none, it looks in the daemon's log and then in
// the logs of runs, the newest first, and sets s.Run to the run that has the id. The caller closes the reader.
func FindAnywhere(s *source.Source, prefix string) (*Story, *source.RecordReader, error) {
	first := *s
	first.Talk = nil
	log, err := first.Open()
	if err == nil {
		var found *Story
		if found, err = Find(log, prefix); err == nil {
			s.Run = first.Run
			return found, log, nil
		}
		log.Close()
	}
	if s.Dir != "" || s.Run != "" || !isElsewhere(err) {
		return nil, nil, err
	}
	for _, run := range s.Runs() {
		in := *s
		if in.Run = run; in.OfDaemon() {
			continue
		}
		log, err := in.Open()
		if err != nil {
			continue // a run that is just being removed
		}
		found, err := Find(log, prefix)
		if err == nil {
			s.Run = run
			return found, log, nil
		}
		log.Close()
		if !isElsewhere(err) {
			return nil, nil, err
		}
	}
	return nil, nil, hint.Failed(fmt.Errorf("id %q is not in the daemon's log or in any run", prefix), "list recent denials: egressd log verdict:deny, or egressd log --run last verdict:deny")
}

// isElsewhere reports whether an id may be in another log: this one is missing, or has no such id.
func isElsewhere(err error) bool {
	var unknown *unknownError
	var missing *source.NoLogError
	return errors.As(err, &unknown) || errors.As(err, &missing)
}

// Find collects the records of the one flow whose id begins with prefix. An id holds the time
// of its making. Find reads from an hour before that time, and for a whole id until an hour after the end of the flow. If it
// finds no such flow, it reads the whole log.
func Find(log *source.RecordReader, prefix string) (*Story, error) {
	if err := log.RewindTo(givenAt(prefix)); err != nil {
		return nil, err
	}
	s, err := find(log, prefix)
	var unknown *unknownError
	if !errors.As(err, &unknown) {
		return s, err
	}
	if err := log.Rewind(); err != nil {
		return nil, err
	}
	return find(log, prefix)
}

func givenAt(prefix string) time.Time {
	first := record.ID(0).String() // the digits that follow are at least zeros
	id, ok := record.ParseID(prefix + first[min(len(prefix), len(first)):])
	if !ok {
		return time.Time{}
	}
	return id.Time()
}

// find is Find in the rest of the log.
func find(log *source.RecordReader, prefix string) (*Story, error) {
	found := map[string]*Story{}
	_, whole := record.ParseID(prefix)
	var until atomic.Pointer[time.Time]
	err := log.Some(&until, logs.Mention(prefix, `"kind":"admin"`), func(text string, r *record.Record) error {
		if r.Kind == record.KindAdmin {
			for _, s := range found {
				s.hearAnswer(r)
			}
			return nil
		}
		if r.Flow == "" || !strings.HasPrefix(r.Flow, prefix) {
			return nil
		}
		s := found[r.Flow]
		if s == nil && len(found) == maxCandidates {
			return errTooMany
		}
		if s == nil {
			s = &Story{Flow: strings.Clone(r.Flow)}
			found[s.Flow] = s
		}
		s.add(text, r.Clone())
		if last := r.Time; whole && s.ended() {
			until.Store(&last)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errTooMany) {
		return nil, err
	}
	switch len(found) {
	case 0:
		return nil, hint.Failed(&unknownError{prefix, log.Dir}, "list recent denials: egressd log verdict:deny")
	case 1:
		for _, s := range found {
			return s, nil
		}
	}
	ids := slices.Sorted(maps.Keys(found))
	return nil, hint.Misused(fmt.Errorf("several ids begin with %q: %s", prefix, strings.Join(ids, " ")), "egressd why "+ids[len(ids)-1])
}

var errPast = errors.New("the flow has ended")

// From collects the records of one flow, from where log stands until the flow has ended. From reads at
// most that many records, and does not find a later end.
func From(log *source.RecordReader, flow string, most int) (*Story, error) {
	s := &Story{Flow: flow}
	err := log.Each(func(text string, r *record.Record) error {
		if most--; most < 0 || r.Kind == record.KindStart && len(s.Records) > 0 {
			return errPast
		}
		if r.Flow != flow {
			return nil
		}
		s.add(text, r.Clone())
		if r.Kind == record.KindClose {
			return errPast
		}
		return nil
	})
	if err != nil && !errors.Is(err, errPast) {
		return nil, err
	}
	if len(s.Records) == 0 {
		return nil, hint.Failed(&unknownError{flow, log.Dir}, "list recent denials: egressd log verdict:deny")
	}
	return s, nil
}

func (s *Story) add(text string, r *record.Record) {
	if r.Decision != nil && (s.Decision == nil || r.Names == nil && strictness(r.Decision.Action) >= strictness(s.Decision.Action)) {
		s.Decision, s.Decisive = r.Decision, r
		s.Fix, s.Change = Fix(r), Change(r)
	}
	if r.Shadow != nil {
		s.Shadow = r.Shadow
	}
	if r.Signal != nil {
		s.Signal = r.Signal
	}
	if r.Count > 0 {
		s.Times = max(s.Times, 1) + r.Count
	}
	if r.Kind == record.KindClose {
		s.End = r
	} else if len(s.Records) >= maxRecords {
		s.LeftOut++
		return
	}
	s.Shared = s.Shared || r.Shared
	s.Records = append(s.Records, r)
	s.Lines = append(s.Lines, json.RawMessage(text))
}

// ended reports whether no record of the flow follows, but for a sum of equal refusals, which is written within seconds.
func (s *Story) ended() bool {
	first := s.Records[0]
	return s.End != nil || first.Decision != nil && first.Decision.Action == "deny"
}

// An Answer is a person's answer to a question. Seq is the number of its record.
type Answer struct {
	Approved bool
	Time     time.Time
	Seq      int64
}

// hearAnswer sets s.Answer if r records an answer to the question of s. If a second record says that the answer did not
// count, hearAnswer removes it.
func (s *Story) hearAnswer(r *record.Record) {
	what, rest, _ := strings.Cut(r.Note, " question ")
	if s.Decision == nil || what != "approve" && what != "reject" {
		return
	}
	for _, id := range s.Decision.Question {
		if strings.HasPrefix(rest, id+" did not count") {
			s.Answer = nil
		} else if strings.HasPrefix(rest, id+", for ") {
			s.Answer = &Answer{what == "approve", r.Time, r.Seq}
		}
	}
}

func strictness(action string) int {
	switch action {
	case "allow":
		return 0
	case "ask":
		return 1
	default:
		return 2
	}
}

// Fix returns the command that would allow what r refused, without the flags of [source.Source.AllowFlags].
// It returns "" unless [logs.Allowable] names a host: if each refusal came with the command that opens it,
// people would learn to paste that command.
func Fix(r *record.Record) string {
	host := logs.Allowable(r)
	if host == "" {
		return ""
	}
	return FixFor(host, r.Flow)
}

// Change names the person or the setting that would have to change for r to pass. It is for denials that neither [Fix]
// nor an answer to a question opens.
func Change(r *record.Record) string {
	d := r.Decision
	switch {
	case d == nil || d.Action == "allow" || len(d.Question) > 0 || Fix(r) != "":
		return ""
	case r.Shared:
		return "nothing by this id, which stands for several requests; to allow one of them, name its host: egressd allow HOST"
	case policy.LooksLikeData(logs.Host(r)):
		return "nothing, unless you know this name: it may carry data; then write a line for it into the policy"
	case d.Class == string(policy.AddressDenied):
		if p, err := policy.ParsePattern(logs.Destination(r)); err != nil || policy.CheckGrant(p) != nil {
			return "nothing: that is open to no sandbox"
		}
		return "a line under allow that names just this address, by whoever writes the policy"
	case d.Class == string(policy.DefaultDeny) && r.HTTP != nil:
		return "a rule that you write: none can name this request alone"
	case d.Class == string(policy.ContainerRefused):
		return "the setting " + d.Rule + " of the container, by whoever starts it"
	case slices.Contains([]policy.Layer{policy.Organisation, policy.User, policy.Project, policy.PerSandbox}, policy.Layer(d.Layer)):
		return "rule " + d.Rule + ", by whoever writes the policy of its layer: " + d.Layer
	}
	return ""
}

// FixFor returns the command that allows a host as the answer to the refusal of a flow.
func FixFor(host, flow string) string {
	return shell.Program() + " allow " + shell.Pattern(host) + " --from " + flow
}

// Exactly returns what was refused: its port, and its method and path if they are known.
func (s *Story) Exactly() (policy.Opening, error) {
	o, exact := logs.Opening(s.Decisive)
	if !exact {
		return o, fmt.Errorf("%s was a request that no rule can name alone: %s", s.Flow, logs.What(s.Decisive)+" of "+logs.Destination(s.Decisive))
	}
	return o, nil
}

// Allowing returns exactly what a rule has to open for the refused request. It returns an error if no command may open that
// request, or if a pattern in wanted names another destination. The commands and the page ask it alike. flags are those of
// [source.Source.Flags] for hints, and file is the policy file.
func (s *Story) Allowing(wanted []policy.Pattern, flags, file string) (exact policy.Opening, err error) {
	if s.Shared {
		return exact, hint.Failed(fmt.Errorf("%s stands for several requests, which were refused too fast for an id each", s.Flow), "egressd allow HOST"+flags)
	}
	if len(wanted) == 0 && s.Decisive != nil {
		if p, err := policy.ParsePattern(logs.Destination(s.Decisive)); err == nil {
			wanted = []policy.Pattern{p}
		}
	}
	for _, p := range wanted {
		if err := s.AnsweredBy(p); err != nil {
			return exact, hint.Failed(err, "egressd why "+s.Flow+flags)
		}
	}
	if exact, err = s.Exactly(); err != nil {
		return exact, hint.Failed(err, "a rule in "+file+" that you write, with the methods and paths that are meant to pass")
	}
	return exact, nil
}

// AnsweredBy returns nil if allowing p is exactly what the refused request asked for, else why it is not.
func (s *Story) AnsweredBy(p policy.Pattern) error {
	if s.Decisive == nil || s.Decision.Action == "allow" {
		return fmt.Errorf("%s was not refused", s.Flow)
	}
	host := logs.RefusedHost(s.Decisive)
	if host == "" {
		return fmt.Errorf("%s was refused for another reason than that no rule speaks of its destination: %s", s.Flow, logs.Why(s.Decisive))
	}
	for _, text := range []string{host, logs.Destination(s.Decisive)} {
		if exact, err := policy.ParsePattern(text); err == nil && exact == p {
			return nil
		}
	}
	return fmt.Errorf("%s was about %s, and %s is something else", s.Flow, logs.Destination(s.Decisive), p)
}
