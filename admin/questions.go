package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/record"
)

// longestPoll is the maximum time that a request waits for new questions.
const longestPoll = readTimeout - 2*time.Second

// questions lists the questions that are pending, and those that were answered. With after=VERSION it waits until the list differs from that
// version.
func (s *Server) questions(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "after")
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error(), "/v1/questions")
		return
	}
	text := q.Get("after")
	if text == "" {
		write(w, http.StatusOK, s.Gate.Approvals.Questions(context.Background(), ^uint64(0)))
		return
	}
	after, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		fail(w, http.StatusBadRequest, "after is the version of a list", "/v1/questions, whose version is the one to give")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), longestPoll)
	defer cancel()
	write(w, http.StatusOK, s.Gate.Approvals.Questions(ctx, after))
}

// An Answer is the answer to a question and the state of the question afterwards.
type Answer struct {
	Answer   string          `json:"answer"` // "approve" or "reject"
	Question egress.Question `json:"question"`
	Was      string          `json:"was"`             // the state of the question before
	Opens    string          `json:"opens,omitempty"` // what the grant or the file opens, in words
	Saved    *Saved          `json:"saved,omitempty"` // what was written into the policy file
}

// answer answers a question. The parameters are for=DURATION, once=true, this_run=true, first=true, terms=DIGEST and save=DIGEST.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	const list = "egressd answer"
	what := r.PathValue("answer")
	said, bound, err := terms(r, what)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error(), "egressd answer ID yes --for 1h, or egressd answer ID no")
		return
	}
	q, ok := s.question(w, r)
	if !ok {
		return
	}
	if bound.terms != "" && bound.terms != q.Terms {
		fail(w, http.StatusConflict, "the question is another one than the one that was shown", list)
		return
	}
	ctx, cancel := changeContext(w, r)
	defer cancel()
	asked := s.asked()
	done := Answer{Answer: what, Was: q.State}
	if bound.save != "" {
		done.Saved, err = asked.Save(ctx, operatorOf(r), &q, said, bound.save)
	} else {
		done.Opens, err = asked.Answer(ctx, operatorOf(r), &q, said)
	}
	if err != nil {
		s.unanswered(w, &q, map[bool]string{true: "yes", false: "no"}[said.Yes], err)
		return
	}
	done.Question = q
	if now, found := s.listed(q.ID); found {
		done.Question = now
	} else if done.Saved != nil { // no rule asks any more
		done.Question.State, done.Question.Saved = string(approvals.Approved), true
	}
	write(w, http.StatusOK, done)
}

// unanswered says why an answer does not count. The word is what a person types for it, yes or no.
func (s *Server) unanswered(w http.ResponseWriter, q *egress.Question, word string, err error) {
	const list = "egressd answer"
	unavailable, unwritten := (*Unavailable)(nil), (*unrecordedError)(nil)
	switch {
	case errors.As(err, &unwritten):
		unrecorded(w, unwritten.error)
	case errors.As(err, &unavailable):
		fail(w, unavailable.Status, unavailable.Why, unavailable.Hint)
	case errors.Is(err, approvals.ErrAnswered):
		if now, found := s.listed(q.ID); found {
			err = fmt.Errorf("%w: %s until %s", err, now.State, now.Until.Format(time.RFC3339))
		}
		fail(w, http.StatusConflict, err.Error(), list+" "+q.ID+" "+word+" instead")
	case errors.Is(err, approvals.ErrNoQuestion):
		fail(w, http.StatusNotFound, err.Error(), list)
	case errors.Is(err, approvals.ErrSaved):
		fail(w, http.StatusConflict, err.Error(), "egressd deny HOST, or take the line out of the file")
	default:
		fail(w, http.StatusConflict, err.Error(), "egressd answer "+q.ID+" yes --for 5m")
	}
}

// question finds the question of a request. Without one, it answers, and ok is false.
func (s *Server) question(w http.ResponseWriter, r *http.Request) (q egress.Question, ok bool) {
	if q, ok = s.listed(r.PathValue("id")); !ok {
		fail(w, http.StatusNotFound, approvals.ErrNoQuestion.Error(), "egressd answer")
	}
	return q, ok
}

