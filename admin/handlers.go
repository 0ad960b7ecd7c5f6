package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// Sizes of a page of flows.
const (
	pageUsual = 100
	pageMost  = 1000
)

// A Failure is the body of an error response.
type Failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

func fail(w http.ResponseWriter, status int, what, hint string) {
	write(w, status, Failure{what, hint})
}

func write(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// healthz reports that the process is alive.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, map[string]string{"status": "ok"})
}

// Readiness tells whether egressd is ready, and if not, why.
type Readiness struct {
	Ready bool     `json:"ready"`
	Why   []string `json:"why,omitempty"`

	// Observing is for whom and until when everything public passes that no rule is about.
	Observing []policy.Observation `json:"observing,omitempty"`
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	all := Readiness{Observing: s.Gate.Observing()}
	if s.Missing != nil {
		all.Why = s.Missing()
	}
	if err := s.Log.Err(); err != nil {
		all.Why = append(all.Why, err.Error())
	}
	all.Ready = len(all.Why) == 0
	status := http.StatusOK
	if !all.Ready {
		status = http.StatusServiceUnavailable
	}
	write(w, status, all)
}

// A Latency says how long the policy took to decide, and how long flows took from their start until their upstream was
// connected.
type Latency struct {
	Decided   Durations `json:"decided"`
	Connected Durations `json:"connected"`
}

// Durations are bounds of buckets of a histogram, in milliseconds. A bound is 0 if so many took longer than each bucket.
type Durations struct {
	Count  int64   `json:"count"`
	Half   float64 `json:"half_ms"`
	Most95 float64 `json:"most_95_ms"`
	Most99 float64 `json:"most_99_ms"`
}

func durationsOf(h egress.Histogram) Durations {
	within := func(part float64) float64 { return float64(h.Within(part)) / float64(time.Millisecond) }
	return Durations{h.Count, within(0.5), within(0.95), within(0.99)}
}

func (s *Server) latency(w http.ResponseWriter, _ *http.Request) {
	f := s.Gate.Records.Figures()
	write(w, http.StatusOK, Latency{durationsOf(f.Decided), durationsOf(f.Connected)})
}

// A Page is a part of the open flows.
type Page struct {
	Open  int               `json:"open"` // number of all open flows
	Flows []egress.OpenFlow `json:"flows"`
	Next  string            `json:"next,omitempty"` // value of after for the next page; empty on the last one
}

func (s *Server) flows(w http.ResponseWriter, r *http.Request) {
	most, after := pageUsual, record.ID(0)
	q, err := query(r, "limit", "after")
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error(), "/v1/flows?limit=100")
		return
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > pageMost {
			fail(w, http.StatusBadRequest, fmt.Sprintf("limit is a number from 1 to %d", pageMost), "/v1/flows?limit=100")
			return
		}
		most = n
	}
	if text := q.Get("after"); text != "" {
		id, ok := record.ParseID(text)
		if !ok {
			fail(w, http.StatusBadRequest, "after is the id of a flow", "/v1/flows, whose next is the one to give")
			return
		}
		after = id
	}
	p := Page{Open: s.Gate.Flows.Count()}
	var more bool
	if p.Flows, more = s.Gate.Flows.Page(after, most); more {
		p.Next = p.Flows[len(p.Flows)-1].ID
	}
	write(w, http.StatusOK, p)
}

// query parses the parameters of a request. Unknown, repeated and malformed parameters are errors, since
// ignoring one could turn an approval for one flow into an approval for all.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errors.New("the query cannot be read: parameters are NAME=VALUE, with & between them")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no parameter %q here, only %s", name, strings.Join(known, " and "))
		}
		if len(values) > 1 {
			return nil, fmt.Errorf("%s is there more than once", name)
		}
	}
	return q, nil
}

func (s *Server) cut(w http.ResponseWriter, r *http.Request) {
	id, ok := record.ParseID(r.PathValue("id"))
	if !ok || !s.Gate.Flows.Has(id) {
		fail(w, http.StatusNotFound, "there is no open flow with that id", "egressd status --connections")
		return
	}
	if s.record(w, r, "cut flow "+id.String()) {
		return
	}
	if !s.Gate.Flows.Cut(id) {
		fail(w, http.StatusNotFound, "the flow has ended by itself", "egressd status --connections")
		return
	}
	write(w, http.StatusOK, map[string]string{"cut": id.String()})
}

