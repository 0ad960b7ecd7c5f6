package admin

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/boottime"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
)

// Links are how people answer questions from elsewhere: whoever holds a link may answer its question, once.
//
// A link is signed, for one question in exactly its terms, one receiver and one hour. Its key is in memory alone and ends with
// the process. Only POST answers: a program that looks at links for a preview sends GET, and gets a page. Once a person
// has answered a question, no link answers it again.
type Links struct {
	Base  string // URL of this server as people reach it, without a slash at its end
	Asked *Asked
	// FromSandbox reports whether a sandbox has this address. Its requests are refused. nil: none has.
	FromSandbox func(netip.AddrPort) bool
	// ForGood reports whether links may approve for good, which changes the policy file. nil: they may not.
	ForGood func() bool

	Approved, Rejected, Refused atomic.Int64 // answers by link

	once sync.Once
	key  [sha256.Size]byte
}

// Bounds of links.
const (
	linkLasts = time.Hour
	linkBody  = 8 << 10 // bytes
	maxSays   = 80      // bytes
)

// sign returns the signature of a link. It covers all that a question is about.
func (l *Links) sign(receiver string, q *egress.Question, end int64) []byte {
	l.once.Do(func() { _, _ = rand.Read(l.key[:]) }) // which does not fail
	m := hmac.New(sha256.New, l.key[:])
	fmt.Fprintf(m, "%d %s\n%d\n%s", len(receiver), receiver, end, q.Digest())
	return m.Sum(nil)
}

// To returns the link by which whoever reads the receiver's messages answers q.
func (l *Links) To(receiver string, q *egress.Question) string {
	return l.linkAt(receiver, q, int64((boottime.Now()+linkLasts)/time.Second))
}

// linkAt returns a link that ends at a second of [boottime.Now].
func (l *Links) linkAt(receiver string, q *egress.Question, end int64) string {
	return fmt.Sprintf("%s/q/%s/%s/%d/%s", l.Base, receiver, q.ID, end, base64.RawURLEncoding.EncodeToString(l.sign(receiver, q, end)))
}

// find returns the question that a link with this path answers. It returns false for a path without a valid signature and for one
// that is too old. It also returns false if the question is gone or has other terms.
func (l *Links) find(path string) (q egress.Question, receiver string, ok bool) {
	part := strings.Split(path, "/")
	if len(part) != 6 || part[0] != "" || part[1] != "q" {
		return q, "", false
	}
	id, known := record.ParseID(part[3])
	end, err := strconv.ParseInt(part[4], 10, 64)
	sum, bad := base64.RawURLEncoding.Strict().DecodeString(part[5])
	if !known || err != nil || bad != nil {
		return q, "", false
	}
	q, found := l.Asked.Gate.Approvals.Question(id)
	if !hmac.Equal(sum, l.sign(part[2], &q, end)) || !found || q.ID != part[3] || boottime.Now() >= time.Duration(end)*time.Second {
		return egress.Question{}, "", false
	}
	return q, part[2], true
}

// handler answers everything itself: nothing of the operator's listener is here.
func (l *Links) handler(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Robots-Tag", "noindex")
		defer recovered.Log("answering by a link", func() { l.page(w, http.StatusInternalServerError, linkPage{Says: "The request failed."}) })
		v, is := r.Context().Value(connectionKey{}).(*connection)
		if !is {
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, linkBody)
		l.serve(w, r, s, v)
	})
}

const noLink = "This link answers nothing. It is wrong, it is older than an hour, or the question is gone."

