package ui

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// An actView shows the rules that a person may write about one request. Nothing is written yet.
type actView struct {
	Verdict string // allow, deny, ask or undo
	Flow    string
	What    string // exactly what a rule is about
	Sandbox string
	Daemon  bool
	Now     string        // what would become of the request now
	While   *actWhile     // nil: there is no rule for a while
	File    *changeView   // of the policy file; nil: no rule can be written
	FileErr *told         // why not
	Out     []takenOut    // what undo takes out of the file
	Grants  []admin.Grant // what undo takes back
	Told    *told
	Others  []act
}

// An actWhile is a rule for a while, as the daemon has judged it.
type actWhile struct {
	Opens    string
	Already  []string
	Warnings []string
	Refused  *told
}

// A takenOut is the policy file without one line.
type takenOut struct {
	changeView
	At policy.Position
}

// grantedFor is for how long the page offers a rule for a while first.
const grantedFor = time.Hour

// An acting is the request that a person does something about.
type acting struct {
	verdict string
	story   *story.Story
	told    *record.Record // the decision
	config  string         // path of the policy file, "" for the usual one
	opening policy.Opening
}

// act shows what a rule about a request would be. It writes nothing.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	a, err := s.acting(r)
	if err != nil {
		s.refuse(w, r, notFound(err))
		return
	}
	s.showAct(w, r, a, http.StatusOK, nil)
}

// acting finds the request that a link or a form is about.
func (s *Server) acting(r *http.Request) (*acting, error) {
	found, run, err := s.story(r.FormValue("id"))
	if err != nil {
		return nil, err
	}
	a := &acting{verdict: r.FormValue("verdict"), story: found, told: found.Decisive, config: s.policyOf(run)}
	switch {
	case a.verdict != "allow" && a.verdict != "deny" && a.verdict != "ask" && a.verdict != "undo":
		return nil, errors.New("a request is allowed, denied or asked about, or that is undone")
	case a.told == nil:
		return nil, fmt.Errorf("%s has no decision", found.Flow)
	}
	return a, nil
}

// policyOf returns the policy file that decided about a run. A rule changes no other file than that of the denial.
func (s *Server) policyOf(run string) string {
	if s.options.Config == "" && run != "" {
		if known, err := s.run(run); err == nil {
			return known.Policy
		}
	}
	return s.options.Config
}

// rule sets exactly what a rule is about, or returns why no rule is written. An allow goes through the same check as egressd
// allow --from.
func (a *acting) rule(flags string) (err error) {
	if a.verdict == "allow" {
		file, _ := config.Find(a.config) // of a hint
		a.opening, err = a.story.Allowing(nil, flags, file)
		return err
	}
	p, err := policy.ParsePattern(logs.Destination(a.told))
	if err != nil {
		return hint.Failed(err, "a line that you write into the policy file")
	}
	a.opening = policy.Opening{Pattern: p}
	if h := a.told.HTTP; a.verdict == "ask" && h != nil && !h.PathCut && policy.NamesOne(h.Method, h.Path) {
		a.opening.Method, a.opening.Path = h.Method, h.Path
	}
	return nil
}

// grantOf is the request for a rule for a while.
func (a *acting) grantOf(lasts time.Duration, dry bool) admin.GrantRequest {
	return admin.GrantRequest{
		Verdict: a.verdict, Patterns: []string{a.opening.Pattern.String()}, Method: a.opening.Method, Path: a.opening.Path, Seconds: int64(lasts / time.Second),
		Sandbox: a.told.Sandbox, From: a.story.Flow, DryRun: dry,
	}
}

// edited is the policy file with the rule.
func (a *acting) edited() (*edit.Addition, error) {
	file, err := edit.New(a.config, a.verdict)
	if err != nil {
		return nil, err
	}
	if a.verdict == "allow" {
		file.For(a.told.Sandbox)
	}
	return file, file.Add([]policy.Opening{a.opening})
}

