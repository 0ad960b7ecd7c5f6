package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
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
	Opens    string          `json:"opens,omitempty"` // what the grant opens that a sandbox asked for, in words
}

// answer answers a question. The parameters are for=DURATION, once=true and first=true.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	const list = "egressd answer"
	what := r.PathValue("answer")
	said, err := terms(r, what)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error(), "egressd answer ID yes --for 1h, or egressd answer ID no")
		return
	}
	id, ok := record.ParseID(r.PathValue("id"))
	q, found := s.Gate.Approvals.Question(id)
	if !ok || !found {
		fail(w, http.StatusNotFound, approvals.ErrNoQuestion.Error(), list)
		return
	}
	ctx, cancel := changeContext(w, r)
	defer cancel()
	asked := &Asked{Gate: s.Gate, Grants: s.Grants, Complain: s.reportError}
	opens, err := asked.Answer(ctx, operatorOf(r), &q, said)
	unavailable, unwritten := (*Unavailable)(nil), (*unrecordedError)(nil)
	switch {
	case errors.As(err, &unwritten):
		unrecorded(w, unwritten.error)
		return
	case errors.As(err, &unavailable):
		fail(w, unavailable.Status, unavailable.Why, unavailable.Hint)
		return
	case errors.Is(err, approvals.ErrAnswered):
		if now, found := s.Gate.Approvals.Question(id); found {
			err = fmt.Errorf("%w: %s until %s", err, now.State, now.Until.Format(time.RFC3339))
		}
		word := map[bool]string{true: " yes", false: " no"}[said.Yes]
		fail(w, http.StatusConflict, err.Error(), list+" "+id.String()+word+" --change")
		return
	case errors.Is(err, approvals.ErrNoQuestion):
		fail(w, http.StatusNotFound, err.Error(), list)
		return
	case err != nil:
		fail(w, http.StatusConflict, err.Error(), "egressd answer "+id.String()+" yes --for 5m")
		return
	}
	was := q.State
	if now, found := s.Gate.Approvals.Question(id); found {
		q = now
	}
	write(w, http.StatusOK, Answer{what, q, was, opens})
}

// Asked answers questions for operators. Grants makes what a sandbox asks of itself; nil: nobody can approve that.
type Asked struct {
	Gate     *egress.Gate
	Grants   Granting
	Complain func(error) // of what could not be recorded afterwards
}

// An unrecordedError says that an answer could not be recorded, and so does not count.
type unrecordedError struct{ error }

// Answer records an answer and puts it in force. Approval of an access request
// is a grant for that time, in exactly the words of the request, and a later rejection revokes it; opens is [Granted.Opens]. If the grant is gone, the error is an
// [*Unavailable]. Other errors come from package approvals.
func (a *Asked) Answer(ctx context.Context, who Operator, q *egress.Question, said approvals.Answer) (opens string, err error) {
	id, _ := record.ParseID(q.ID)
	if err := a.Gate.Records.NoteOperator(who.answerNote(said, q)); err != nil {
		return "", &unrecordedError{err}
	}
	opens, err = a.settle(ctx, who, q, id, said)
	if err != nil { // the earlier record says that the answer counts
		note := who.Note(fmt.Sprintf("%s question %s did not count: %s", verb(said), id, err))
		if failed := a.Gate.Records.NoteOperator(note); failed != nil {
			a.Complain(failed)
		}
	}
	return opens, err
}

func (a *Asked) settle(ctx context.Context, who Operator, q *egress.Question, id record.ID, said approvals.Answer) (opens string, err error) {
	list := &a.Gate.Approvals
	if q.Pattern == "" {
		return "", list.Answer(id, said)
	}
	list.Granting.Lock()
	defer list.Granting.Unlock()
	now, _, found := list.Find(id)
	switch {
	case said.Once:
		return "", approvals.ErrNobodyWaits
	case a.Grants == nil:
		return "", &Unavailable{Status: http.StatusNotFound, Why: "nothing is granted here for a while", Hint: "egressd allow " + q.Pattern + " --save"}
	case !found:
		return "", approvals.ErrNoQuestion
	case said.First && now.State != approvals.Pending:
		return "", approvals.ErrAnswered
	case !said.Yes:
		if err := a.revoke(ctx, who, q.ID); err != nil {
			return "", err
		}
		return "", list.Answer(id, said)
	}
	granted, err := a.Grants.Grant(ctx, who, AccessGrant(q, said.Lasts))
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

// terms parses the answer, its duration, and what else it depends on.
func terms(r *http.Request, what string) (said approvals.Answer, err error) {
	if r.ContentLength != 0 {
		return said, errors.New("an answer takes no body: for, once and first are parameters of the query")
	}
	q, err := query(r, "for", "once", "first")
	if err != nil {
		return said, err
	}
	first := q.Get("first")
	if first != "" && first != "true" && first != "false" {
		return said, errors.New("first is true or false")
	}
	said, err = parseAnswer(what, q.Get("for"), q.Get("once"))
	said.First = first == "true"
	return said, err
}

// parseAnswer reads "approve" or "reject", with how long it lasts and whether it is for the flows that wait; both may be "".
func parseAnswer(what, lasts, once string) (said approvals.Answer, err error) {
	switch what {
	case "approve":
		said = approvals.Answer{Yes: true, Lasts: approvals.ApprovedFor}
	case "reject":
		said = approvals.Answer{Lasts: approvals.RejectedFor}
	default:
		return said, fmt.Errorf("an answer is approve or reject")
	}
	if lasts != "" {
		said.Lasts, err = time.ParseDuration(lasts)
		if err != nil || said.Lasts < time.Second || said.Lasts > approvals.MaxAnswer {
			return said, fmt.Errorf("for is a duration from 1s to %s", "24h")
		}
	}
	switch {
	case once == "true" && said.Yes:
		said.Once = true
	case once != "" && once != "false":
		return said, fmt.Errorf("once is true or false, and for what is approved")
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

// answerNote returns the record of an answer. Text chosen by the sandbox follows the operator, quoted and
// shortened, so that it cannot imitate another operator.
func (o Operator) answerNote(said approvals.Answer, q *egress.Question) egress.OperatorNote {
	text := fmt.Sprintf("%s question %s, for %s", verb(said), q.ID, said.Lasts)
	if said.Once {
		text += ", for the flows that wait now"
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
