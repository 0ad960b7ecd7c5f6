package ui

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/record"
)

// readMost bounds the records that are read for one story.
const readMost = 400_000

// A requestView is the story of one flow.
type requestView struct {
	*story.Story
	First    *record.Record
	Facts    []fact
	Records  []line
	Around   []line
	Rule     *ruleText
	Level    level
	Allowed  bool
	Seq      int64
	ProofURL string
	Run      string
	Flags    string
	Line     string // for the list tests of a policy file, or ""
	Rego     string // the same as a test in Rego
	Try      *tryView
	Acts     []act
	Told     *told
}

type fact struct{ Name, Value string }

func (s *Server) request(w http.ResponseWriter, r *http.Request) {
	found, run, err := s.story(r.PathValue("id"))
	if err != nil {
		s.refuse(w, r, notFound(err))
		return
	}
	v := requestView{Story: found, First: found.Records[0], Seq: found.Records[0].Seq, Flags: s.options.Flags}
	told := found.Decisive
	if told == nil {
		told = found.Records[0]
	}
	v.Facts = factsOf(found, told)
	for _, one := range found.Records {
		v.Records = append(v.Records, lineOf(one))
	}
	if d := found.Decision; d != nil {
		v.Allowed, v.Level = d.Action == "allow", levelOf(told)
		v.Rule = s.ruleOf(d)
		v.Around = s.around(r, told)
		v.Line, v.Rego = testsOf(told)
		v.Try = s.try(r, told)
		v.Acts = s.acts(told, found.Flow, s.undoable().about(told))
	}
	if r.Method == http.MethodGet {
		v.Told = s.saved.Swap(nil)
	}
	v.ProofURL, v.Run = "/v1/proofs/"+strconv.FormatInt(v.Seq, 10), run
	if run != "" {
		v.ProofURL = address(v.ProofURL, nil, url.Values{"run": {run}})
	}
	s.write(w, r, http.StatusOK, "request", nil, nil, v)
}

// story returns the story of a flow, and the run whose log has it.
func (s *Server) story(text string) (_ *story.Story, run string, _ error) {
	id, ok := record.ParseID(strings.ToUpper(text))
	if !ok {
		return nil, "", hint.Misused(fmt.Errorf("%q is not the id of a flow", text), "The ids are in the last column of the requests.")
	}
	row, known := s.index.ByFlow(id)
	if !known {
		return nil, "", hint.Failed(fmt.Errorf("%s is not among the decisions that the page holds", id), "egressd why "+id.String()+s.options.Flags)
	}
	log, err := source.At(row.Log, row.Seq)
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	found, err := story.From(log, id.String(), readMost)
	if err == nil && found.Fix != "" {
		found.Fix += s.options.Allow
	}
	if s.options.Runs != nil {
		run = filepath.Base(row.Log)
	}
	return found, run, err
}

func notFound(err error) *refusal {
	return &refusal{http.StatusNotFound, err.Error(), cmp.Or(hint.Next(err), "The ids are in the last column of the requests.")}
}

