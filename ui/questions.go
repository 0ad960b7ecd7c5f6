package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/quantity"
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

// answer answers a question: approve or reject, for a time, once, for this run, or for good.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	what, terms, err := answerOf(r)
	id, ok := record.ParseID(r.PostFormValue("id"))
	if err == nil && !ok {
		err = errNoAnswer
	}
	if err != nil {
		s.showQuestions(w, r, http.StatusBadRequest, &told{Err: err})
		return
	}
	if r.PostFormValue("first") == "true" { // somebody else may have answered since this was shown
		terms.Set("first", "true")
	}
	if shown := r.PostFormValue("terms"); shown != "" {
		terms.Set("terms", shown)
	}
	var done admin.Answer
	if err := s.send(r.Context(), id.String(), what, terms, &done); err != nil {
		s.showQuestions(w, r, http.StatusConflict, toldOf(err))
		return
	}
	back := r.PostFormValue("back")
	if !strings.HasPrefix(back, "/") || strings.HasPrefix(back, "//") || strings.ContainsAny(back, "\\\r\n") {
		back = "/questions"
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}

var errNoAnswer = errors.New("the form does not say what to answer to which question")

// answerOf reads what a form answers, and for how long.
func answerOf(r *http.Request) (what string, terms url.Values, err error) {
	what, terms = r.PostFormValue("answer"), url.Values{}
	if what != "approve" && what != "reject" {
		return "", nil, errNoAnswer
	}
	lasts := r.PostFormValue("for")
	switch save := r.PostFormValue("save"); {
	case save != "" && what == "approve":
		terms.Set("save", save)
		return what, terms, nil
	case save != "":
		return "", nil, errNoAnswer
	case lasts == "run":
		terms.Set("this_run", "true")
		return what, terms, nil
	case r.PostFormValue("once") == "true" || lasts == "once":
		if what == "approve" {
			terms.Set("once", "true")
		}
		if lasts == "once" {
			lasts = onceLasts
		}
	}
	d, err := time.ParseDuration(lasts)
	if err != nil {
		return "", nil, errNoAnswer
	}
	terms.Set("for", d.String())
	return what, terms, nil
}

// onceLasts is how long the requests may take that an approval once lets pass.
const onceLasts = "5m"

func (s *Server) send(ctx context.Context, text, what string, terms url.Values, done *admin.Answer) error {
	id, ok := record.ParseID(text)
	if !ok {
		return errNoAnswer
	}
	return s.askDaemon(ctx, http.MethodPost, "/v1/questions/"+id.String()+"/"+what+"?"+terms.Encode(), nil, done)
}

// picksMost is how many questions one form answers.
const picksMost = 600

// answerAll answers the questions that were marked, in the terms in which the page showed them. Questions that came meanwhile wait, and
// answers of other people stand.
func (s *Server) answerAll(w http.ResponseWriter, r *http.Request) {
	what, terms, err := answerOf(r)
	picked := r.PostForm["pick"]
	switch {
	case err == nil && terms.Has("save"):
		err = errors.New("for good, questions are answered one by one, since each changes the file")
	case err == nil && len(picked) == 0:
		err = errors.New("no question is marked")
	case len(picked) > picksMost:
		err = fmt.Errorf("more than %d questions at once", picksMost)
	}
	if err != nil {
		s.showQuestions(w, r, http.StatusBadRequest, &told{Err: err})
		return
	}
	terms.Set("first", "true")
	answered, failed := 0, []string(nil)
	for _, one := range picked {
		id, shown, ok := strings.Cut(one, ":")
		terms.Set("terms", shown)
		var done admin.Answer
		err := errors.New("the form does not say in which terms it was shown")
		if ok && shown != "" {
			err = s.send(r.Context(), id, what, terms, &done)
		}
		if err != nil {
			failed = append(failed, id+": "+err.Error())
			continue
		}
		answered++
	}
	t := &told{Done: quantity.Plural(answered, "question") + " answered: " + map[string]string{"approve": "yes", "reject": "no"}[what]}
	status := http.StatusOK
	if len(failed) > 0 {
		t.Err, status = fmt.Errorf("%s; not answered: %s", t.Done, strings.Join(failed, "; ")), http.StatusConflict
	}
	s.showQuestions(w, r, status, t)
}

// A saveView is what a yes for good would write.
type saveView struct {
	question
	Change  admin.Saved
	Diff    []diffLine
	To      string
	Refused *told
}

// wouldSave shows what a yes for good would write. It writes nothing.
func (s *Server) wouldSave(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 3*daemonTimeout) // the daemon compares two policies
	defer cancel()
	id, ok := record.ParseID(r.FormValue("id"))
	var all egress.Questions
	err := s.askDaemon(ctx, http.MethodGet, "/v1/questions", nil, &all)
	i := slices.IndexFunc(all.Questions, func(q egress.Question) bool { return q.ID == id.String() })
	if err == nil && (!ok || i < 0) {
		err = errors.New("there is no question with that id, or no longer")
	}
	if err != nil {
		s.showQuestions(w, r, http.StatusNotFound, toldOf(err))
		return
	}
	v := saveView{question: s.describe(ctx, all.Questions[i])}
	v.Back = "/questions"
	if err := s.askDaemon(ctx, http.MethodGet, "/v1/questions/"+id.String()+"/save", nil, &v.Change); err != nil {
		v.Refused = toldOf(err)
	}
	v.Diff, v.To = linesOfDiff(v.Change.Diff), v.Change.To()
	s.write(w, r, http.StatusOK, "save", nil, nil, v)
}