func (s *Server) showAct(w http.ResponseWriter, r *http.Request, a *acting, status int, t *told) {
	ctx, cancel := context.WithTimeout(r.Context(), daemonTimeout)
	defer cancel()
	v := actView{Verdict: a.verdict, Flow: a.story.Flow, Sandbox: a.told.Sandbox, Daemon: s.options.Dial != nil, Told: t}
	err := a.rule(s.options.Flags)
	v.What = a.opening.String()
	if err != nil {
		v.What = logs.What(a.told) + " of " + logs.Destination(a.told)
		if v.Told == nil {
			v.Told = toldOf(err)
			status = http.StatusConflict
		}
		s.write(w, r, status, "act", nil, nil, v)
		return
	}
	if _, v.Now, err = s.wouldBe(ctx, a); err != nil {
		v.Now = "egressd cannot say: " + err.Error()
	}
	if a.verdict == "undo" {
		s.showUndo(ctx, a, &v)
		s.write(w, r, status, "act", nil, nil, v)
		return
	}
	if s.options.Dial != nil && a.verdict != "ask" {
		v.While = &actWhile{}
		var would admin.Granted
		if err := s.askDaemon(ctx, http.MethodPost, "/v1/grants", a.grantOf(grantedFor, true), &would); err != nil {
			v.While.Refused = toldOf(err)
		}
		v.While.Opens, v.While.Already, v.While.Warnings = would.Opens, would.Already, would.Warnings
	}
	file, err := a.edited()
	if err != nil {
		v.FileErr = toldOf(err)
	} else {
		c := changeOf(file, a.verdict)
		v.File = &c
	}
	s.write(w, r, status, "act", nil, nil, v)
}

// showUndo lists the rules for a while and the lines of the file that are just about the request.
func (s *Server) showUndo(ctx context.Context, a *acting, v *actView) {
	if s.options.Dial != nil {
		all, err := s.grants(ctx)
		if err != nil {
			v.Told = toldOf(err)
		}
		for _, g := range all.Grants {
			if a.covers(&g) {
				v.Grants = append(v.Grants, g)
			}
		}
	}
	file, err := edit.New(a.config, "allow")
	if err != nil {
		v.FileErr = toldOf(err)
		return
	}
	for _, line := range file.LinesAbout(a.opening.Pattern) {
		without, err := a.without(line.At)
		if err != nil {
			v.FileErr = toldOf(err)
			continue
		}
		v.Out = append(v.Out, takenOut{changeOf(without, ""), line.At})
	}
}

// covers reports whether a grant is about the destination of the request.
func (a *acting) covers(g *admin.Grant) bool {
	if g.From == a.story.Flow {
		return true
	}
	p, err := policy.ParsePattern(g.Pattern)
	return err == nil && (g.Sandbox == "" || g.Sandbox == a.told.Sandbox) && p.MatchesName(logs.Host(a.told), a.told.Dst.Port)
}

// without is the policy file without the line at a place, which is just about the request.
func (a *acting) without(at policy.Position) (*edit.Addition, error) {
	file, err := edit.New(a.config, "allow")
	if err != nil {
		return nil, err
	}
	for _, line := range file.LinesAbout(a.opening.Pattern) {
		if line.At == at {
			return file, file.TakeOut(line)
		}
	}
	return nil, hint.Failed(errors.New("the policy file has changed since this was shown, so nothing was written"), "look at it again")
}

// doAct does what the view has shown: a rule for a while, a line in the file, or the undoing of either.
func (s *Server) doAct(w http.ResponseWriter, r *http.Request) {
	a, err := s.acting(r)
	if err == nil {
		err = a.rule(s.options.Flags)
	}
	if err != nil {
		s.refuse(w, r, &refusal{http.StatusConflict, err.Error(), hint.Next(err)})
		return
	}
	var done *told
	switch how := r.FormValue("how"); {
	case how == "while" && a.verdict != "ask" && a.verdict != "undo" && s.options.Dial != nil:
		done, err = s.grantWhile(r.Context(), a, r.FormValue("for"))
	case how == "save" && a.verdict != "undo":
		done, err = s.saveAct(r, a, a.edited)
	case how == "back" && a.verdict == "undo" && s.options.Dial != nil:
		var gone admin.Revoked
		if err = s.askDaemon(r.Context(), http.MethodDelete, "/v1/grants/"+url.PathEscape(r.FormValue("grant")), nil, &gone); err == nil {
			done = &told{Done: "Taken back: " + gone.Revoked.Does() + " " + gone.Revoked.Text()}
		}
	case how == "out" && a.verdict == "undo":
		line, _ := strconv.Atoi(r.FormValue("line"))
		column, _ := strconv.Atoi(r.FormValue("column"))
		done, err = s.saveAct(r, a, func() (*edit.Addition, error) { return a.without(policy.Position{Line: line, Column: column}) })
	default:
		err = errors.New("the form does not say what to do")
	}
	if err != nil {
		s.showAct(w, r, a, http.StatusConflict, toldOf(err))
		return
	}
	done.Done += ". " + s.inForce(r.Context(), a)
	if a.verdict != "undo" {
		done.Undo = actURL(a.story.Flow, "undo")
	}
	s.lookAtGrants(r.Context())
	s.saved.Store(done)
	http.Redirect(w, r, "/request/"+a.story.Flow, http.StatusSeeOther)
}