func factsOf(s *story.Story, r *record.Record) (all []fact) {
	add := func(name, value string) {
		if value != "" {
			all = append(all, fact{name, value})
		}
	}
	add("time", s.Records[0].Time.Local().Format(time.DateTime+".000"))
	add("asked", asked(r))
	for i, text := range s.Git() {
		add(map[bool]string{true: "git", false: "ref"}[i == 0], text)
	}
	add("sandbox", r.Sandbox)
	if r.Container != nil {
		add("container", strings.TrimSpace(r.Container.Name+" "+r.Container.ID+" "+r.Container.Image))
	}
	if p := r.Process; p != nil && p.Exe != "" {
		add("program", fmt.Sprintf("%s, pid %d", p.Exe, p.PID))
		add("arguments", strings.Join(p.Argv, " "))
	}
	add("from", r.Src)
	if r.TLS != nil {
		add("server name", r.TLS.SNI)
		add("TLS fingerprint", r.TLS.JA4)
	}
	if r.Dst != nil {
		add("asked for", r.Dst.Asked)
		add("addresses", strings.Join(r.Dst.Addrs, " "))
		add("address is", r.Dst.Class)
		add("dialled", r.Dst.Addr)
	}
	if r.HTTP != nil && r.HTTP.QueryBytes > 0 {
		add("query", fmt.Sprintf("%d bytes, which no record has", r.HTTP.QueryBytes))
	}
	if s.Times > 1 {
		add("times", fmt.Sprintf("%d equal refusals", s.Times))
	}
	if s.Signal != nil {
		add("alarm", "canary "+s.Signal.Name+" in the "+s.Signal.Where+" ("+s.Signal.Encoding+")")
	}
	add("sent", r.Raw)
	if e := s.End; e != nil {
		if e.Bytes != nil {
			add("bytes", fmt.Sprintf("%d up, %d down", e.Bytes.Up, e.Bytes.Down))
		}
		add("lasted", (time.Duration(e.Duration) * time.Millisecond).String())
		add("outcome", string(e.Outcome))
		add("note", e.Note)
	} else if s.Decision != nil && s.Decision.Action == "allow" {
		add("outcome", "open, as far as the log goes")
	}
	return all
}

func asked(r *record.Record) string {
	switch {
	case r.HTTP != nil && r.HTTP.Method != "":
		return r.HTTP.Method + " " + r.HTTP.Path + " by " + r.Via
	case r.DNS != nil:
		return r.DNS.Type + " of " + r.DNS.Name + " by " + r.Via
	default:
		return "a connection by " + r.Via
	}
}

func lineOf(r *record.Record) line {
	l := line{Time: r.Time, Seq: r.Seq, Flow: r.Flow, Destination: string(r.Kind), What: logs.What(r), Why: logs.Why(r), Outcome: string(r.Outcome)}
	if r.Decision != nil {
		l.Action = r.Decision.Action
	}
	if r.HTTP != nil {
		l.Path = r.HTTP.Path
	}
	if r.Bytes != nil {
		l.Ended, l.Up, l.Down = true, r.Bytes.Up, r.Bytes.Down
	}
	return l
}

// byNumber returns the URL of the request that a record belongs to.
func byNumber(seq int64) string {
	return address("/requests", []string{term("seq", strconv.FormatInt(seq, 10))}, nil)
}

const aroundShown = 12

// around lists what the same program decided within a minute before and after.
func (s *Server) around(r *http.Request, told *record.Record) []line {
	terms := between(told.Time.Add(-time.Minute), told.Time.Add(time.Minute))
	terms = append(terms, term("sandbox", told.Sandbox))
	if p := logs.Process(told); p != "" {
		terms = append(terms, term("proc", p))
	}
	f, err := logs.ParseFilter(terms, time.Now())
	if err != nil {
		return nil
	}
	var all []line
	for _, l := range s.lines(s.index.Newest(r.Context(), f, math.MaxInt64, 200)) {
		if l.Flow != told.Flow && len(all) < aroundShown {
			all = append(all, l)
		}
	}
	return all
}

// proof proves a record of the log, or of the log of a run.
func (s *Server) proof(run string, seq int64) ([]byte, error) {
	dir, err := s.logOf(run)
	if err != nil {
		return nil, err
	}
	key, err := s.key(dir)
	if err != nil {
		return nil, err
	}
	p, err := verify.Prove(dir, key, seq)
	if err != nil {
		return nil, hint.Failed(err, "egressd log verify"+s.options.Flags)
	}
	return json.MarshalIndent(p, "", " ")
}

func (s *Server) key(dir string) (string, error) {
	if s.options.Key == nil {
		return "", hint.Failed(errors.New("the key of the log is not known here"), "egressd ui --key KEY")
	}
	key, _, err := s.options.Key(dir)
	if err == nil && key == "" {
		err = hint.Failed(errors.New("the key of the log is not known here"), "egressd ui --key KEY")
	}
	return key, err
}