func (s *Server) policy(w http.ResponseWriter, _ *http.Request) {
	if s.Policy == nil {
		fail(w, http.StatusNotFound, "there is no policy to show", "")
		return
	}
	write(w, http.StatusOK, s.Policy())
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	const hint = `curl -H 'Content-Type: application/json' -d '{"request":"https://example.com/"}'`
	var q ExplainRequest
	if !decode(w, r, &q, "question", hint) {
		return
	}
	if s.Explain == nil {
		fail(w, http.StatusNotFound, "nothing is explained here", "egressd check")
		return
	}
	a, err := s.Explain(q)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error(), hint)
		return
	}
	write(w, http.StatusOK, a)
}

// decode parses the body, which must be exactly one JSON object with known fields. If it returns false, it
// has answered the request. The text what names the body in errors.
func decode(w http.ResponseWriter, r *http.Request, into any, what, hint string) bool {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, "the "+what+" is not application/json", hint)
		return false
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		fail(w, http.StatusBadRequest, "the "+what+" cannot be read: "+err.Error(), hint)
		return false
	}
	if _, err := d.Token(); err != io.EOF {
		fail(w, http.StatusBadRequest, "something follows the "+what, hint)
		return false
	}
	return true
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	if s.Reload == nil {
		fail(w, http.StatusNotFound, "nothing is reloaded here", "kill -HUP")
		return
	}
	if r.ContentLength != 0 {
		fail(w, http.StatusBadRequest, "a reload takes no body: the policy is what the file says", "egressd reload")
		return
	}
	if s.record(w, r, "reload") {
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(reloadTimeout + writeTimeout))
	ctx, cancel := context.WithTimeout(r.Context(), reloadTimeout)
	defer cancel()
	told, err := s.Reload(ctx, "asked by "+operatorOf(r).String())
	if other := (*Unavailable)(nil); errors.As(err, &other) {
		fail(w, other.Status, other.Why, other.Hint)
		return
	}
	if err != nil {
		next := cmp.Or(hint.Next(err), "correct it, and reload again")
		fail(w, http.StatusUnprocessableEntity, err.Error(), next+"; what was in force still is")
		return
	}
	write(w, http.StatusOK, told)
}

// PageLease is how long sandboxes are kept away from the port of a page after the last request for it.
const PageLease = time.Minute

// page keeps sandboxes away from the port of a page. The process of the page asks before it listens, and
// again while it does.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port < 1024 || r.ContentLength != 0 {
		fail(w, http.StatusBadRequest, "a page has a port from 1024 to 65535, and no body", "egressd ui")
		return
	}
	if s.Page == nil {
		fail(w, http.StatusNotFound, "this egressd knows of no pages", "egressd ui --dir DIR")
		return
	}
	if !s.Page(uint16(port)) && s.record(w, r, "a page at port "+strconv.Itoa(int(port))+" of loopback") {
		return
	}
	write(w, http.StatusOK, map[string]any{"port": port, "seconds": PageLease.Seconds()})
}

// refused records a container that was refused before it started, so that the log has what nobody could serve. The record names
// the operator, and there is no other of the request.
func (s *Server) refused(w http.ResponseWriter, r *http.Request) {
	const hint = "up.sh and run-NAME.sh of egressd init, which send it"
	c := new(sandbox.RefusedContainer)
	if !decode(w, r, c, "refused container", hint) {
		return
	}
	if err := c.Check(); err != nil {
		fail(w, http.StatusBadRequest, err.Error(), hint)
		return
	}
	if s.Refused == nil {
		fail(w, http.StatusNotFound, "no containers are refused here", "egressd serve")
		return
	}
	id, err := s.Refused(c, operatorOf(r))
	if err != nil {
		unrecorded(w, err)
		return
	}
	write(w, http.StatusOK, map[string]string{"recorded": id})
}