func (s *Server) listed(text string) (q egress.Question, found bool) {
	id, ok := record.ParseID(text)
	if !ok {
		return q, false
	}
	return s.Gate.Approvals.Question(id)
}

func (s *Server) asked() *Asked {
	return &Asked{Gate: s.Gate, Grants: s.Grants, File: s.File, Complain: s.reportError}
}

// wouldSave says what a yes for good would write, and writes nothing.
func (s *Server) wouldSave(w http.ResponseWriter, r *http.Request) {
	q, ok := s.question(w, r)
	if !ok {
		return
	}
	ctx, cancel := changeContext(w, r)
	defer cancel()
	saved, err := s.asked().WouldSave(ctx, &q)
	if err != nil {
		s.unanswered(w, &q, "yes", err)
		return
	}
	write(w, http.StatusOK, saved)
}

// A Saved is a change of the policy file that allows for good what a question asks for.
type Saved struct {
	Path     string   `json:"path"`
	Sandbox  string   `json:"sandbox,omitempty"` // that alone gets it, or its template; empty: the file lists none, so all get it
	Shared   bool     `json:"shared,omitempty"`  // the line stands in the list of all sandboxes, and opens nothing to those that the file lists
	Lines    []string `json:"lines"`
	Diff     string   `json:"diff"`            // in the unified format
	Opens    string   `json:"opens,omitempty"` // and closes, in words
	Warnings []string `json:"warnings,omitempty"`
	Digest   string   `json:"digest"` // of the change
}

// To says who gets what was saved.
func (s *Saved) To() string {
	switch {
	case s.Sandbox == "":
		return "every sandbox, since the file lists none"
	case s.Shared:
		return "sandbox " + s.Sandbox + " alone now; the line is in the list of all, so a sandbox that you add gets it, too"
	}
	return "sandbox " + s.Sandbox + " alone"
}

// Saving writes what questions ask for into the policy file. The error is an [*Unavailable] if the policy file cannot allow that, or
// not to this sandbox alone. It is safe for concurrent use.
type Saving interface {
	// WouldSave judges the change, and writes nothing.
	WouldSave(ctx context.Context, q *egress.Question) (*Saved, error)
	// Save makes the change if its digest is still this one, and returns once the policy with it is in force. In a run,
	// that is the policy of the next run.
	Save(ctx context.Context, who Operator, q *egress.Question, digest string) error
}

// Asked answers questions for operators.
type Asked struct {
	Gate     *egress.Gate
	Grants   Granting    // makes what a sandbox asks of itself; nil: nobody can approve that for a time
	File     Saving      // nil: nothing is approved for good
	Complain func(error) // of what could not be recorded afterwards
}

// An unrecordedError says that an answer could not be recorded, and so does not count.
type unrecordedError struct{ error }

// Answer records an answer and puts it in force. Approval of an access request
// is a grant for that time, in exactly the words of the request, and a later rejection revokes it; opens is [Granted.Opens]. If the grant is gone, the error is an
// [*Unavailable]. Other errors come from package approvals.
func (a *Asked) Answer(ctx context.Context, who Operator, q *egress.Question, said approvals.Answer) (opens string, err error) {
	err = a.recorded(who, q, said, who.answerNote(said, q, ""), func() (err error) {
		opens, err = a.settle(ctx, who, q, said)
		return err
	})
	return opens, err
}

// WouldSave says what Save would write.
func (a *Asked) WouldSave(ctx context.Context, q *egress.Question) (*Saved, error) {
	if a.File == nil {
		return nil, &Unavailable{Status: http.StatusNotFound, Why: "nothing is approved for good here", Hint: "egressd answer " + q.ID + " yes"}
	}
	return a.File.WouldSave(ctx, q)
}

