package egress

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
)

// Approvals are the questions that the policy asks people, as an operator sees and answers them. Open says
// whether somebody can answer; until then questions are refused.
type Approvals struct {
	approvals.List
	Granting sync.Mutex // held by whoever grants or revokes what a question is about
	gate     *Gate
}

// isGranting reports whether the answer to some question is just being put in force.
func (a *Approvals) isGranting() bool {
	if !a.Granting.TryLock() {
		return true
	}
	a.Granting.Unlock()
	return false
}

// A Question is a question to a person. Host is canonical. Method, Path, and the file and arguments of the
// process are chosen by the sandbox. A policy in Rego can put such text into Reason.
type Question struct {
	ID      string `json:"id"`
	State   string `json:"state"` // pending, approved, rejected
	Sandbox string `json:"sandbox"`
	Host    string `json:"host"`
	Port    uint16 `json:"port"`
	Method  string `json:"method,omitempty"` // Method and Path are absent if any request is meant
	Path    string `json:"path,omitempty"`
	Rule    string `json:"rule"`
	Layer   string `json:"layer"`
	Reason  string `json:"reason,omitempty"`
	Pattern string `json:"pattern,omitempty"` // set if the sandbox asks of itself: a yes grants this, and the method and path
	Words   string `json:"words,omitempty"`   // of the sandbox, about why
	Via     string `json:"via"`               // Via, Process and Container are those of the first flow

	Template  string            `json:"template,omitempty"` // of the sandbox
	Process   *record.Process   `json:"process,omitempty"`
	Container *record.Container `json:"container,omitempty"`

	Asked   int64      `json:"asked"`              // flows that came to the question
	Waiting int        `json:"waiting"`            // flows that are held now
	Once    bool       `json:"once,omitempty"`     // the approval is limited to the flows that waited for it
	ThisRun bool       `json:"this_run,omitempty"` // the answer ends with the runs that asked, at Until at the latest
	Saved   bool       `json:"saved,omitempty"`    // the policy file has it for good
	Runs    int        `json:"runs"`               // that asked, and whose end egressd will see
	Terms   string     `json:"terms"`              // digest of what an answer is about, and of nothing else
	Began   time.Time  `json:"began"`
	Last    time.Time  `json:"last"` // when the last flow came
	Until   time.Time  `json:"until"`
	GivesUp *time.Time `json:"gives_up,omitempty"` // when the first of those gives up that are held now
}

// Scope says for what an answer counts, besides its time: "once", "this run", "for good" or "".
func (q *Question) Scope() string {
	switch {
	case q.Saved:
		return "for good"
	case q.ThisRun:
		return "this run"
	case q.Once:
		return "once"
	}
	return ""
}

// Ask returns one line for the person: who asks for what, and the commands that answer, with flags after a space. It is not
// escaped.
func (q *Question) Ask(flags string) string {
	what := net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	if q.Method != "" || q.Path != "" {
		what = cmp.Or(q.Method, "any method") + " " + clippedPath(q.Path) + " at " + what
	}
	if q.Words != "" {
		what += ", because it says " + quotedWords(q.Words[:min(len(q.Words), askedPath)])
	}
	return fmt.Sprintf("sandbox %s asks for %s (rule %s): %[4]s answer %[5]s yes%[6]s, or %[4]s answer %[5]s no%[6]s", q.Sandbox, what, q.Rule, shell.Program(), q.ID, flags)
}

// askedPath is how many bytes of a path, and of the sandbox's words, [Question.Ask] has at most.
const askedPath = 120

// clippedPath shortens a long path and says so: nobody shall approve a path after reading only its beginning.
func clippedPath(path string) string {
	if len(path) <= askedPath {
		return path
	}
	return path[:askedPath] + fmt.Sprintf("… (and %d more bytes: egressd answer --json)", len(path)-askedPath)
}

// quotedWords are the words of a sandbox, so that they cannot be taken for egressd's own. It returns "" for none.
func quotedWords(words string) string {
	if words == "" {
		return ""
	}
	return "(the sandbox's words) " + strconv.QuoteToASCII(words)
}