func (l *Links) serve(w http.ResponseWriter, r *http.Request, s *Server, v *connection) {
	refuse := func(status int, what, says string) {
		l.Refused.Add(1)
		s.denied.note(s, v.who, what)
		w.Header().Set("Connection", "close")
		l.tell(w, r, status, linkPage{Says: says})
	}
	if l.FromSandbox != nil && l.FromSandbox(v.who.Addr) {
		refuse(http.StatusForbidden, "a link from a sandbox", "No sandbox answers questions.")
		return
	}
	q, receiver, ok := l.find(r.URL.EscapedPath())
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case !ok || r.URL.RawQuery != "":
		refuse(http.StatusNotFound, "a link that answers nothing", noLink)
		return
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		v.proven.Store(true)
		l.show(w, &q, "")
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "GET, HEAD, POST")
		refuse(http.StatusMethodNotAllowed, "a link with another method", "Open the link, and press a button.")
		return
	case site == "cross-site" || site == "same-site":
		refuse(http.StatusForbidden, "a link from a page of another site", "Open the link itself, and press a button.")
		return
	}
	v.proven.Store(true)
	said, by, err := answerOf(r)
	if err == nil && said.save != "" && !l.mayForGood() {
		err = errors.New("links approve nothing for good here (notify.for_good)")
	}
	if err != nil {
		refuse(http.StatusBadRequest, "a link with what is no answer", "That is no answer: "+err.Error()+".")
		return
	}
	who := v.who
	who.Link, who.Says = receiver, by
	if said.save == lookFirst {
		l.showSave(w, r, &q)
		return
	}
	l.settle(w, r, who, &q, said)
}

func (l *Links) mayForGood() bool { return l.ForGood != nil && l.ForGood() }

// lookFirst stands for the digest of a change that nobody has seen yet. It has the change shown.
const lookFirst = "look"

// showSave shows what a yes for good would write into the policy file.
func (l *Links) showSave(w http.ResponseWriter, r *http.Request, q *egress.Question) {
	if q.State != string(approvals.Pending) {
		l.show(w, q, "")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), writeTimeout)
	defer cancel()
	saved, err := l.Asked.WouldSave(ctx, q)
	if err != nil {
		l.show(w, q, "It cannot be approved for good: "+printable.Text(err.Error())+".")
		return
	}
	l.page(w, http.StatusOK, linkPage{Question: q, What: printable.Text(askedFor(q)), Saved: saved, Buttons: []linkButton{
		{Name: "Write it", Answer: "yes", Save: saved.Digest, Means: "The file changes as shown, for " + saved.To() + "."},
	}})
}

// settle answers the question, unless somebody has.
func (l *Links) settle(w http.ResponseWriter, r *http.Request, who Operator, q *egress.Question, said linkAnswer) {
	said.First = true
	id, _ := record.ParseID(q.ID)
	if q.State != string(approvals.Pending) {
		l.Refused.Add(1)
		l.tell(w, r, http.StatusConflict, linkPage{Says: answeredText(q)})
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), writeTimeout)
	defer cancel()
	opens, saved, err := "", (*Saved)(nil), error(nil)
	if said.save != "" {
		saved, err = l.Asked.Save(ctx, who, q, said.Answer, said.save)
	} else {
		opens, err = l.Asked.Answer(ctx, who, q, said.Answer)
	}
	now, found := l.Asked.Gate.Approvals.Question(id)
	if !found {
		now = *q
	}
	unavailable, unwritten := (*Unavailable)(nil), (*unrecordedError)(nil)
	switch {
	case err == nil:
		counted := &l.Rejected
		if said.Yes {
			counted = &l.Approved
		}
		counted.Add(1)
		text := answeredText(&now)
		if saved != nil {
			opens, text = saved.Opens, fmt.Sprintf("Answered: %s has %s for good, for %s.", printable.Text(saved.Path), printable.Text(strings.Join(saved.Lines, ", ")), printable.Text(saved.To()))
		}
		if opens != "" {
			text += " That " + printable.Text(opens) + "."
		}
		l.tell(w, r, http.StatusOK, linkPage{Says: text})
		return
	case errors.Is(err, approvals.ErrAnswered):
		l.tell(w, r, http.StatusConflict, linkPage{Says: answeredText(&now)})
	case errors.Is(err, approvals.ErrNoQuestion):
		l.tell(w, r, http.StatusNotFound, linkPage{Says: noLink})
	case errors.As(err, &unwritten):
		l.tell(w, r, http.StatusServiceUnavailable, linkPage{Says: "It does not count: what cannot be recorded is not done."})
	case errors.As(err, &unavailable):
		l.tell(w, r, http.StatusConflict, linkPage{Says: "It does not count: " + printable.Text(unavailable.Why) + "."})
	default:
		l.tell(w, r, http.StatusConflict, linkPage{Says: "It does not count: " + printable.Text(err.Error()) + "."})
	}
	l.Refused.Add(1)
}