// Save records an approval for good, and writes what the question asks for into the policy file, for its sandbox. digest is that of the
// change as a person has seen it. Of said, only First counts, and in a run, where the rest holds until the run ends.
func (a *Asked) Save(ctx context.Context, who Operator, q *egress.Question, said approvals.Answer, digest string) (*Saved, error) {
	saved, err := a.WouldSave(ctx, q)
	switch {
	case err != nil:
		return nil, err
	case saved.Digest != digest:
		return nil, &Unavailable{Status: http.StatusConflict, Why: "the policy file or the question has changed since this was shown, so nothing was written", Hint: "egressd answer " + q.ID + " yes --for good"}
	}
	said = approvals.Answer{Yes: true, Saved: true, First: said.First, Lasts: approvals.ApprovedFor}
	if a.Gate.Approvals.OneRun {
		said = approvals.Answer{Yes: true, ThisRun: true, First: said.First, Lasts: approvals.MaxAnswer}
	}
	note := who.answerNote(said, q, fmt.Sprintf(", for good: %s in %s, for %s", strings.Join(saved.Lines, ", "), saved.Path, saved.To()))
	return saved, a.recorded(who, q, said, note, func() error { return a.save(ctx, who, q, said, digest) })
}

func (a *Asked) save(ctx context.Context, who Operator, q *egress.Question, said approvals.Answer, digest string) error {
	list := &a.Gate.Approvals
	write := func() error {
		list.Granting.Lock()
		defer list.Granting.Unlock() // once it is answered: nobody is told in between that the file allows it
		id, err := a.open(q, said)
		if err != nil {
			return err
		}
		if err := a.File.Save(ctx, who, q, digest); err != nil || list.OneRun {
			return err
		}
		if err := list.Answer(id, said); !errors.Is(err, approvals.ErrNoQuestion) { // no rule asks any more
			return err
		}
		return nil
	}
	if err := write(); err != nil || !list.OneRun {
		return err
	}
	_, err := a.settle(ctx, who, q, said)
	return err
}

// recorded records an answer, and then has it done. Without the record, nothing is done.
func (a *Asked) recorded(who Operator, q *egress.Question, said approvals.Answer, note egress.OperatorNote, do func() error) error {
	if err := a.Gate.Records.NoteOperator(note); err != nil {
		return &unrecordedError{err}
	}
	err := do()
	if err != nil { // the earlier record says that the answer counts
		note := who.Note(fmt.Sprintf("%s question %s did not count: %s", verb(said), q.ID, err))
		if failed := a.Gate.Records.NoteOperator(note); failed != nil {
			a.Complain(failed)
		}
	}
	return err
}

// open returns an error unless the question may be answered now. list.Granting is held.
func (a *Asked) open(q *egress.Question, said approvals.Answer) (record.ID, error) {
	id, _ := record.ParseID(q.ID)
	now, _, found := a.Gate.Approvals.Find(id)
	switch {
	case !found:
		return id, approvals.ErrNoQuestion
	case said.First && now.State != approvals.Pending:
		return id, approvals.ErrAnswered
	case now.Saved():
		return id, approvals.ErrSaved
	}
	return id, nil
}

// settle puts an answer in force. Answers are put in force one after another: of two at once, the second sees the first.
func (a *Asked) settle(ctx context.Context, who Operator, q *egress.Question, said approvals.Answer) (opens string, err error) {
	list := &a.Gate.Approvals
	list.Granting.Lock()
	defer list.Granting.Unlock()
	id, err := a.open(q, said)
	switch {
	case err != nil:
		return "", err
	case q.Pattern == "":
		return "", list.Answer(id, said)
	case said.Once:
		return "", approvals.ErrNobodyWaits
	case a.Grants == nil:
		return "", &Unavailable{Status: http.StatusNotFound, Why: "nothing is granted here for a while", Hint: "egressd allow " + q.Pattern + " --save"}
	case !said.Yes:
		if err := a.revoke(ctx, who, q.ID); err != nil {
			return "", err
		}
		return "", list.Answer(id, said)
	case said.ThisRun && !list.OneRun && q.Runs == 0:
		return "", approvals.ErrNoRun
	}
	grant := AccessGrant(q, said.Lasts)
	grant.ThisRun = said.ThisRun && !list.OneRun
	granted, err := a.Grants.Grant(ctx, who, grant)
	if err != nil {
		return "", err
	}
	if err := list.Answer(id, said); err != nil {
		return "", errors.Join(err, a.revoke(ctx, who, q.ID))
	}
	return granted.Opens, nil
}

// AccessGrant is the request for what a sandbox asks of itself, in exactly the terms of the question.
func AccessGrant(q *egress.Question, lasts time.Duration) GrantRequest {
	return GrantRequest{
		Verdict: "allow", Patterns: []string{q.Pattern}, Method: q.Method, Path: q.Path, Sandbox: q.Sandbox, Seconds: int64(lasts / time.Second), From: q.ID,
	}
}

