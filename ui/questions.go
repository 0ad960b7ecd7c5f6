package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

type questionsView struct {
	Pending, Settled []question
	Open             bool
	Err              error
	Told             *told
}

// A question is a request that waits for a person. Facts about it stand apart from what the program says of
// itself.
type question struct {
	egress.Question
	Destination string
	Asks        string // method and path, or ""
	Program     string
	Claims      string // arguments of the program, which it may write itself
	Seen        int64  // earlier decisions about the host
	SeenDenied  int64
	SeenURL     string
	Scope       string // what an approval is for
	Back        string // the view to come back to
}

// A told is what came of a form.
type told struct {
	Done string
	Err  error
	Next string
	Undo string // URL
}

func (s *Server) questions(w http.ResponseWriter, r *http.Request) {
	s.showQuestions(w, r, http.StatusOK, nil)
}

func (s *Server) showQuestions(w http.ResponseWriter, r *http.Request, status int, t *told) {
	all, _, _ := s.live.state()
	ctx, cancel := context.WithTimeout(r.Context(), daemonTimeout)
	defer cancel()
	var fresh egress.Questions
	err := s.askDaemon(ctx, http.MethodGet, "/v1/questions", nil, &fresh)
	if err == nil {
		all = fresh
	}
	v := questionsView{Open: all.Open, Err: err, Told: t}
	for _, q := range all.Questions {
		one := s.describe(r.Context(), q)
		one.Back = "/questions"
		if q.State == "pending" {
			v.Pending = append(v.Pending, one)
		} else {
			v.Settled = append(v.Settled, one)
		}
	}
	s.write(w, r, status, "questions", nil, nil, v)
}

// barShown is how many questions every view has the forms for.
const barShown = 3

// bar describes the questions that wait, for the top of every view: the oldest first.
func (s *Server) bar(r *http.Request, all egress.Questions) (bar []question) {
	back := "/questions"
	if r.Method == http.MethodGet {
		back = r.URL.RequestURI()
	}
	for _, q := range all.Questions {
		if q.State == "pending" && len(bar) < barShown {
			one := s.describe(r.Context(), q)
			one.Back = back
			bar = append(bar, one)
		}
	}
	return bar
}

func (s *Server) describe(ctx context.Context, q egress.Question) question {
	one := question{Question: q, Destination: fmt.Sprintf("%s:%d", q.Host, q.Port)}
	if strings.Contains(q.Host, ":") {
		one.Destination = fmt.Sprintf("[%s]:%d", q.Host, q.Port)
	}
	one.Scope = "sandbox " + q.Sandbox + ", " + one.Destination + ", rule " + q.Rule
	if q.Method != "" || q.Path != "" {
		one.Asks = strings.TrimSpace(cmp.Or(q.Method, "any method") + " " + q.Path)
		one.Scope += ", " + one.Asks
	}
	if q.Process != nil {
		one.Program, one.Claims = logs.Exe(&record.Record{Process: q.Process}), strings.Join(q.Process.Argv, " ")
	}
	terms := []string{term("host", q.Host)}
	if f, err := logs.ParseFilter(terms, time.Now()); err == nil {
		sum := s.index.Sum(ctx, f, nil)
		for _, m := range sum.Minutes {
			one.Seen, one.SeenDenied = one.Seen+m.Allowed+m.Denied+m.Asked, one.SeenDenied+m.Denied
		}
	}
	one.SeenURL = address("/requests", terms, nil)
	return one
}

// answer answers a question: approve or reject, for a time, or once.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	id, ok := record.ParseID(r.PostFormValue("id"))
	what, terms := r.PostFormValue("answer"), url.Values{}
	lasts, err := time.ParseDuration(r.PostFormValue("for"))
	switch {
	case !ok || what != "approve" && what != "reject" || err != nil:
		s.showQuestions(w, r, http.StatusBadRequest, &told{Err: errors.New("the form does not say what to answer to which question")})
		return
	case r.PostFormValue("once") == "true" && what == "approve":
		terms.Set("once", "true")
	}
	terms.Set("for", lasts.String())
	if r.PostFormValue("first") == "true" { // somebody else may have answered since this was shown
		terms.Set("first", "true")
	}
	var done admin.Answer
	if err := s.askDaemon(r.Context(), http.MethodPost, "/v1/questions/"+id.String()+"/"+what+"?"+terms.Encode(), nil, &done); err != nil {
		s.showQuestions(w, r, http.StatusConflict, toldOf(err))
		return
	}
	back := r.PostFormValue("back")
	if !strings.HasPrefix(back, "/") || strings.HasPrefix(back, "//") || strings.ContainsAny(back, "\\\r\n") {
		back = "/questions"
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}