// answerOf reads an answer: a form, as the page and ntfy send it, or the JSON of a button of Mattermost, whose server
// says who pressed it.
func answerOf(r *http.Request) (said linkAnswer, by string, err error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return said, "", errors.New("it has no Content-Type")
	}
	var form struct{ answer, lasts, once, thisRun string }
	switch kind {
	case "application/x-www-form-urlencoded":
		if err := r.ParseForm(); err != nil {
			return said, "", errors.New("the form cannot be read")
		}
		for name, values := range r.PostForm {
			into := map[string]*string{"answer": &form.answer, "for": &form.lasts, "once": &form.once, "this_run": &form.thisRun, "save": &said.save}[name]
			if into == nil || len(values) != 1 {
				return said, "", errors.New("it has answer, for, once, this_run and save, each at most once")
			}
			if name == "save" && values[0] == "" {
				return said, "", errors.New("save is the digest of a change")
			}
			*into = values[0]
		}
	case "application/json":
		var pressed struct {
			UserName string `json:"user_name"`
			Context  struct {
				Answer string `json:"answer"`
				For    string `json:"for"`
				Once   string `json:"once"`
				Run    string `json:"this_run"`
			} `json:"context"`
		}
		if err := json.NewDecoder(r.Body).Decode(&pressed); err != nil {
			return said, "", errors.New("the JSON cannot be read")
		}
		by = pressed.UserName
		form.answer, form.lasts, form.once, form.thisRun = pressed.Context.Answer, pressed.Context.For, pressed.Context.Once, pressed.Context.Run
	default:
		return said, "", errors.New("it is neither a form nor JSON")
	}
	what, known := map[string]string{"yes": "approve", "no": "reject"}[form.answer]
	if !known {
		return said, "", errors.New("an answer is yes or no")
	}
	said.Answer, err = parseAnswer(what, form.lasts, form.once, form.thisRun)
	if err == nil && said.save != "" && (!said.Yes || form.lasts+form.once+form.thisRun != "") {
		err = errors.New("save is for a yes alone")
	}
	return said, by, err
}

// A linkAnswer is an answer. An answer for good has the digest of the change that the page showed.
type linkAnswer struct {
	approvals.Answer
	save string
}

// answeredText says what was answered.
func answeredText(q *egress.Question) string {
	state := map[string]string{string(approvals.Approved): "may reach", string(approvals.Rejected): "may not reach"}[q.State]
	if state == "" {
		return "The question is gone."
	}
	scope := q.Scope()
	if scope != "" {
		scope = ", " + scope
	}
	return fmt.Sprintf("Answered: sandbox %s %s %s%s, until %s.", printable.Text(q.Sandbox), state, printable.Text(askedFor(q)), scope, q.Until.UTC().Format("2006-01-02 15:04 MST"))
}

// askedFor is what a question is about, in one line.
func askedFor(q *egress.Question) string {
	what := net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	if q.Method == "" && q.Path == "" {
		return what
	}
	method := q.Method
	if method == "" {
		method = "any method"
	}
	return strings.TrimSpace(method+" "+q.Path) + " at " + what
}

// A linkPage is what a person sees.
type linkPage struct {
	Question *egress.Question
	What     string
	Says     string
	Saved    *Saved // what a yes for good would write
	Command  string // that approves for good
	Buttons  []linkButton
}

// A linkButton is one answer, and what it means.
type linkButton struct{ Name, Means, Answer, For, Once, ThisRun, Save string }