func (s *Server) grantWhile(ctx context.Context, a *acting, lasts string) (*told, error) {
	d, err := time.ParseDuration(lasts)
	if err != nil || d < time.Second {
		return nil, errors.New("a rule for a while has a time, such as 1h")
	}
	var done admin.Granted
	if err := s.askDaemon(ctx, http.MethodPost, "/v1/grants", a.grantOf(d, false), &done); err != nil {
		return nil, err
	}
	text := "The policy says so already"
	if len(done.Grants) > 0 {
		g := &done.Grants[0]
		text = fmt.Sprintf("Rule %s: %s %s until %s", g.ID, g.Does(), g.Text(), when(g.Until))
	}
	return &told{Done: text}, nil
}

// saveAct writes the file, if the change is the one that was shown.
func (s *Server) saveAct(r *http.Request, a *acting, change func() (*edit.Addition, error)) (*told, error) {
	file, err := change()
	if err != nil {
		return nil, err
	}
	if v := changeOf(file, a.verdict); !file.Changes() || !equal(v.Digest, r.FormValue("digest")) {
		return nil, hint.Failed(errors.New("the policy file has changed since this was shown, so nothing was written"), "look at the change again, and save it")
	}
	target, watched, err := file.Write()
	if err != nil {
		return nil, err
	}
	done := &told{Done: "Written to " + target}
	if !watched && s.options.Dial != nil {
		done.Next = "egressd reload"
	}
	return done, nil
}

// Bounds of how long the page waits until a rule counts.
const (
	forceWithin = 3 * time.Second
	forceEvery  = 100 * time.Millisecond
)

// inForce says what would become of the request now. It waits a moment for a daemon that reads a file again.
func (s *Server) inForce(ctx context.Context, a *acting) string {
	ctx, cancel := context.WithTimeout(ctx, forceWithin)
	defer cancel()
	wanted := a.verdict
	for {
		verdict, text, err := s.wouldBe(ctx, a)
		switch {
		case err != nil:
			return "Nobody can say whether that is in force: " + err.Error()
		case s.options.Dial == nil:
			return text
		case wanted == "undo" || verdict == wanted:
			return "In force: " + text
		}
		if !wait(ctx, forceEvery) {
			return "Not in force: " + text
		}
	}
}

// wouldBe says what would become of the request now: by the daemon, or by the policy file for the next run.
func (s *Server) wouldBe(ctx context.Context, a *acting) (verdict, text string, err error) {
	if s.options.Dial != nil {
		var answer explain.Answer
		if err := s.askDaemon(context.WithoutCancel(ctx), http.MethodPost, "/v1/explain", requestOf(a.told), &answer); err != nil {
			return "", "", err
		}
		return answer.Verdict, "egressd serve would " + saying(answer.Verdict, answer.Rule), nil
	}
	cfg, err := config.Load(a.config)
	if none := (*config.NotFoundError)(nil); errors.As(err, &none) {
		return "deny", "there is no policy file yet, and the next run would " + saying("deny", "default"), nil
	}
	if err != nil {
		return "", "", err
	}
	p, err := cfg.Compile()
	if err != nil {
		return "", "", err
	}
	d, ok := replay.New(cfg, p).Decide(ctx, a.told)
	if !ok {
		return "", "", errors.New("the record does not hold enough of the request to decide it again")
	}
	verdict = replay.ActionOf(d, a.told)
	return verdict, "a run that goes on keeps its policy; the next one would " + saying(verdict, d.Rule), nil
}

