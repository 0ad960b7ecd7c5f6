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
}

// answer answers a question. The parameters are for=DURATION and once=true.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	const list = "egressd answer"
	what := r.PathValue("answer")
	counts, once, err := terms(r, what)
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
	if err := s.Gate.Records.NoteOperator(operatorOf(r).AnswerNote(what, counts, once, &q)); err != nil {
		unrecorded(w, err)
		return
	}
	if what == "approve" {
		err = s.Gate.Approvals.Approve(id, counts, once)
	} else {
		err = s.Gate.Approvals.Reject(id, counts)
	}
	if err != nil { // the earlier record says that the answer counts
		s.reportError(s.Gate.Records.NoteOperator(operatorOf(r).Note(fmt.Sprintf("%s question %s did not count: %s", what, id, err))))
	}
	switch {
	case errors.Is(err, approvals.ErrNoQuestion):
		fail(w, http.StatusNotFound, err.Error(), list)
		return
	case err != nil:
		fail(w, http.StatusConflict, err.Error(), "egressd answer "+id.String()+" yes --for 5m")
		return
	}
	if now, found := s.Gate.Approvals.Question(id); found {
		q = now
	}
	write(w, http.StatusOK, Answer{what, q})
}

// terms parses the answer and its duration.
func terms(r *http.Request, what string) (counts time.Duration, once bool, err error) {
	switch what {
	case "approve":
		counts = approvals.ApprovedFor
	case "reject":
		counts = approvals.RejectedFor
	default:
		return 0, false, fmt.Errorf("an answer is approve or reject")
	}
	if r.ContentLength != 0 {
		return 0, false, errors.New("an answer takes no body: for and once are parameters of the query")
	}
	q, err := query(r, "for", "once")
	if err != nil {
		return 0, false, err
	}
	if text := q.Get("for"); text != "" {
		counts, err = time.ParseDuration(text)
		if err != nil || counts < time.Second || counts > approvals.MaxAnswer {
			return 0, false, fmt.Errorf("for is a duration from 1s to %s", "24h")
		}
	}
	switch text := q.Get("once"); {
	case text == "true" && what == "approve":
		once = true
	case text != "" && text != "false":
		return 0, false, fmt.Errorf("once is true or false, and for what is approved")
	}
	return counts, once, nil
}

// AnswerNote returns the record of an answer. Text chosen by the sandbox follows the operator, quoted and
// shortened, so that it cannot imitate another operator.
func (o Operator) AnswerNote(what string, counts time.Duration, once bool, q *egress.Question) egress.OperatorNote {
	text := fmt.Sprintf("%s question %s, for %s", what, q.ID, counts)
	if once {
		text += ", for the flows that wait now"
	}
	text += fmt.Sprintf(": sandbox %s, %s, rule %s (%s)", q.Sandbox, net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port))), q.Rule, q.Layer)
	note := o.Note(text)
	if q.Method != "" {
		note.Note += fmt.Sprintf(", to %q %q", q.Method, q.Path[:min(len(q.Path), 256)])
	}
	return note
}
