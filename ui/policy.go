package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

type policyView struct {
	Path      string
	Err       error // why there are no rules to show
	Rules     []ruleRow
	Digest    string
	Dead      int
	Daemon    bool
	DaemonErr error
	InForce   string // digest of the policy that the daemon decides by
	Grants    []admin.Grant
	Sandboxes []string
	Asked     admin.ExplainRequest
	Shadows   []*logs.ShadowGroup // what the shadow policy would have decided otherwise
	Answer    *explain.Answer
	AnswerErr error
	Told      *told
	Heads     []heading // of the rules
}

// A ruleRow is a rule, and how many of the decisions that the page holds name it.
type ruleRow struct {
	config.RuleInForce
	Hits  int64
	Last  time.Time
	Dead  bool // no decision names it
	Known bool // hits can be told
	URL   string
}

func (s *Server) policy(w http.ResponseWriter, r *http.Request) {
	s.showPolicy(w, r, http.StatusOK, s.saved.Swap(nil))
}

func (s *Server) showPolicy(w http.ResponseWriter, r *http.Request, status int, t *told) {
	v := policyView{Daemon: s.options.Dial != nil, Told: t, Asked: admin.ExplainRequest{Request: r.FormValue("request"), Method: r.FormValue("method"), Sandbox: r.FormValue("sandbox")}}
	sum := s.index.Sum(r.Context(), &logs.Filter{}, nil)
	s.listRules(sum, &v)
	v.Shadows = s.shadows(sum)
	if v.Daemon {
		ctx, cancel := context.WithTimeout(r.Context(), daemonTimeout)
		defer cancel()
		var state struct{ Policy string }
		if v.DaemonErr = s.askDaemon(ctx, http.MethodGet, "/v1/policy", nil, &state); v.DaemonErr == nil {
			v.InForce = state.Policy
			if all, err := s.grants(ctx); err == nil {
				v.Grants = all.Grants
			}
		}
		if v.Asked.Request != "" && v.DaemonErr == nil {
			var raw json.RawMessage
			if v.AnswerErr = s.askDaemon(ctx, http.MethodPost, "/v1/explain", v.Asked, &raw); v.AnswerErr == nil {
				v.Answer = new(explain.Answer)
				v.AnswerErr = json.Unmarshal(raw, v.Answer)
			}
		}
	}
	q := &query{View: "/policy", options: r.URL.Query()}
	sorted(q, v.Rules, map[string]func(a, b ruleRow) int{
		"hits": by(func(r ruleRow) int64 { return r.Hits }), "last": func(a, b ruleRow) int { return a.Last.Compare(b.Last) }, "effect": by(func(r ruleRow) string { return r.Effect }),
		"what": by(func(r ruleRow) string { return r.What }), "rule": by(func(r ruleRow) string { return r.Rule }), "layer": by(func(r ruleRow) string { return string(r.Layer) + " " + r.Sandbox }),
		"where": func(a, b ruleRow) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) },
	})
	if q.Sorted != "" && v.Told == nil {
		v.Told = &told{Err: errors.New(q.Sorted)}
	}
	v.Heads = q.Heads("#hits:Hits", "last:Last", "effect:Effect", "what:What", "rule:Rule", "layer:Layer", "where:Where")
	s.write(w, r, status, "policy", nil, sum, v)
}