// revoke takes back what was granted in answer to a question.
func (a *Asked) revoke(ctx context.Context, who Operator, question string) error {
	for _, g := range a.Grants.List().Grants {
		if g.From != question {
			continue
		}
		if _, err := a.Grants.Revoke(ctx, who, g.ID); err != nil {
			return err
		}
	}
	return nil
}

// A boundTo is what an answer was given to: "" for anything.
type boundTo struct {
	terms string // of the question
	save  string // digest of the change of the policy file
}

// terms parses the answer, its duration, and what else it depends on.
func terms(r *http.Request, what string) (said approvals.Answer, bound boundTo, err error) {
	if r.ContentLength != 0 {
		return said, bound, errors.New("an answer takes no body: its parameters are those of the query")
	}
	q, err := query(r, "for", "once", "this_run", "first", "terms", "save")
	if err != nil {
		return said, bound, err
	}
	first := q.Get("first")
	if first != "" && first != "true" && first != "false" {
		return said, bound, errors.New("first is true or false")
	}
	said, err = parseAnswer(what, q.Get("for"), q.Get("once"), q.Get("this_run"))
	said.First = first == "true"
	bound = boundTo{q.Get("terms"), q.Get("save")}
	if err == nil && bound.save != "" && (!said.Yes || q.Has("for") || said.Once || said.ThisRun) {
		err = errors.New("save is for what is approved, without for, once and this_run")
	}
	return said, bound, err
}

// parseAnswer reads "approve" or "reject", with how long it lasts, whether it is for the flows that wait, and whether it ends with the run
// that asked; each of these may be "".
func parseAnswer(what, lasts, once, thisRun string) (said approvals.Answer, err error) {
	switch what {
	case "approve":
		said = approvals.Answer{Yes: true, Lasts: approvals.ApprovedFor}
	case "reject":
		said = approvals.Answer{Lasts: approvals.RejectedFor}
	default:
		return said, fmt.Errorf("an answer is approve or reject")
	}
	switch thisRun {
	case "true":
		said.ThisRun, said.Lasts = true, approvals.MaxAnswer
	case "", "false":
	default:
		return said, errors.New("this_run is true or false")
	}
	if lasts != "" {
		said.Lasts, err = time.ParseDuration(lasts)
		if err != nil || said.Lasts < time.Second || said.Lasts > approvals.MaxAnswer {
			return said, fmt.Errorf("for is a duration from 1s to %s", "24h")
		}
	}
	switch {
	case once == "true" && said.Yes && !said.ThisRun:
		said.Once = true
	case once != "" && once != "false":
		return said, fmt.Errorf("once is true or false, for what is approved, and not beside this_run")
	}
	return said, nil
}

// verb is the word of the API for an answer.
func verb(said approvals.Answer) string {
	if said.Yes {
		return "approve"
	}
	return "reject"
}

// answerNote returns the record of an answer, with what was saved. Text chosen by the sandbox follows the operator, quoted and
// shortened, so that it cannot imitate another operator.
func (o Operator) answerNote(said approvals.Answer, q *egress.Question, saved string) egress.OperatorNote {
	text := fmt.Sprintf("%s question %s%s", verb(said), q.ID, saved)
	switch {
	case said.Saved:
	case said.ThisRun:
		text += fmt.Sprintf(", until the run ends, %s at most", said.Lasts)
	case said.Once:
		text += fmt.Sprintf(", for %s, for the flows that wait now", said.Lasts)
	default:
		text += fmt.Sprintf(", for %s", said.Lasts)
	}
	text += fmt.Sprintf(": sandbox %s, %s, rule %s (%s)", q.Sandbox, net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port))), q.Rule, q.Layer)
	note := o.Note(text)
	if q.Method != "" || q.Path != "" {
		note.Note += fmt.Sprintf(", to %q %q", q.Method, q.Path[:min(len(q.Path), 256)])
	}
	if q.Words != "" {
		note.Note += fmt.Sprintf(", whose words are %+q", q.Words[:min(len(q.Words), 256)])
	}
	return note
}