// whatOf is what a question is about, for the sandbox that asks.
func whatOf(q *approvals.Question) string {
	if q.Access != nil {
		return q.Access.String()
	}
	of := &q.Subject
	what := net.JoinHostPort(of.Host, strconv.Itoa(int(of.Port)))
	if of.Method != "" {
		what = of.Method + " " + of.Path + " of " + what
	}
	return what
}

// Questions are all questions, and counts of the flows whose questions found no space.
type Questions struct {
	Version   uint64             `json:"version"` // changes with the list
	Open      bool               `json:"open"`    // somebody can answer
	Questions []Question         `json:"questions"`
	Turned    []approvals.Turned `json:"turned_away,omitempty"`
}

// Questions returns the questions, oldest first. If their version is after, it waits for a change or the
// end of ctx.
func (a *Approvals) Questions(ctx context.Context, after uint64) Questions {
	for {
		all, turned, version, changed := a.All()
		if version == after && ctx.Err() == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			}
		}
		list := Questions{Version: version, Open: a.IsOpen(), Questions: make([]Question, 0, len(all)), Turned: turned}
		for _, q := range all {
			list.Questions = append(list.Questions, a.show(q))
		}
		return list
	}
}

// Question returns the question with an ID.
func (a *Approvals) Question(id record.ID) (Question, bool) {
	all, _, _, _ := a.All()
	for _, q := range all {
		if q.ID == id {
			return a.show(q), true
		}
	}
	return Question{}, false
}

func (a *Approvals) show(q *approvals.Question) Question {
	of := &q.Subject
	path := []byte(of.Path)
	a.gate.canaries.mask(path)
	s := Question{
		ID: q.ID.String(), State: string(q.State), Sandbox: of.Sandbox, Host: a.gate.canaries.without(of.Host), Port: of.Port,
		Method: of.Method, Path: string(path), Rule: of.Rule, Layer: string(of.Layer), Reason: q.Reason, Via: string(q.Request.Via),
		Asked: q.Asked, Waiting: q.Held, Once: q.Once(), ThisRun: q.ThisRun(), Saved: q.Saved(), Runs: q.Runs(), Began: q.Began.UTC(), Last: q.Last.UTC(), Until: q.Until.UTC(),
	}
	if gives := q.GivesUp(); !gives.IsZero() && q.State == approvals.Pending {
		gives = gives.UTC()
		s.GivesUp = &gives
	}
	if q.Access != nil {
		s.Pattern = q.Access.Pattern.String()
	}
	s.Template = q.Request.Sandbox.Template
	words := []byte(q.Words)
	a.gate.canaries.mask(words)
	s.Words = string(words)
	if p := q.Request.Process; p != nil {
		s.Process = &record.Process{PID: p.PID, Exe: p.Exe, Argv: p.Argv[:min(len(p.Argv), record.MaxList)]}
	}
	if c := q.Request.Sandbox.Container; c != nil {
		s.Container = &record.Container{ID: c.ID[:min(len(c.ID), containerID)], Name: c.Name, Image: c.Image, Project: c.Project, Service: c.Service}
	}
	s.Terms = s.Digest()
	return s
}

// Digest returns the digest of what an answer is about. Nothing in it changes while the question is listed.
func (q *Question) Digest() string {
	h := sha256.New()
	for _, part := range []string{
		q.ID, q.Sandbox, q.Template, q.Host, strconv.Itoa(int(q.Port)), q.Method, q.Path, q.Rule, q.Layer, q.Pattern, q.Reason, q.Words, q.Began.Format(time.RFC3339Nano),
	} {
		fmt.Fprintf(h, "%d %s\n", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// lapse cuts the flows that cannot go on without an approval that has ended.
func (a *Approvals) lapse(ended approvals.Question) {
	if ended.Access != nil {
		a.gate.Recheck(context.Background()) // a grant may end with it
		return
	}
	for _, f := range a.gate.Flows.all() {
		f.mu.Lock()
		independent := f.decision.Question == ""
		f.mu.Unlock()
		if !independent && f.current(context.Background()) != nil {
			f.cut()
		}
	}
}