// saying is a verdict in a sentence.
func saying(verdict, rule string) string {
	text := map[string]string{"allow": "allow it", "ask": "ask a person about it", replay.LookedInto: "look into its tunnel"}[verdict]
	if text == "" {
		text = "deny it"
	}
	if rule != "" {
		text += ", by rule " + rule
	}
	return text
}

// requestOf asks the daemon about the request of a record.
func requestOf(r *record.Record) admin.ExplainRequest {
	q := admin.ExplainRequest{Sandbox: r.Sandbox}
	if r.Dst == nil {
		q.Request = logs.Destination(r)
		return q
	}
	q.Request = net.JoinHostPort(r.Dst.Host, strconv.Itoa(int(r.Dst.Port)))
	if h := r.HTTP; h != nil && h.Method != "" && strings.HasPrefix(h.Path, "/") {
		scheme := "https"
		if r.Via == string(policy.ViaHTTP) {
			scheme = "http"
		}
		q.Request, q.Method = scheme+"://"+q.Request+h.Path, h.Method
	}
	return q
}

// An act is a link to what a person may do about a row.
type act struct{ Name, URL, About string }

func actURL(flow, verdict string) string {
	return "/act?" + url.Values{"id": {flow}, "verdict": {verdict}}.Encode()
}

// acts returns the links of a row. r is the shape of its decision, flow the id of its flow. With undo, a rule about the destination
// can be undone. The view behind a link judges the request.
func (s *Server) acts(r *record.Record, flow string, undo bool) (all []act) {
	if !s.options.HasPolicy || r.DNS != nil && r.Dst == nil {
		return nil
	}
	about := logs.Destination(r)
	add := func(verdict string) {
		all = append(all, act{verdict + "…", actURL(flow, verdict), verdict + " " + about})
	}
	switch r.Decision.Action {
	case "allow":
		add("deny")
		add("ask")
	case "ask":
		add("deny")
	default:
		one := *r
		one.Flow = flow
		if logs.Allowable(&one) != "" {
			add("allow")
			add("ask")
		}
	}
	if undo {
		add("undo")
	}
	return all
}

// An undoable knows the hosts for which somebody wrote a rule, and the patterns of rules for a while.
type undoable struct {
	hosts  map[string]bool
	grants []policy.Pattern
}

func (u *undoable) about(r *record.Record) bool {
	host := logs.Host(r)
	if u.hosts[host] {
		return true
	}
	for _, p := range u.grants {
		if r.Dst != nil && p.MatchesName(host, r.Dst.Port) {
			return true
		}
	}
	return false
}

// undoable reads the policy file if it has changed. For temporary grants it goes by the last answer of the daemon.
func (s *Server) undoable() *undoable {
	u := &undoable{}
	if !s.options.HasPolicy {
		return u
	}
	for _, g := range s.live.granted() {
		if p, err := policy.ParsePattern(g.Pattern); err == nil {
			u.grants = append(u.grants, p)
		}
	}
	u.hosts = s.single.read(s.options.Config)
	return u
}

// A singleHosts holds the hosts of lines that are about one host, and reads the policy file again if it has changed. Its zero value
// is empty.
type singleHosts struct {
	mu    sync.Mutex // guards what follows
	of    fs.FileInfo
	hosts map[string]bool
}

func (h *singleHosts) read(name string) map[string]bool {
	path, err := config.Find(name)
	if err != nil {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > largestPolicy {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of != nil && os.SameFile(h.of, info) && h.of.ModTime().Equal(info.ModTime()) && h.of.Size() == info.Size() {
		return h.hosts
	}
	h.of, h.hosts = info, map[string]bool{}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	f, err := file.Parse(path, text)
	if err != nil {
		return nil
	}
	lists := [][]policy.Rule{f.Allow, f.Deny, f.Ask}
	for i := range f.Sandboxes {
		lists = append(lists, f.Sandboxes[i].Allow, f.Sandboxes[i].AlsoAllow, f.Sandboxes[i].Deny)
	}
	for _, r := range slices.Concat(lists...) {
		if r.Pattern.OneHost() {
			h.hosts[r.Pattern.Host()] = true
		}
	}
	return h.hosts
}