// show shows a question, with buttons if nobody has answered it.
func (l *Links) show(w http.ResponseWriter, q *egress.Question, says string) {
	if q.State != string(approvals.Pending) {
		l.page(w, http.StatusOK, linkPage{Says: answeredText(q)})
		return
	}
	p := linkPage{Question: q, What: printable.Text(askedFor(q)), Says: says}
	if q.Waiting > 0 && q.Pattern == "" {
		p.Buttons = append(p.Buttons, linkButton{Name: "Allow once", Means: "Only what waits now passes. The next request asks again.", Answer: "yes", For: "5m", Once: "true"})
	}
	p.Buttons = append(p.Buttons,
		linkButton{Name: "Allow for an hour", Means: "It passes for an hour, also for the next run of this sandbox.", Answer: "yes", For: "1h"},
		linkButton{Name: "Allow for a day", Means: "The same for 24 hours.", Answer: "yes", For: "24h"})
	if q.Runs > 0 {
		p.Buttons = append(p.Buttons, linkButton{Name: "Allow for this run", Means: "It passes until the run that asked ends, 24 hours at most.", Answer: "yes", ThisRun: "true"})
	}
	switch {
	case l.Asked.File == nil:
	case l.mayForGood():
		p.Buttons = append(p.Buttons, linkButton{Name: "Allow this sandbox for good…", Means: "A line in the policy file. You see the change first.", Answer: "yes", Save: lookFirst})
	default:
		p.Command = shell.Program() + " answer " + q.ID + " yes --for good"
	}
	p.Buttons = append(p.Buttons, linkButton{Name: "Deny", Means: "It is denied for ten minutes, without another question.", Answer: "no"})
	l.page(w, http.StatusOK, p)
}

// tell answers a request in its own form: JSON for JSON, else a page.
func (l *Links) tell(w http.ResponseWriter, r *http.Request, status int, p linkPage) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		l.page(w, status, p)
		return
	}
	says := "`" + strings.ReplaceAll(p.Says, "`", "'") + "`" // a sandbox has chosen some of it, and Mattermost reads markup elsewhere
	said := map[string]any{"ephemeral_text": says}
	if status == http.StatusOK || status == http.StatusConflict {
		said["update"] = map[string]any{"message": says, "props": map[string]any{}} // in the place of the buttons
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK) // Mattermost shows the text of no other
	_ = json.NewEncoder(w).Encode(said)
}

func (l *Links) page(w http.ResponseWriter, status int, p linkPage) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = linkTemplate().Execute(w, p)
}

var linkTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("link").Funcs(template.FuncMap{"text": printable.Text}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex"><title>egressd: a question</title>
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}code,q{overflow-wrap:anywhere}button{font:inherit;padding:.5rem 1rem;margin:.25rem .5rem .25rem 0}form{margin:.25rem 0}pre{overflow-x:auto;border:1px solid;padding:.5rem}</style>
<h1>egressd</h1>
{{if .Says}}<p>{{.Says}}</p>{{end}}
{{with .Question}}<p>Sandbox <b>{{text .Sandbox}}</b> asks for <code>{{$.What}}</code> (rule {{text .Rule}}).</p>
{{if .Reason}}<p>The rule says: {{text .Reason}}</p>{{end}}
{{if .Words}}<p>The program in the sandbox says why. Do not believe it without a look at the host: <q>{{text .Words}}</q></p>{{end}}
{{with .Process}}<p>Program: <code>{{text .Exe}}</code></p>{{end}}
{{end}}
{{with .Saved}}<p>This would be written into <code>{{text .Path}}</code>:</p><pre>{{.Diff}}</pre>{{if .Opens}}<p>That {{text .Opens}}.</p>{{end}}{{range .Warnings}}<p>{{text .}}</p>{{end}}{{end}}
{{range .Buttons}}<form method="post"><input type="hidden" name="answer" value="{{.Answer}}">{{if .For}}<input type="hidden" name="for" value="{{.For}}">{{end}}{{if .Once}}<input type="hidden" name="once" value="{{.Once}}">{{end}}{{if .ThisRun}}<input type="hidden" name="this_run" value="{{.ThisRun}}">{{end}}{{if .Save}}<input type="hidden" name="save" value="{{.Save}}">{{end}}<button>{{.Name}}</button> {{.Means}}</form>
{{end}}{{with .Command}}<p>For good: in a terminal, <code>{{.}}</code></p>{{end}}</html>
`))
})