// listRules lists the rules of the policy file, with the decisions that name them.
func (s *Server) listRules(sum *index.Sum, v *policyView) {
	if !s.options.HasPolicy {
		v.Err = errors.New("the policy of this log is not known here")
		return
	}
	cfg, err := config.Load(s.options.Config)
	if err != nil {
		v.Err = err
		return
	}
	v.Path = cfg.Path
	for _, one := range cfg.File.Sandboxes {
		v.Sandboxes = append(v.Sandboxes, one.Name)
	}
	rules, err := cfg.RulesInForce()
	if err != nil {
		v.Err = err
		return
	}
	if p, err := cfg.Compile(); err == nil {
		v.Digest = p.Digest()
	}
	type key struct {
		rule    string
		layer   policy.Layer
		sandbox string
		current bool
	}
	type hits struct {
		count int64
		last  int64
	}
	all := map[key]hits{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t, k := sum.Totals[id], key{r.Decision.Rule, policy.Layer(r.Decision.Layer), "", r.Decision.Policy == v.Digest}
		if k.rule == "default" && k.layer == policy.PerSandbox {
			k.sandbox = r.Sandbox
		}
		if known, there := all[k]; there {
			all[k] = hits{known.count + t.Count, max(known.last, t.Last)}
			return
		}
		k.rule, k.layer, k.sandbox = strings.Clone(k.rule), policy.Layer(strings.Clone(string(k.layer))), strings.Clone(k.sandbox)
		all[k] = hits{t.Count, t.Last}
	})
	for _, rule := range rules {
		row := ruleRow{RuleInForce: rule, Known: rule.Rule != ""}
		k := key{rule.Rule, rule.Layer, "", true}
		if rule.Rule == "default" {
			k.sandbox = rule.Sandbox
		}
		for _, current := range []bool{true, false} {
			k.current = current
			if h, there := all[k]; there && (current || !rule.Positional) {
				row.Hits += h.count
				if last := at(h.last); last.After(row.Last) {
					row.Last = last
				}
			}
		}
		if row.Dead = row.Known && row.Hits == 0; row.Dead {
			v.Dead++
		}
		row.URL = address("/requests", []string{term("rule", rule.Rule), term("layer", string(rule.Layer))}, nil)
		v.Rules = append(v.Rules, row)
	}
}

const shadowsShown = 50

// shadows groups the decisions that the shadow policy would have made otherwise, the most frequent first.
func (s *Server) shadows(sum *index.Sum) []*logs.ShadowGroup {
	var all logs.Overview
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		if r.Shadow != nil {
			t := sum.Totals[id]
			r.Count, r.Time = t.Count, at(t.Last)
			all.Add(r)
		}
	})
	groups := all.Shadows()
	return groups[:min(len(groups), shadowsShown)]
}

func (s *Server) grant(w http.ResponseWriter, r *http.Request) {
	lasts, err := time.ParseDuration(r.PostFormValue("for"))
	if err != nil || lasts < time.Second {
		s.showPolicy(w, r, http.StatusBadRequest, &told{Err: errors.New("a grant is for a while, such as 1h")})
		return
	}
	ask := admin.GrantRequest{
		Verdict: r.PostFormValue("verdict"), Patterns: strings.Fields(r.PostFormValue("pattern")), Seconds: int64(lasts / time.Second), Sandbox: r.PostFormValue("sandbox"),
	}
	var done admin.Granted
	if err := s.askDaemon(r.Context(), http.MethodPost, "/v1/grants", ask, &done); err != nil {
		s.showPolicy(w, r, http.StatusConflict, toldOf(err))
		return
	}
	http.Redirect(w, r, "/policy#grants", http.StatusSeeOther)
}

// revoke takes a grant back.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	var done admin.Revoked
	if err := s.askDaemon(r.Context(), http.MethodDelete, "/v1/grants/"+url.PathEscape(cmp.Or(r.PostFormValue("id"), "none")), nil, &done); err != nil {
		s.showPolicy(w, r, http.StatusConflict, toldOf(err))
		return
	}
	http.Redirect(w, r, "/policy#grants", http.StatusSeeOther)
}

// A ruleText is the rule that decided, where it stands today.
type ruleText struct {
	File    string
	Lines   []sourceLine
	Changed bool // another policy decided
}

type sourceLine struct {
	Number int
	Text   string
	Here   bool
}

const (
	linesAround   = 2
	largestPolicy = 1 << 20
)

// ruleOf returns the rule of a decision in the policy file, or nil if the page has no policy or the file no
// such rule.
func (s *Server) ruleOf(d *record.Decision) *ruleText {
	if !s.options.HasPolicy {
		return nil
	}
	cfg, err := config.Load(s.options.Config)
	if err != nil {
		return nil
	}
	all, err := cfg.Lines()
	if err != nil {
		return nil
	}
	for _, l := range all {
		if l.ID != d.Rule || string(l.Layer) != d.Layer || l.Place.File == "" {
			continue
		}
		found := excerpt(l.Place.File, l.Place.Line)
		if found == nil {
			return nil
		}
		if p, err := cfg.Compile(); err != nil || p.Digest() != d.Policy {
			found.Changed = true
		}
		return found
	}
	return nil
}

func excerpt(path string, at int) *ruleText {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestPolicy {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	found := &ruleText{File: path}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if n := i + 1; n >= at-linesAround && n <= at+linesAround {
			found.Lines = append(found.Lines, sourceLine{n, strings.TrimRight(string(line), "\r"), n == at})
		}
	}
	return found
}
