package ui

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A changeView is a change of the policy file, before it is saved.
type changeView struct {
	Verdict string
	Rules   []string // the new lines
	Value   string   // the same as a field of a form
	Already []string
	Path    string
	Fresh   bool // the file does not exist yet
	Warns   []string
	Diff    []diffLine
	Opens   string // and closes, in words
	Digest  string // of the file with the change
	Replay  *replayed
	Told    *told
}

// A diffLine is one line of a unified diff.
type diffLine struct {
	Kind string // "add", "del" or ""
	Text string
}

// A replayed is what the log would be under the changed file.
type replayed struct {
	Groups                    []*replay.Group
	More                      int
	Decided, Changed, Skipped int64
	Counts                    replay.Words
	LeftOut                   int64 // older records
	Partial                   bool  // time was up
	Err                       error
}

const (
	patternsMost   = 200
	replayMost     = 400_000 // records, the newest
	replayTime     = 10 * time.Second
	replayedGroups = 40
)

// change shows what a new rule would write, and what it would change in the log. It writes nothing.
func (s *Server) change(w http.ResponseWriter, r *http.Request) {
	a, err := s.addition(r)
	if err != nil {
		s.showChange(w, r, http.StatusBadRequest, changeView{Told: toldOf(err)})
		return
	}
	v := changeOf(a, verdictOf(r))
	if len(a.Added) > 0 {
		again := replay.New(a.After())
		again.Beside(a.Before())
		v.Replay = s.replay(r.Context(), again)
	}
	s.showChange(w, r, http.StatusOK, v)
}

// saveChange writes the change that [Server.change] showed. If the file or the change is another one by now, it
// shows that instead.
func (s *Server) saveChange(w http.ResponseWriter, r *http.Request) {
	a, err := s.addition(r)
	if err != nil {
		s.showChange(w, r, http.StatusConflict, changeView{Told: toldOf(err)})
		return
	}
	v := changeOf(a, verdictOf(r))
	if len(a.Added) == 0 || !equal(v.Digest, r.PostFormValue("digest")) {
		v.Told = &told{Err: errors.New("the policy file has changed since this was shown, so nothing was written"), Next: "look at the change again, and save it"}
		s.showChange(w, r, http.StatusConflict, v)
		return
	}
	target, watched, err := a.Write()
	if err != nil {
		v.Told = toldOf(err)
		s.showChange(w, r, http.StatusConflict, v)
		return
	}
	saved := &told{Done: fmt.Sprintf("Saved to %s: %s", target, strings.Join(v.Rules, ", "))}
	if !watched {
		saved.Next = "egressd reload"
	}
	s.saved.Store(saved)
	http.Redirect(w, r, "/policy", http.StatusSeeOther)
}

func (s *Server) showChange(w http.ResponseWriter, r *http.Request, status int, v changeView) {
	s.write(w, r, status, "change", nil, nil, v)
}

func verdictOf(r *http.Request) string { return cmp.Or(r.FormValue("verdict"), "allow") }

// addition judges the new lines that a form or a link asks for.
func (s *Server) addition(r *http.Request) (*edit.Addition, error) {
	verdict := verdictOf(r) // reads the form
	patterns := r.Form["pattern"]
	switch {
	case verdict != "allow" && verdict != "deny":
		return nil, errors.New("a rule allows or denies")
	case len(patterns) == 0:
		return nil, errors.New("no rule was chosen: mark at least one")
	case len(patterns) > patternsMost:
		return nil, fmt.Errorf("more than %d rules in one change", patternsMost)
	}
	lines, err := openingsOf(patterns, verdict)
	if err != nil {
		return nil, err
	}
	a, err := edit.New(s.options.Config, verdict)
	if err != nil {
		return nil, err
	}
	return a, a.Add(lines)
}

// openingsOf reads fields of a form that [valueOf] wrote. It refuses what egressd allow refuses.
func openingsOf(values []string, verdict string) (all []policy.Opening, err error) {
	var fields []openingField
	for _, text := range values {
		several := []openingField{{Pattern: text}}
		if strings.HasPrefix(text, "[{") {
			if err := json.Unmarshal([]byte(text), &several); err != nil {
				return nil, errors.New("the form does not say which rules are meant")
			}
		}
		fields = append(fields, several...)
	}
	for _, f := range fields {
		patterns, err := edit.Patterns([]string{f.Pattern}, verdict, func(hosts string) string { return "egressd " + verdict + " " + hosts + " --save" })
		if err != nil {
			return nil, err
		}
		o := policy.Opening{Pattern: patterns[0], Method: f.Method, Path: f.Path}
		if err := o.Check(); err != nil && verdict == "allow" {
			return nil, err
		}
		if !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	return all, nil
}

// changeOf describes a change of the policy file.
func changeOf(a *edit.Addition, verdict string) changeView {
	v := changeView{Verdict: verdict, Path: a.Path, Fresh: a.Fresh(), Warns: a.Warnings}
	for _, p := range a.Added {
		v.Rules = append(v.Rules, p.String())
	}
	for _, p := range a.Already {
		v.Already = append(v.Already, p.String())
	}
	v.Value = valueOf(a.Added)
	if !a.Changes() {
		return v
	}
	v.Opens = explain.Told(context.Background(), a.Sides(), a.Near()...)
	_, text := a.Texts()
	sum := sha256.Sum256([]byte(text))
	v.Digest = hex.EncodeToString(sum[:])
	v.Diff = linesOfDiff(a.Diff())
	return v
}

func linesOfDiff(text string) (all []diffLine) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		d := diffLine{Text: line}
		switch {
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"):
		case strings.HasPrefix(line, "+"):
			d.Kind = "add"
		case strings.HasPrefix(line, "-"):
			d.Kind = "del"
		}
		all = append(all, d)
	}
	return all
}

// replay decides the newest records of the log again.
func (s *Server) replay(ctx context.Context, again *replay.Replay) *replayed {
	progress, _ := s.index.Progress()
	v := &replayed{}
	if s.options.Runs == nil {
		v.LeftOut = max(0, progress.Next-replayMost)
	}
	log, err := s.openLogs("", v.LeftOut)
	if err != nil {
		v.Err = err
		return v
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	v.Err = log.DecisionsUntil(ctx, &logs.Filter{}, func(r *record.Record) { again.Add(ctx, r) })
	v.Partial = ctx.Err() != nil
	v.Counts = again.Words
	v.Groups, v.Decided, v.Changed, v.Skipped = again.Groups(), again.Decided, again.Changed, again.Skipped
	if len(v.Groups) > replayedGroups {
		v.More, v.Groups = len(v.Groups)-replayedGroups, v.Groups[:replayedGroups]
	}
	return v
}

func toldOf(err error) *told {
	return &told{Err: err, Next: hint.Next(err)}
}
